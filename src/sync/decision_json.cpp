#include "sync/decision_json.h"

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "files/files.h"
#include "sync/factory.h"

namespace refit::sync {
namespace {

nlohmann::json rows_json(const std::vector<Refusal>& rows) {
  nlohmann::json out = nlohmann::json::array();
  for (const Refusal& r : rows)
    out.push_back({{"row", r.row}, {"paths", r.paths}, {"reason", r.reason}, {"way_out", r.way_out}});
  return out;
}
nlohmann::json rows_json(const std::vector<Remark>& rows) {
  nlohmann::json out = nlohmann::json::array();
  for (const Remark& r : rows) out.push_back({{"row", r.row}, {"text", r.text}});
  return out;
}

nlohmann::json keys_json(const Config& config) {
  nlohmann::json keys = nlohmann::json::array();
  for (const KeyRow& row : config_rows(config))
    keys.push_back({{"path", row.path}, {"value", row.value}, {"origin", row.origin.text()}});
  return keys;
}

nlohmann::json options_json(const Config& c) {
  const bool sparse = c.refit_transport.value == "vllm_zmq_sparse";
  return {{"bucket_bytes", c.bucket_bytes.value},
          {"staging_bytes", c.staging_bytes.value},
          {"proof_every", c.proof_every.value},
          {"commit", c.commit.value},
          {"on_target_loss", c.on_target_loss.value},
          {"min_targets", c.min_targets.value},
          {"allow_cast", c.allow_cast.value},
          {"security_bulk", c.security_bulk.value},
          {"port_range", c.port_range.value.value_or("")},
          {"advertise_address", c.advertise_address.value.value_or("")},
          {"stall_timeout_s", c.stall_timeout_s.value},
          {"nixl_backend", c.nixl_backend_name.value},
          {"nixl_params", c.nixl_backend_init_params},
          {"nixl_release", c.nixl_release_after_refit.value},
          {"encoding", sparse ? c.sparse_encoding.value : "raw"}};
}

}  // namespace

std::string decision_json(const Config& config, const Decision& d) {
  nlohmann::json out{{"ok", d.allowed},
                     {"allowed", d.allowed},
                     {"available", d.available},
                     {"available_reason", d.available_reason},
                     {"mover", d.mover},
                     {"memory", d.memory},
                     {"row", d.row},
                     {"synchronizer", d.synchronizer},
                     {"transport", d.transport},
                     {"path", d.path},
                     {"backend", d.backend},
                     {"policy", d.policy},
                     {"algorithm", d.algorithm},
                     {"compat", config.compat.value},
                     {"shadow", {{"where", d.shadow}, {"why", d.shadow_why}}},
                     {"kv_scales", d.kv_scales},
                     {"gpu_share", nullptr},
                     {"gpu_share_rule", d.gpu_share_rule},
                     {"phases", d.phases},
                     {"needs", d.needs},
                     {"refusals", rows_json(d.refusals)},
                     {"lifted", rows_json(d.lifted)},
                     {"warnings", rows_json(d.warnings)},
                     {"not_judged", rows_json(d.not_judged)},
                     {"options", options_json(config)},
                     {"compare_only", config.compare_only.value},
                     {"unbuilt", unbuilt_keys(config)},
                     {"keys", keys_json(config)}};
  if (d.gpu_share) out["gpu_share"] = *d.gpu_share;
  return out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

ConfigResult load_config_here(const std::string& path, const std::string& text, std::span<const std::string> sets) {
  const std::string root = path.empty() ? "configuration" : path;  // as messages call a text without a file
  const ReadConfigFile read = [&](const std::string& file) -> Result<std::string> {
    if (path.empty() && file == root) return text;
    return files::read_text(file, kMaxConfigBytes);
  };
  const EnvLookup environment = [](const std::string& name) {
    const char* value = std::getenv(name.c_str());
    return value ? std::optional<std::string>(value) : std::nullopt;
  };
  return load_config(root, sets, read, environment);
}

}  // namespace refit::sync
