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
  std::vector<std::string> axes;  // fsdp and tp, in the order written

  std::int64_t number(std::string_view key) const { return numbers.find(key)->second; }
  bool given(std::string_view key) const { return texts.contains(key); }
  bool fused() const { return given("naming") && texts.find("naming")->second == "fused"; }
};

// How many parameters a rule makes of a row.
enum class Per : std::uint8_t {
  kTensor,  // each member (of each expert) is a parameter under its logical name
  kRow,     // one parameter under the side's name
  kStack,   // one parameter under the side's name, holding all experts
};

struct SideRule {
  Kind kind;
  Per per;
  Program program;
};

enum class Names : std::uint8_t { kEngine, kMegatron, kFused };

struct SpecKey {
  std::string_view name;
  std::int64_t otherwise = 1;    // of a number
  std::string_view values = {};  // of a text: the values allowed, separated by '|'
};

struct Side {
  std::string_view name;
  bool engine = false;  // decides the default prefix of host names
  Names names = Names::kEngine;
  std::vector<SpecKey> keys = {};  // besides those that every side has
  // Mesh axes of one instance, slowest first.
  std::vector<Mesh::Axis> (*axes)(const Spec&) = nullptr;
  std::vector<SideRule> (*rules)(const Spec&) = nullptr;
  // What the framework itself refuses, named by SPEC key and configuration key.
  Status (*check)(const Spec&, const ModelConfig&) = nullptr;
};

const Side& hf_side();
const Side& sharded_side();
const Side& vllm_side();
const Side& megatron_side();

// The side that a SPEC's text names. Errors: kInvalid, kUnsupported.
Result<const Side*> side_of(std::string_view spec);

// Strict: unknown or repeated keys, bad numbers and values are kInvalid, naming the key and what is allowed.
Result<Spec> parse_spec(std::string_view text);
// Equal for SPECs that mean the same.
std::string canonical_spec(const Spec& spec);

// "`label`: `quantity` N does not divide by `key`=K", unless it does.
Status must_divide(std::string_view label, std::string_view quantity, std::int64_t n, std::string_view key,
                   std::int64_t k);

}  // namespace refit::model
