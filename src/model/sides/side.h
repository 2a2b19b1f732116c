// A side: how one framework turns placements into local parameters. One file each, shared by all families.
#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/families/config.h"
#include "model/rules/mesh.h"
#include "model/rules/ops.h"

namespace refit::model {

// A SPEC as parsed: side, numbers by key (defaults filled in) and texts by key.
struct Spec {
  std::string side;
  Symbols numbers;
  std::map<std::string, std::string, std::less<>> texts;
  std::vector<std::string> axes;  // those of an ordered side, in the order written

  std::int64_t number(std::string_view key) const { return numbers.find(key)->second; }
  bool given(std::string_view key) const { return texts.contains(key); }
  // Only the draft layers, as the class of their own that an engine loads them into.
  bool draft_model() const { return given("draft") && texts.find("draft")->second == "own"; }
  bool fused() const { return given("naming") && texts.find("naming")->second == "fused"; }
};

struct SideRule {
  Kind kind;
  Per per;
  Program program;
};

// One tensor under a naming of its own, by the tensor's name in the tables. Such a parameter is a tensor by itself, or,
// `scanned`, all layers' on an axis of their own.
struct Preset {
  std::string_view tensor, name;
  Program program;
  bool scanned = false;
};

// Where a layer lies: pipeline stage, virtual chunk, and its number in that chunk.
struct Stage {
  std::int64_t stage = 0, chunk = 0, layer = 0;
};

// Where a side's pipeline has what. The embedding is where it begins: stage 0, chunk 0.
struct Pipeline {
  std::vector<Stage> layers = {};  // of the decoder
  Stage last = {};                 // where it ends, with the head
  Stage drafts = {};               // all draft layers
};

// A parameter that holds a tied tensor once more.
struct TiedCopy {
  std::string_view logical, parameter;
  Stage at = {};
};

struct SpecKey {
  std::string_view name;
  std::int64_t otherwise = 1;    // of a number; 0: Side::complete decides
  std::string_view values = {};  // of a text: the values allowed, separated by '|'
  bool axis = true;              // of an ordered side's number: an axis of the mesh
  // Of a text with a grammar of its own, which `values` then describes: its canonical form. Errors: kInvalid.
  Result<std::string> (*read)(std::string_view) = nullptr;
};

struct Side {
  std::string_view name;
  bool engine = false;  // decides the default prefix of host names
  Names names = Names::kEngine;
  // Names of a row's parameters before layers and experts are filled in: one for each member where the side keeps them
  // apart, else one.
  std::vector<std::string> (*name_of)(const Spec&, const ModelConfig&, const Row&, Per) = nullptr;
  std::vector<SpecKey> keys = {};  // besides those that every side has
  bool ordered = false;            // the mesh has its axes in the order written
  // With a SPEC that names one: what takes the place of `rules` and `name_of`; all tensors that it lacks are refused.
  const std::vector<Preset>* (*presets)(const Spec&, const ModelConfig&) = nullptr;
  // Mesh axes of one instance, slowest first: of the model, and, when they differ, of its experts. Experts are cut
  // over "ep" (which expert) and "moe_tp" (its width).
  std::vector<std::vector<Mesh::Axis>> (*grids)(const Spec&) = nullptr;
  std::vector<SideRule> (*rules)(const Spec&, const ModelConfig&) = nullptr;
  // What the framework itself refuses, named by SPEC key and configuration key.
  Status (*check)(const Spec&, const ModelConfig&) = nullptr;
  // Fills in numbers that follow from others. Errors: kInvalid.
  Status (*complete)(Spec&) = nullptr;
  // None: all in one place.
  Result<Pipeline> (*pipeline)(const Spec&, const ModelConfig&) = nullptr;
  bool drafts = true;  // holds draft layers
  // What draft=own calls a parameter of a row in draft layers, by its name in the model; none: no such class.
  std::string (*draft_parameter)(const Row&, std::string name) = nullptr;
  std::string_view decoder = {}, draft = {};  // prefix of names, and what stands for it in draft layers
  std::vector<TiedCopy> (*copies)(const Spec&, const ModelConfig&, const Pipeline&) = nullptr;
};

const Side& hf_side();
const Side& sharded_side();
const Side& vllm_side();
const Side& sglang_side();
const Side& megatron_side();
const Side& jax_side();
// "a, b, c": for messages.
std::string side_names();

// Presets of the jax side. Errors: kUnsupported for a family that the preset is not built for, or a mesh that cuts.
const std::vector<Preset>* jax_presets(const Spec& spec, const ModelConfig& config);
Status check_preset(const Spec& spec, const ModelConfig& config);

// A row's name in a table, split where it names each member; else the members' own, or the first's for one parameter.
std::vector<std::string> names_of(const Row& row, std::string_view own, Per per);
// As checkpoints and the modules of transformers name them.
std::vector<std::string> fused_names(const Spec&, const ModelConfig&, const Row& row, Per per);

// The side that a SPEC's text names. Errors: kInvalid, kUnsupported.
Result<const Side*> side_of(std::string_view spec);

// Strict: unknown or repeated keys, bad numbers and values are kInvalid, naming the key and what is allowed.
Result<Spec> parse_spec(std::string_view text);
// Equal for SPECs that mean the same.
std::string canonical_spec(const Spec& spec);

// "`label`: KEY N does not divide by `key`=K", unless it does; KEY is what config.json calls the symbol. Names the
// first tensor whose shape has it.
Status must_divide(std::string_view label, const ModelConfig& config, std::string_view symbol, std::string_view key,
                   std::int64_t k);
// "`label`: `quantity` N does not divide by `key`=K", unless it does.
Status must_divide(std::string_view label, std::string_view quantity, std::int64_t n, std::string_view key,
                   std::int64_t k);

}  // namespace refit::model
