#include "core/dtype.h"

#include <array>

namespace refit {
namespace {
struct Row {
  std::string_view name;
  std::int64_t bytes;
  bool is_float;
};
constexpr std::array<Row, kDTypeCount> kRows = {{{"bool", 1, false},
                                                 {"u8", 1, false},
                                                 {"i8", 1, false},
                                                 {"i16", 2, false},
                                                 {"i32", 4, false},
                                                 {"i64", 8, false},
                                                 {"f16", 2, true},
                                                 {"bf16", 2, true},
                                                 {"f32", 4, true},
                                                 {"f64", 8, true},
                                                 {"f8_e4m3", 1, true},
                                                 {"f8_e5m2", 1, true}}};
const Row& row(DType t) { return kRows[static_cast<std::size_t>(t)]; }
}  // namespace

std::int64_t item_size(DType t) { return row(t).bytes; }
std::string_view to_string(DType t) { return row(t).name; }
bool is_float(DType t) { return row(t).is_float; }
std::optional<DType> dtype_from_string(std::string_view name) {
  for (std::size_t i = 0; i < kRows.size(); ++i)
    if (kRows[i].name == name) return static_cast<DType>(i);
  return std::nullopt;
}

}  // namespace refit
