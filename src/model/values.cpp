#include "model/values.h"

#include <bit>
#include <cmath>

namespace refit::model {
namespace {

struct Value {
  std::string_view name;
  float (*apply)(float);
  float (*undo)(float);
};

// In double and then to f32, so that the result does not depend on a vector library's last bit.
const Value kValues[] = {{"minus_one", [](float w) { return w - 1.0F; }, [](float t) { return t + 1.0F; }},
                         {"neg_exp", [](float w) { return static_cast<float>(-std::exp(static_cast<double>(w))); },
                          [](float a) { return static_cast<float>(std::log(-static_cast<double>(a))); }}};

// To the nearest value of the dtype, ties to even; NaN stays.
float rounded(float x, DType dtype) {
  if (dtype != DType::kBF16 || std::isnan(x)) return x;
  const auto bits = std::bit_cast<std::uint32_t>(x);
  return std::bit_cast<float>((bits + 0x7fffU + (bits >> 16 & 1U)) & 0xffff0000U);
}

bool same(float a, float b) { return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b); }

Result<const Value*> value_named(std::string_view name) {
  for (const Value& v : kValues)
    if (v.name == name) return &v;
  return Error(Code::kInternal, "no value transform is named '" + std::string(name) + "'");
}

}  // namespace

Result<std::int64_t> apply_value(std::string_view name, std::span<float> values, DType dtype) {
  REFIT_ASSIGN(const Value* v, value_named(name));
  std::int64_t bad = -1;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float w = values[i];
    values[i] = v->apply(w);
    if (bad < 0 && !same(rounded(v->undo(values[i]), dtype), w)) bad = static_cast<std::int64_t>(i);
  }
  return bad;
}

Result<std::int64_t> undo_value(std::string_view name, std::span<float> values, DType dtype) {
  REFIT_ASSIGN(const Value* v, value_named(name));
  std::int64_t bad = -1;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float t = values[i];
    values[i] = rounded(v->undo(t), dtype);
    if (bad < 0 && !same(v->apply(values[i]), t)) bad = static_cast<std::int64_t>(i);
  }
  return bad;
}

}  // namespace refit::model
