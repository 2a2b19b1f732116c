// Files that people and other programs write: configurations, layouts, checkpoints' headers, model configurations.
#include "files/safetensors.h"
#include "fuzz/fuzz.h"
#include "model/model.h"
#include "sync/config.h"
#include "sync/config_tree.h"
#include "sync/host.h"

namespace refit::fuzz {
namespace {

bool yaml(View in) {
  const auto tree = sync::parse_yaml(text_of(in), "fuzz.yaml");
  if (!tree.ok()) return false;
  const auto read = sync::read_config(*tree, [](const std::string&) { return std::optional<std::string>(); });
  for (const Error& e : read.errors) REFIT_FUZZ_CHECK(!e.message.empty());
  if (read.ok()) REFIT_FUZZ_CHECK(!sync::config_rows(read.config).empty());
  return true;
}

bool config_path(View in) {
  const auto read = sync::parse_path(text_of(in));
  if (!read.ok()) return false;
  // The one thing that the notation cannot quote.
  for (const std::string& segment : *read)
    if (segment.find("\"]") != std::string::npos) return true;
  const auto again = sync::parse_path(sync::to_string(*read));
  REFIT_FUZZ_CHECK(again.ok() && *again == *read);
  return true;
}

bool job_card(View in) { return sync::parse_card(text_of(in)).ok(); }

bool safetensors(View in) {
  const auto read = files::parse_safetensors(in);
  if (!read.ok()) return false;
  const auto data = std::ssize(in) - read->data_offset;
  for (const files::TensorEntry& t : read->tensors)
    REFIT_FUZZ_CHECK(t.offset >= 0 && t.bytes >= 0 && t.offset <= data && t.bytes <= data - t.offset);
  return true;
}

bool layout(View in) {
  const auto read = model::read_layout(text_of(in));
  if (!read.ok()) return false;
  const std::string text = (*read)->serialise();
  const auto again = model::read_layout(text);
  REFIT_FUZZ_CHECK(again.ok() && (*again)->serialise() == text);
  return true;
}

// A SPEC in the first line, a config.json behind it.
bool rules(View in) {
  const std::string text = text_of(in);
  const std::size_t line = text.find('\n');
  if (line == std::string::npos) return false;
  return model::rule_layout(text.substr(line + 1), text.substr(0, line)).ok();
}

constexpr const char* kLlama =
    R"({"architectures":["LlamaForCausalLM"],"model_type":"llama","hidden_size":64,"intermediate_size":96,"num_hidden_layers":2,)"
    R"("num_attention_heads":4,"num_key_value_heads":2,"vocab_size":100,"torch_dtype":"bfloat16","rms_norm_eps":1e-5,)"
    R"("tie_word_embeddings":false,"max_position_embeddings":128,"rope_theta":10000.0,"hidden_act":"silu"})";
constexpr const char* kMoe =
    R"({"architectures":["Qwen3MoeForCausalLM"],"model_type":"qwen3_moe","hidden_size":64,"intermediate_size":96,)"
    R"("moe_intermediate_size":32,"num_experts":4,"num_experts_per_tok":2,"num_hidden_layers":2,"num_attention_heads":4,)"
    R"("num_key_value_heads":2,"head_dim":16,"vocab_size":96,"torch_dtype":"bfloat16","decoder_sparse_step":1,"mlp_only_layers":[],)"
    R"("norm_topk_prob":true,"tie_word_embeddings":false,"rms_norm_eps":1e-6,"hidden_act":"silu"})";

std::vector<Bytes> rule_texts() {
  std::vector<Bytes> out;
  for (const char* spec : {"hf", "fsdp=2,tp=2", "megatron:tp=2,pp=2", "vllm:tp=2,replicas=2", "sglang:tp=4", "tp=2"})
    out.push_back(bytes_of(std::string(spec) + "\n" + kLlama));
  for (const char* spec : {"fsdp=2,naming=fused", "megatron:tp=2,pp=2,ep=2,first=1", "vllm:tp=2,ep=2"})
    out.push_back(bytes_of(std::string(spec) + "\n" + kMoe));
  return out;
}

std::vector<Bytes> layouts() {
  const std::string explicit_one =
      R"({"tensors":{"w":{"shape":[4,6],"dtype":"bf16"},"b":{"shape":[],"dtype":"f32"}},"ranks":[{"rank":0,"host":"a",)"
      R"("buffers":{"x":{"bytes":64,"fill":0}},"holdings":[{"tensor":"w","box":[[0,4],[0,6]],"buffer":"x","offset":0,"strides":[12,2]},)"
      R"({"tensor":"b","box":[],"buffer":"x","offset":48,"strides":[]}]}],"tied":[]})";
  const std::string view =
      R"({"tensors":{"w":{"shape":[4,6],"dtype":"bf16"}},"ranks":[{"rank":0,"buffers":{"x":{"bytes":48}},)"
      R"("holdings":[{"tensor":"w","view":[[2,2],[6]],"box":[[0,2],[0,2],[0,6]],"buffer":"x","offset":0,"strides":[24,12,2]}]}]})";
  std::vector<Bytes> out{bytes_of(explicit_one), bytes_of(view)};
  for (const char* spec : {"fsdp=2", "vllm:tp=2"}) {
    const auto made = model::rule_layout(kLlama, spec);
    REFIT_FUZZ_CHECK(made.ok());
    out.push_back(bytes_of((*made)->serialise()));
  }
  return out;
}

std::vector<Bytes> checkpoints() {
  const std::string head =
      R"({"__metadata__":{"format":"pt"},"a":{"dtype":"BF16","shape":[2,2],"data_offsets":[0,8]},"b":{"dtype":"F8_E4M3","shape":[3],"data_offsets":[8,11]}})";
  Bytes out(8);
  put_little(out, 0, head.size());
  const Bytes text = bytes_of(head);
  out.insert(out.end(), text.begin(), text.end());
  out.resize(out.size() + 11);
  return {out};
}

}  // namespace

std::vector<Target> text_targets() {
  return {{"yaml", yaml, [] { return files(REFIT_CONFIG_CASES, ".yaml"); }},
          {"config_path", config_path,
           [] {
             return std::vector<Bytes>{bytes_of("policy.generation.refit_cfg.\"a.b:C\".x"), bytes_of("refit.compat")};
           }},
          {"job_card", job_card,
           [] {
             return std::vector<Bytes>{bytes_of(sync::write_card({{1, 2}, {}, "tcp", 1 << 20, false, {}}))};
           }},
          {"safetensors", safetensors, checkpoints},
          {"layout", layout, layouts},
          {"rules", rules, rule_texts}};
}

}  // namespace refit::fuzz
