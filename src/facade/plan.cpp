#include "plan/plan.h"

#include "facade/inside.h"

namespace refit::api {

struct Plan::Impl {
  std::shared_ptr<const model::Layout> source, target;
  plan::Options options;
  PlanSummary summary;
};

Plan Plan::make(const Layout& source, const Layout& target, const PlanOptions& o) {
  auto impl = std::make_shared<Impl>();
  impl->source = Inside::of(source);
  impl->target = Inside::of(target);
  impl->options.bucket_bytes = o.bucket_bytes;
  impl->options.staging_bytes = o.staging_bytes;
  impl->options.files = o.list_unwanted;
  impl->options.values = plan::Values::kStages;  // as the agents of a job run them
  impl->options.allow_cast = o.allow_cast;
  const plan::World w = take(plan::make_world(*impl->source, *impl->target, impl->options));
  PlanSummary& s = impl->summary;
  s.id = w.id.hex();
  s.bytes_needed = w.bytes_needed;
  s.bytes_moved = w.bytes_moved;
  s.bytes_local = w.bytes_local;
  s.bound_bytes = w.bound_bytes;
  s.segments = w.segments;
  s.buckets = w.buckets;
  s.coverage = w.coverage;
  for (const plan::Link& l : w.links) s.links.push_back({l.from, l.to, l.bytes});
  s.by_host = w.by_host;
  s.hosts = w.hosts;
  s.unwanted = w.unwanted;
  return Plan(std::move(impl));
}

const PlanSummary& Plan::summary() const { return impl_->summary; }

std::string Plan::explain(const std::string& tensor) const {
  return take(plan::explain(*impl_->source, *impl_->target, impl_->options, tensor));
}

}  // namespace refit::api
