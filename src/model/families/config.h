// A model's configuration as the rules see it: family, sizes and flags by symbol, which layers hold experts.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "model/families/family.h"
#include "model/layout.h"
#include "model/rules/symbols.h"

namespace refit::model {

struct ModelConfig {
  const Family* family = nullptr;
  Symbols symbols;             // sizes, and flags as 0 or 1
  std::vector<bool> moe;       // by layer
  DType dtype = DType::kBF16;  // torch_dtype or dtype; bf16 when neither is there
  std::string canonical;       // the keys that were read, sorted, as JSON

  bool flag(std::string_view name) const;
  std::int64_t size(std::string_view symbol) const { return symbols.find(symbol)->second; }
  bool active(const Row& row) const;
  // Layers of a row, {-1} for a row of the model itself.
  std::vector<std::int64_t> layers(const Row& row) const;
  bool has_moe() const;
  bool has_dense() const;
};

// Reads only the family's keys. Errors: kInvalid naming a key that is missing, contradicts another or is absurd;
// kUnsupported for a family that is not built, or a quantised checkpoint.
Result<ModelConfig> read_config(std::string_view config_json);

// Name with {layer} and {expert} filled in.
std::string instantiate(std::string_view pattern, std::int64_t layer, std::int64_t expert);

}  // namespace refit::model
