#include "refit/decision.h"

#include <algorithm>

#include "facade/inside.h"
#include "sync/sync.h"
#include "transport/transport.h"

namespace refit::api {

struct Decision::Impl {
  sync::Config config;
  sync::Decision decision;
};

Decision::Decision(const DecisionRequest& request) {
  sync::ConfigResult loaded = sync::load_config_here(request.path, request.text, request.sets);
  if (!loaded.ok()) {
    std::string all;
    for (const InnerError& e : loaded.errors) all += (all.empty() ? "" : "; ") + e.message;
    throw Error(Code::kInvalid, all);
  }
  sync::Declared declared;
  if (!request.algorithm.empty()) declared.algorithm = request.algorithm;
  if (request.max_colocated_worker_groups > 0)
    declared.max_colocated_worker_groups = request.max_colocated_worker_groups;
  sync::Decision decision = sync::decide(loaded.config, declared, transport::mover_names(), sync::built_presets());
  impl_ = std::make_shared<const Impl>(Impl{std::move(loaded.config), std::move(decision)});
}

std::string Decision::json() const { return sync::decision_json(impl_->config, impl_->decision); }

std::string Decision::judge_kv_scales(bool any) const {
  constexpr const char* kNames[] = {"none", "carried", "ignored", "refused"};
  return kNames[static_cast<int>(sync::judge_kv_scales(impl_->config, impl_->decision, any))];
}

struct Phases::Impl {
  std::vector<sync::PhaseRow> table;
  sync::LifecycleState state;
};

Phases::Phases(const Decision& decision) : impl_(std::make_unique<Impl>()) {
  const auto& [config, made] = *decision.impl_;
  const auto rows = sync::route_rows();
  const auto row = std::ranges::find(rows, made.row, &sync::RouteRow::id);
  if (row == rows.end()) throw Error(Code::kInvalid, "the configuration has no row of the menu: it has no phases");
  sync::Backend backend = sync::Backend::kVllm;
  for (const sync::Backend b : {sync::Backend::kSglang, sync::Backend::kMegatron})
    if (made.backend == sync::to_string(b)) backend = b;
  impl_->table = sync::lifecycle(sync::lifecycle_facts(config, row->route, backend));
}
Phases::~Phases() = default;

std::optional<std::string> Phases::running() const {
  const auto phase = sync::running(impl_->table, impl_->state);
  return phase ? std::optional(std::string(sync::to_string(*phase))) : std::nullopt;
}

void Phases::ended(bool well) {
  const auto why = well ? std::optional<InnerError>() : InnerError(InnerCode::kCancelled, "failed");
  impl_->state = sync::step(impl_->table, std::move(impl_->state), why);
}

std::optional<std::string> Phases::failed() const {
  if (!impl_->state.first) return std::nullopt;
  return std::string(sync::to_string(impl_->state.failed_at));
}

}  // namespace refit::api
