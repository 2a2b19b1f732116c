// A family: its tensors, the numbers that size them, and how each is placed, as tables. What a placement means for a
// side stands in sides/; what only one family does stands in its own rows, as programs.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/core.h"
#include "model/block_format.h"
#include "model/rules/ops.h"

namespace refit::model {

// How a row's tensors are used, which is all that a side needs to know to place them.
enum class Kind : std::uint8_t {
  kVocabulary,    // rows are the vocabulary
  kReplicated,    // norms, routers, biases of row-parallel matrices: whole everywhere
  kQkv,           // q, k, v: rows are heads (a weight or a bias)
  kGatedQkv,      // likewise, and each q head is followed by its gate
  kColumn,        // rows are heads
  kRowParallel,   // columns are heads
  kGateUp,        // gate, up: rows are the MLP width
  kUp,            // up alone
  kMlpDown,       // columns are the MLP width
  kExpertGateUp,  // gate, up of each expert
  kExpertUp,      // up alone
  kExpertDown,    // columns are the expert width
  kStacked,       // one tensor of all experts, axis 0
};
inline constexpr int kKindCount = 13;
bool is_expert(Kind kind);      // placed by the expert grid of the mesh
bool is_per_expert(Kind kind);  // a tensor for each expert

// Which layers have a row: alternatives separated by '|', each a conjunction ('&') of layer traits, '!' for not.
// `kEveryLayer` is the decoder; "mtp" its draft layers, numbered on from the last, "mtp0" the first of them.
inline constexpr std::string_view kModel = "", kEveryLayer = "*", kDenseLayer = "!moe", kMoeLayer = "moe";

struct Member {
  std::string_view name;        // logical, with {layer} and {expert}; {mtp} counts draft layers from 0
  std::string_view shape;       // terms, e.g. "Hq*hd,H"
  std::string_view dtype = {};  // when it is not the model's
  std::string_view of = {};     // of a tensor of block scales: the shape of the weight that it scales
};

// On a side where nobody knows what a tensor is called: the tensor is refused there by name.
inline constexpr std::string_view kUnknownName = "-";

// How many parameters a rule makes of a row.
enum class Per : std::uint8_t {
  kTensor,     // each member (of each expert) is a parameter of its own, all experts everywhere
  kRow,        // one parameter under the side's name
  kStack,      // one parameter under the side's name, holding all experts
  kStackEach,  // likewise, one for each member
  kExpert,     // one for each expert of the rank, counted from 0 there
};

// kSglang: where it differs from kEngine.
enum class Names : std::uint8_t { kFused, kEngine, kSglang, kMegatron, kJax };

// What one family does otherwise than its kind says, on one side. Several of one side and Per::kRow: a parameter each,
// which together hold the members; the side's name then names each.
struct Own {
  Names side = Names::kEngine;
  Per per = Per::kRow;
  Program program = {};
};

// Tensors that one parameter of a fusing side holds together. A side's name is empty where it keeps the logical one;
// several names, separated by '|', are one for each member.
struct Row {
  Kind kind = Kind::kReplicated;
  std::string_view where = kModel;
  std::string_view when = {};  // flags of the configuration joined by '&', '!' for not; or empty
  std::vector<Member> members = {};
  std::string_view engine = {};
  std::string_view sglang = {};  // when it differs from `engine`
  std::string_view megatron = {};
  std::string_view megatron_local = {};  // under spec=local, when it differs
  std::string_view jax = {};
  std::string_view fused = {};                                          // name in checkpoints that stack experts
  std::vector<std::pair<std::string_view, std::string_view>> let = {};  // symbols that mean another term in this row
  std::vector<Own> own = {};
  bool first_stage = false;     // of the model's own rows: lies where the pipeline begins, not where it ends
  bool closes_decoder = false;  // of those: where there are draft layers, lies with the decoder's last one
  bool in_blocks = false;       // matrices that FP8 checkpoints hold in codes with scales
  bool shared = false;          // shared experts: engines may keep them behind the routed ones
  bool buffer = false;          // a buffer of its module: trainers that shard parameters leave it whole
};

// A key of config.json. `otherwise` is a term, "a/b", or empty when the key must be there. Without a key the number
// follows from others. `also` is a second spelling, of another release of the library that wrote the file.
struct ConfigKey {
  std::string_view key;
  std::string_view symbol;
  std::string_view otherwise = {};
  std::int64_t least = 1;
  std::string_view also = {};
  bool built = true;  // false: only 0 is
};
struct ConfigFlag {
  std::string_view key;
  std::string_view symbol;
  bool otherwise = false;
  bool built = true;  // false: a configuration that sets it is refused
};

// A yes or no for each layer.
struct LayerTrait {
  enum class How : std::uint8_t {
    kSparse,   // decoder_sparse_step and mlp_only_layers
    kFrom,     // layers from the number under `key` on
    kTail,     // the last `key` layers
    kTypes,    // the list under `key` has `value`; without it, every `step`-th layer has `last`
    kPattern,  // the character of the string under `key` is one of `value`; or the entry of the list under `list` is
               // one of `names`
  };
  std::string_view name;
  How how = How::kSparse;
  std::string_view key = {};
  std::string_view value = {};
  std::string_view step = {};              // key with the period, for kTypes
  std::int64_t period = 0;                 // when that key is missing too
  bool last = true;                        // the last layer of a period has the trait; else all others have
  bool ends = false;                       // the last layer of all has it, whatever else is said
  std::string_view when = {};              // flags without which no layer has it
  std::string_view list = {}, names = {};  // of kPattern; names separated by '|'
};

// Keys whose values for the layers with `trait` stand in an object of their own, under the layers' numbers.
struct LayerKeys {
  std::string_view key;
  std::string_view trait;
  std::vector<std::pair<std::string_view, std::string_view>> renamed = {};  // inner key, key of this configuration
};

// A kind of quantised checkpoint that the rows describe.
struct Quantised {
  std::string_view method;  // quant_method of quantization_config, and flag
  bool blocks = false;      // has weight_block_size: symbols bn, bk
};

// `copy` holds the same tensor as `primary` in checkpoints that have it.
struct Tie {
  std::string_view primary, copy;
  std::string_view when = {};
};

struct Family {
  std::string_view name;               // and model_type
  std::string_view architecture = {};  // of config.json
  std::vector<ConfigKey> sizes = {};
  std::vector<ConfigFlag> flags = {};
  std::vector<LayerTrait> traits = {};
  std::vector<Row> rows = {};
  std::vector<Tie> ties = {};
  std::string_view draft = {};  // symbol of the number of draft layers
  // What stands for "model.layers.{layer}." in the names of draft layers; a checkpoint that has such names has a draft
  // layer even when config.json does not say so.
  std::string_view draft_prefix = {};
  std::vector<std::string_view> aliases = {};  // further model_types
  bool jax = false;                            // has an NNX tree
  bool jax_cut = true;                         // whose matrices are cut over tp
  std::string_view jax_norm = ".scale";
  std::string_view nested = {};  // key of config.json under which the text model's keys may stand
  std::string_view whole = {};   // architecture of the model of which this is the language part
  std::string_view embedding = "model.embed_tokens.weight";  // that a tied head shares
  LayerKeys layer_keys = {};
  std::vector<Quantised> quantised = {};
  // Names of modules and parameters in the order of registration, where siblings have another order than in most
  // families (flat_layout.cpp): each group of siblings that differs, whole.
  std::string_view modules = {};
};

inline constexpr std::string_view kEmbedding = "model.embed_tokens.weight", kHead = "lm_head.weight";

const Family& llama();
const Family& qwen2();
const Family& qwen3();
const Family& qwen3_moe();
const Family& deepseek_v3();
const Family& kimi_k2();
const Family& qwen3_next();
const Family& qwen3_5();
const Family& qwen3_5_moe();
const Family& gpt_oss();
const Family& glm4_moe();
const Family& gemma3();
const Family& gemma4();
const Family& nemotron_h();
const std::vector<const Family*>& families();

// Table fragments that several families share.
namespace rows {
std::vector<ConfigKey> dense_sizes();
Row embedding();
Row final_norm();
Row head();
Row input_norm(std::string_view where = kEveryLayer);
Row qkv(std::string_view when, bool bias, std::string_view where = kEveryLayer);
Row output_projection(std::string_view where = kEveryLayer);
Row output_bias(std::string_view when);
Row head_norm(std::string_view which, std::string_view where = kEveryLayer, std::string_view when = "");
Row post_attention_norm(std::string_view where);
Row gate_up(std::string_view where);
Row down(std::string_view where);
// Routers and experts as Qwen3-MoE names them.
Row router(std::string_view where = kMoeLayer);
Row expert_gate_up(std::string_view where = kMoeLayer);
Row expert_down(std::string_view where = kMoeLayer);
// What DeepSeek's draft layers and routers have and GLM's repeat.
Row correction_bias(std::string_view where);
std::vector<Row> shared_experts(std::string_view where);
std::vector<Row> draft_rows();
// A norm under the same name everywhere but in Megatron.
Row norm(std::string_view where, std::string_view name, std::string_view megatron, std::string_view local = "",
         std::string_view shape = "H");
// The rows of a family whose checkpoints may come in FP8: each row of matrices that these hold in codes, with codes'
// dtype when they do, and beside it the row of its blocks' scales, placed as its blocks are.
std::vector<Row> with_block_scales(std::vector<Row> rows);
// A row of matrices as the codes of its tensors, and the row of their scales. Neither has a place in Megatron or JAX.
Row codes_of(Row row);
Row scales_of(const Row& row, const BlockFormat& format);
// All of `parts`, in order.
std::vector<Row> joined(std::vector<std::vector<Row>> parts);
}  // namespace rows

}  // namespace refit::model
