// megatron: q, k and v interleaved per KV group and then cut evenly (through heads where tp passes the KV heads), gate
// and up cut each, vocabulary padded to vocab_multiple*tp, layers over pipeline stages and virtual chunks, experts
// whole over ep and by width over etp. Transformer Engine's names unless spec=local.
#include <numeric>

#include "model/sides/pipeline.h"
#include "model/sides/side.h"

namespace refit::model {
namespace {

constexpr std::string_view kDecoderLayers = "decoder.layers.{layer}.";

bool is_local(const Spec& spec) { return spec.given("spec") && spec.texts.find("spec")->second == "local"; }

// How a rank keeps its experts: "grouped" (weight{j}), "sequential" (a module each) or "stacked" (one array).
std::string_view experts_form(const Spec& spec) {
  const auto given = spec.texts.find("experts");
  return given != spec.texts.end() ? std::string_view(given->second) : is_local(spec) ? "sequential" : "grouped";
}

std::vector<SideRule> megatron_rules(const Spec& spec, const ModelConfig&) {
  using namespace op;
  const Op rows = cut(0, CutRule::kEven, "tp"), columns = cut(1, CutRule::kEven, "tp");
  const Op expert_rows = cut(0, CutRule::kEven, "moe_tp"), expert_columns = cut(1, CutRule::kEven, "moe_tp");
  std::vector<SideRule> rules{
      {Kind::kVocabulary, Per::kRow, {load(0), pad(0, "vocab_multiple*tp"), rows}},
      {Kind::kReplicated, Per::kRow, {load(0)}},
      {Kind::kQkv,
       Per::kRow,
       {load(0), view(0, "Hkv,qpg*hd"), load(1), view(0, "Hkv,hd"), load(2), view(0, "Hkv,hd"), interleave(0, 3),
        rows}},
      // Heads of a group, then their gates.
      {Kind::kGatedQkv,
       Per::kRow,
       {load(0), component(0, 0, "hd,hd", "Hkv,qpg"), load(0), component(0, 1, "hd,hd", "Hkv,qpg"), load(1),
        view(0, "Hkv,hd"), load(2), view(0, "Hkv,hd"), interleave(0, 4), rows}},
      {Kind::kColumn, Per::kRow, {load(0), rows}},
      {Kind::kRowParallel, Per::kRow, {load(0), columns}},
      {Kind::kGateUp, Per::kRow, {load(0), rows, load(1), rows, concat(0, 2)}},
      {Kind::kUp, Per::kRow, {load(0), rows}},
      {Kind::kMlpDown, Per::kRow, {load(0), columns}}};
  const bool stacked = experts_form(spec) == "stacked";
  const auto add = [&](Kind kind, Program one) {
    if (stacked) one.insert(one.end(), {stack(), cut(0, CutRule::kEven, "ep")});
    rules.push_back({kind, stacked ? Per::kStack : Per::kExpert, std::move(one)});
  };
  add(Kind::kExpertGateUp, {load(0), expert_rows, load(1), expert_rows, concat(0, 2)});
  add(Kind::kExpertUp, {load(0), expert_rows});
  add(Kind::kExpertDown, {load(0), expert_columns});
  return rules;
}

// Experts are named in their grouped form in the tables: "….experts.linear_fc1.weight{expert}".
std::string expert_name(std::string name, std::string_view form) {
  constexpr std::string_view kExpert = "{expert}", kExperts = ".experts.";
  if (form == "grouped" || !name.ends_with(kExpert)) return name;
  name.resize(name.size() - kExpert.size());
  if (form == "sequential") name.replace(name.find(kExperts), kExperts.size(), ".experts.local_experts.{expert}.");
  return name;
}

std::vector<std::string> megatron_names(const Spec& spec, const ModelConfig&, const Row& row, Per per) {
  const bool other = is_local(spec) && !row.megatron_local.empty();
  std::vector<std::string> out = names_of(row, other ? row.megatron_local : row.megatron, per);
  for (std::string& name : out) name = expert_name(std::move(name), experts_form(spec));
  return out;
}

// "tp(local)" is tp in modules that Transformer Engine would replicate.
// Ranks of one pipeline stage, twice: as the model's tp·cp·dp and as the experts' etp·ep·edp; the last varies fastest.
std::vector<std::vector<Mesh::Axis>> megatron_grids(const Spec& spec) {
  const std::int64_t pp = spec.number("pp"), tp = spec.number("tp"), cp = spec.number("cp"), dp = spec.number("dp"),
                     ep = spec.number("ep"), etp = spec.number("etp");
  return {{{"pp", pp}, {"dp", dp}, {"cp", cp}, {is_local(spec) ? "tp|tp(local)" : "tp", tp}},
          {{"pp", pp}, {"edp", tp * cp * dp / (ep * etp)}, {"ep", ep}, {"moe_tp", etp}}};
}

Status megatron_complete(Spec& spec) {
  REFIT_TRY(complete_pipeline(spec));
  const std::int64_t width = spec.number("tp") * spec.number("cp"), experts = spec.number("ep") * spec.number("etp");
  std::int64_t& dp = spec.numbers["dp"];
  if (dp == 0) {
    const std::int64_t least = experts / std::gcd(width, experts);
    dp = least;
    return {};
  }
  if (width * dp % experts != 0)
    return Error(Code::kInvalid, "megatron: tp*cp*dp = " + std::to_string(width * dp) +
                                     " is no multiple of etp*ep = " + std::to_string(experts) +
                                     " (dp=" + std::to_string(dp) + "; the least that fits is " +
                                     std::to_string(experts / std::gcd(width, experts)) + ")");
  return {};
}

// With a pipeline the embedding lies where it begins; its other users hold copies.
std::vector<TiedCopy> megatron_copies(const Spec& spec, const ModelConfig& config, const Pipeline& pipeline) {
  std::vector<TiedCopy> out;
  if (spec.number("pp") == 1) return out;
  if (config.flag("tied")) out.push_back({config.family->embedding, "output_layer.weight", pipeline.last});
  const bool begins = pipeline.drafts.stage == 0 && pipeline.drafts.chunk == 0;
  if (config.draft_layers() > 0 && !spec.given("draft") && !begins)
    out.push_back({config.family->embedding, "embedding.word_embeddings.weight", pipeline.drafts});
  return out;
}

Status megatron_check(const Spec& spec, const ModelConfig& config) {
  const std::int64_t tp = spec.number("tp"), ep = spec.number("ep"), etp = spec.number("etp");
  for (const Row& row : config.family->rows)
    if (row.where == "mtp0" && config.draft_layers() > 1 && !spec.given("draft"))
      return Error(Code::kUnsupported, "megatron: " + std::string(config.family->name) + " has one " +
                                           std::string(row.members[0].name) + " for all of its " +
                                           std::to_string(config.draft_layers()) +
                                           " draft layers, Megatron one for each; which it would be is not known")
          .at_tensor(std::string(row.members[0].name));
  REFIT_TRY(must_divide("megatron", config, "Hq", "tp", tp));
  if (config.has("Hkv")) {
    const std::int64_t kv = config.size("Hkv");
    if (tp > kv ? tp % kv != 0 : kv % tp != 0)
      return Error(Code::kInvalid, "megatron: num_key_value_heads " + std::to_string(kv) +
                                       " and tp=" + std::to_string(tp) + ": neither divides the other")
          .at_tensor(config.tensor_with("Hkv"));
    const auto qkv_rows = checked_mul(config.size("Hq") + 2 * kv, config.size("hd"));
    if (!qkv_rows) return Error(Code::kInvalid, "megatron: the rows of linear_qkv pass 2^63");
    if (Status even = must_divide(
            "megatron", "linear_qkv rows (num_attention_heads + 2*num_key_value_heads) * head_dim =", *qkv_rows, "tp",
            tp);
        !even.ok())
      return std::move(even).error().at_tensor(config.tensor_with("Hkv"));
  }
  if (config.has("G")) {
    REFIT_TRY(must_divide("megatron", config, "nh", "tp", tp));
    REFIT_TRY(must_divide("megatron", config, "G", "tp", tp));
  }
  if (config.has("Hk")) REFIT_TRY(must_divide("megatron", config, "Hk", "tp", tp));
  if (config.has("I") && config.has_dense()) REFIT_TRY(must_divide("megatron", config, "I", "tp", tp));
  if (!config.has_moe()) {
    if (ep == 1 && etp == 1 && !spec.given("experts")) return {};
    return Error(Code::kInvalid, "megatron: ep, etp and experts= need experts, and " +
                                     std::string(config.family->name) + " with this configuration has none");
  }
  for (const Row& row : config.family->rows)
    if (row.kind == Kind::kStacked && experts_form(spec) == "stacked")
      return Error(Code::kUnsupported, "megatron: experts=stacked is not built for family " +
                                           std::string(config.family->name) + ", whose checkpoints are input-major");
  REFIT_TRY(must_divide("megatron", config, "E", "ep", ep));
  return must_divide("megatron", config, "Im", "etp", etp);
}

}  // namespace

const Side& megatron_side() {
  static const Side side{.name = "megatron",
                         .names = Names::kMegatron,
                         .name_of = megatron_names,
                         .keys = {{"tp", 1},
                                  {"dp", 0},
                                  {"vocab_multiple", 128},
                                  {"pp", 1},
                                  {"vpp", 0},
                                  {"cp", 1},
                                  {"ep", 1},
                                  {"etp", 1},
                                  {"first", 0},
                                  {"last", 0},
                                  {"account", 1, "embedding|loss|both"},
                                  {"layout", 1, "of E t m L | ( ) *", true, canonical_pipeline},
                                  {"spec", 1, "te|local"},
                                  {"experts", 1, "grouped|sequential|stacked"}},
                         .grids = megatron_grids,
                         .rules = megatron_rules,
                         .check = megatron_check,
                         .complete = megatron_complete,
                         .pipeline = megatron_pipeline,
                         .decoder = kDecoderLayers,
                         .draft = "mtp.layers.{layer}.mtp_model_layer.",
                         .copies = megatron_copies};
  return side;
}

}  // namespace refit::model
