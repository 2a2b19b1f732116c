#include "model/values.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "model/rules/symbols.h"

namespace refit::model {
namespace {

// The second argument is the number after the name's colon.
struct Value {
  std::string_view name;
  float (*apply)(float, double);
  float (*undo)(float, double);
};

float to_f32(double x) { return static_cast<float>(x); }

// To the nearest value of the dtype, ties to even; NaN stays.
float rounded(float x, DType dtype) {
  if (dtype != DType::kBF16 || std::isnan(x)) return x;
  const auto bits = std::bit_cast<std::uint32_t>(x);
  return std::bit_cast<float>((bits + 0x7fffU + (bits >> 16 & 1U)) & 0xffff0000U);
}

// As forward passes in bf16 have it.
double root(double n) { return double{rounded(to_f32(std::sqrt(n)), DType::kBF16)}; }

// In double and then to f32, so that the result does not depend on a vector library's last bit.
const Value kValues[] = {
    {"", [](float w, double) { return w; }, [](float t, double) { return t; }},
    {"minus_one", [](float w, double) { return w - 1.0F; }, [](float t, double) { return t + 1.0F; }},
    {"plus_one", [](float w, double) { return w + 1.0F; }, [](float t, double) { return t - 1.0F; }},
    {"neg_exp", [](float w, double) { return to_f32(-std::exp(double{w})); },
     [](float a, double) { return to_f32(std::log(-double{a})); }},
    {"over_sqrt", [](float w, double n) { return to_f32(double{w} / std::sqrt(n)); },
     [](float t, double n) { return to_f32(double{t} * std::sqrt(n)); }},
    {"times_sqrt", [](float w, double n) { return to_f32(double{w} * root(n)); },
     [](float t, double n) { return to_f32(double{t} / root(n)); }}};

bool same(float a, float b) { return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b); }

struct Named {
  const Value* value = nullptr;
  double number = 1;
  float apply(float w) const { return value->apply(w, number); }
  float undo(float t) const { return value->undo(t, number); }
};

Result<Named> value_named(std::string_view name) {
  const std::size_t colon = name.find(':');
  const auto number = colon == std::string_view::npos ? 1 : parse_number(name.substr(colon + 1)).value_or(0);
  for (const Value& v : kValues)
    if (v.name == name.substr(0, colon) && number > 0) return Named{&v, static_cast<double>(number)};
  return Error(Code::kInternal, "no value transform is named '" + std::string(name) + "'");
}

}  // namespace

Result<std::int64_t> apply_value(std::string_view name, std::span<float> values, DType dtype) {
  REFIT_ASSIGN(const Named v, value_named(name));
  std::int64_t bad = -1;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float w = values[i];
    values[i] = v.apply(w);
    if (bad < 0 && !same(rounded(v.undo(values[i]), dtype), w)) bad = static_cast<std::int64_t>(i);
  }
  return bad;
}

Result<std::int64_t> undo_value(std::string_view name, std::span<float> values, DType dtype) {
  REFIT_ASSIGN(const Named v, value_named(name));
  std::int64_t bad = -1;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float t = values[i];
    values[i] = rounded(v.undo(t), dtype);
    if (bad < 0 && !same(v.apply(values[i]), t)) bad = static_cast<std::int64_t>(i);
  }
  return bad;
}

Status check_value(std::string_view name, DType dtype) {
  REFIT_TRY(value_named(name));
  if (dtype == DType::kBF16 || dtype == DType::kF32) return {};
  return Error(Code::kUnsupported, "the value transform '" + std::string(name) + "' takes bf16 and f32, not " +
                                       std::string(to_string(dtype)));
}

Status store_values(std::string_view name, DType dtype, const std::byte* logical, std::span<float> stored) {
  REFIT_TRY(check_value(name, dtype));
  for (std::size_t i = 0; i < stored.size(); ++i) {
    if (dtype == DType::kF32) {
      std::memcpy(&stored[i], logical + i * sizeof(float), sizeof(float));
    } else {
      std::uint16_t bits = 0;
      std::memcpy(&bits, logical + i * sizeof bits, sizeof bits);
      stored[i] = std::bit_cast<float>(std::uint32_t{bits} << 16);
    }
  }
  REFIT_TRY(apply_value(name, stored, dtype));
  return {};
}

Status undone_values(std::string_view name, DType dtype, std::span<const float> stored, std::byte* logical) {
  REFIT_TRY(check_value(name, dtype));
  std::vector<float> values(stored.begin(), stored.end());
  REFIT_TRY(undo_value(name, values, dtype));
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (dtype == DType::kF32) {
      std::memcpy(logical + i * sizeof(float), &values[i], sizeof(float));
    } else {
      const auto bits = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(values[i]) >> 16);
      std::memcpy(logical + i * sizeof bits, &bits, sizeof bits);
    }
  }
  return {};
}

}  // namespace refit::model
