#include "sync/factory.h"

namespace refit::sync {
namespace {

struct NotDone {
  std::string_view path;
  bool asked;
};

std::string joined(const std::vector<std::string>& list) {
  std::string out;
  for (const std::string& item : list) out += (out.empty() ? "" : ", ") + item;
  return out;
}

// Where a listener listens says the caller; on which of its ports, and under which name it is known, the configuration.
Status lay_network(const Config& config, SyncOptions& base) {
  constexpr std::string_view kTcp = "tcp://";
  const bool asked = config.port_range.value || config.advertise_address.value;
  if (asked && !base.control_address.starts_with(kTcp))
    return Error(Code::kInvalid, std::string(config.port_range.value ? "refit.port_range" : "refit.advertise_address") +
                                     " says where the coordinator is reached over a network, but it listens on '" +
                                     base.control_address + "': leave the key out, or listen on tcp://");
  if (config.advertise_address.value) base.advertise_address = *config.advertise_address.value;
  if (!config.port_range.value) return {};
  const std::size_t bracket = base.control_address.rfind(']');
  const std::size_t colon = base.control_address.find(':', bracket == std::string::npos ? kTcp.size() : bracket);
  base.control_address = base.control_address.substr(0, colon) + ":" + *config.port_range.value;
  return {};
}

}  // namespace

std::vector<std::string> unbuilt_keys(const Config& config) {
  const NotDone not_done[] = {
      {"refit.serve_lagging", config.serve_lagging.value},
      {"refit.snapshot", config.snapshot.value},
      {"refit.shadow", config.shadow.value != "auto" && config.shadow.value != "host"},
      {"refit.security.bulk", config.security_bulk.value == "aes_gcm"},
      {"refit.compare_only", config.compare_only.value},
  };
  std::vector<std::string> paths;
  for (const NotDone& key : not_done)
    if (key.asked) paths.emplace_back(key.path);
  return paths;
}

Result<SyncOptions> options_from(const Config& config, SyncOptions base) {
  const std::vector<std::string> unbuilt = unbuilt_keys(config);
  if (!unbuilt.empty()) return Error(Code::kUnsupported, "not built yet; leave the default: " + joined(unbuilt));
  REFIT_TRY(lay_network(config, base));
  base.plan.bucket_bytes = config.bucket_bytes.value;
  base.plan.staging_bytes = config.staging_bytes.value;
  base.plan.allow_cast = config.allow_cast.value;
  base.proof_every = config.proof_every.value;
  base.barrier = config.commit.value == "barrier";
  base.on_target_loss = config.on_target_loss.value == "continue" ? OnTargetLoss::kContinue : OnTargetLoss::kFail;
  base.min_targets = static_cast<std::uint32_t>(config.min_targets.value);  // at most 1e9, by the reader
  base.stall_timeout_s = config.stall_timeout_s.value;
  if (config.refit_transport.value == "vllm_zmq_sparse") base.encoding = config.sparse_encoding.value;
  return base;
}

Error refusal_error(const Decision& decision) {
  std::string text;
  for (const Refusal& r : decision.refusals)
    text += (text.empty() ? "" : "; ") + r.row + ": " + r.reason + " [" + joined(r.paths) + "], way out: " + r.way_out;
  return Error(Code::kInvalid, "refused by " + text);
}

Result<std::unique_ptr<WeightSynchronizer>> create_weight_synchronizer(const Config& config, const Declared& declared,
                                                                       SyncOptions base,
                                                                       std::span<const std::string> movers,
                                                                       transport::Mover& control) {
  const Decision decision = decide(config, declared, movers, built_presets());
  if (!decision.allowed) return refusal_error(decision);
  if (!decision.available)
    return Error(Code::kUnsupported,
                 decision.synchronizer + " over " + decision.transport + ": " + decision.available_reason);
  REFIT_ASSIGN(SyncOptions options, options_from(config, std::move(base)));
  return make_synchronizer(std::move(options), control);
}

}  // namespace refit::sync
