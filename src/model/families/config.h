// A model's configuration as the rules see it: family, sizes and flags by symbol, the traits of each layer.
#pragma once
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/families/family.h"
#include "model/layout.h"
#include "model/rules/symbols.h"

namespace refit::model {

struct ModelConfig {
  const Family* family = nullptr;
  Symbols symbols;                                       // sizes, and flags as 0 or 1
  std::map<std::string_view, std::vector<bool>> traits;  // by name, by layer of the decoder
  bool multimodal = false;                               // config.json is of the family's `whole`
  DType dtype = DType::kBF16;                            // torch_dtype or dtype; bf16 when neither is there
  std::string canonical;                                 // the keys that were read, sorted, as JSON

  bool flag(std::string_view name) const;
  // The key of config.json that a symbol stands for.
  std::string key(std::string_view symbol) const;
  bool has(std::string_view symbol) const { return symbols.contains(symbol); }
  std::int64_t size(std::string_view symbol) const { return symbols.find(symbol)->second; }
  bool active(const Row& row) const { return holds(row.when); }
  bool holds(std::string_view when) const;
  // Layers of a row, {-1} for a row of the model itself. Draft layers are numbered on from the decoder's.
  std::vector<std::int64_t> layers(const Row& row) const;
  std::int64_t draft_layers() const { return family->draft.empty() ? 0 : size(family->draft); }
  bool has_moe() const;
  bool has_dense() const;
  // Tensors that a member of this row has in a layer.
  std::int64_t experts(const Row& row) const { return is_per_expert(row.kind) ? size("E") : 1; }
  DType dtype_of(const Member& member) const;
  Result<Symbols> symbols_of(const Row& row) const;
  Result<std::vector<Dims>> shapes(const Row& row) const;  // by member
  // Of a row of block scales: the shapes of the weights by member, and the elements of a block by axis. Else none.
  Result<std::vector<Dims>> scaled(const Row& row) const;
  Dims block() const { return {size("bn"), size("bk")}; }
  // Names that hold the same tensor, as (primary, copy).
  std::vector<std::pair<std::string, std::string>> ties() const;
  // The first tensor whose shape has the symbol; none: empty.
  std::string tensor_with(std::string_view symbol) const;
  std::string name(std::string_view pattern, std::int64_t layer, std::int64_t expert) const;
};

// Reads only the family's keys. Errors: kInvalid naming a key that is missing, contradicts another or is absurd;
// kUnsupported for a family that is not built, or a quantised checkpoint.
// `names`: a checkpoint's tensors, which may tell of draft layers. `known`: the families that it may be of.
Result<ModelConfig> read_config(std::string_view config_json, const Catalogue* names = nullptr,
                                std::span<const Family* const> known = families());

// Name with {layer}, {mtp} and {expert} filled in.
std::string instantiate(std::string_view pattern, std::int64_t layer, std::int64_t mtp, std::int64_t expert);

}  // namespace refit::model
