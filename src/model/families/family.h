// A family: its tensors, the numbers that size them, and how each is placed, as tables. What a placement means for a
// side stands in sides/.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/core.h"

namespace refit::model {

// How a row's tensors are used, which is all that a side needs to know to place them.
enum class Kind : std::uint8_t {
  kVocabulary,    // rows are the vocabulary
  kReplicated,    // norms, routers, biases of row-parallel matrices: whole everywhere
  kQkv,           // q, k, v: rows are heads (a weight or a bias)
  kRowParallel,   // columns are heads or the MLP width
  kGateUp,        // gate, up: rows are the MLP width
  kExpertGateUp,  // gate, up of each expert
  kExpertDown,    // columns are the expert width
};
inline constexpr int kKindCount = 7;

enum class Where : std::uint8_t { kModel, kEveryLayer, kDenseLayer, kMoeLayer };

struct Member {
  std::string_view name;   // logical, with {layer} and {expert}
  std::string_view shape;  // terms, e.g. "Hq*hd,H"
};

// Tensors that one parameter of a fusing side holds together. A side's name is empty where it keeps the logical one.
struct Row {
  Kind kind = Kind::kReplicated;
  Where where = Where::kModel;
  std::string_view when = {};  // a flag of the configuration, "!flag", or empty
  std::vector<Member> members = {};
  std::string_view engine = {};
  std::string_view megatron = {};
  std::string_view fused = {};  // name in checkpoints that stack experts
};

// A key of config.json. `otherwise` is a term, "a/b", or empty when the key must be there.
struct ConfigKey {
  std::string_view key;
  std::string_view symbol;
  std::string_view otherwise;
};
struct ConfigFlag {
  std::string_view key;
  std::string_view symbol;
};

struct Family {
  std::string_view name;               // and model_type
  std::string_view architecture = {};  // of config.json
  bool experts = false;                // reads mlp_only_layers and decoder_sparse_step
  std::vector<ConfigKey> sizes = {};
  std::vector<ConfigFlag> flags = {};
  std::vector<Row> rows = {};
};

inline constexpr std::string_view kEmbedding = "model.embed_tokens.weight", kHead = "lm_head.weight";

const Family& llama();
const Family& qwen2();
const Family& qwen3();
const Family& qwen3_moe();
const std::vector<const Family*>& families();

// Table fragments that several families share.
namespace rows {
std::vector<ConfigKey> dense_sizes();
Row embedding();
Row final_norm();
Row head();
Row input_norm();
Row qkv(std::string_view when, bool bias);
Row output_projection();
Row output_bias(std::string_view when);
Row head_norm(std::string_view which);
Row post_attention_norm(Where where);
Row gate_up(Where where);
Row down(Where where);

}  // namespace rows

}  // namespace refit::model
