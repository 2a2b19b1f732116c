#include "facade/inside.h"
#include "files/files.h"

namespace refit::api {
namespace {
std::string name_of(DType t) { return std::string(::refit::to_string(t)); }

HoldingInfo describe(const model::Holding& h, const model::Catalogue& catalogue, const model::RankLayout& rank) {
  const model::LogicalTensor& tensor = catalogue.tensors[h.tensor.value];
  HoldingInfo out;
  out.tensor = tensor.name;
  if (h.view != View::trivial(tensor.shape)) out.view = h.view.radices;
  for (const Interval& i : h.box) out.box.emplace_back(i.lo, i.hi);
  out.buffer = rank.buffers[h.buffer].name;
  out.offset = h.offset;
  out.strides = h.strides;
  out.dtype = name_of(h.dtype);
  return out;
}
}  // namespace

Layout Layout::from_model(const std::string& model, const std::string& spec) {
  return Inside::wrap(take(files::model_layout(model, spec)));
}
Layout Layout::from_config(const std::string& config_json, const std::string& spec) {
  return Inside::wrap(take(model::rule_layout(config_json, spec)));
}
Layout Layout::from_json(const std::string& text) { return Inside::wrap(take(model::read_layout(text))); }

std::string Layout::to_json() const { return impl_->layout->serialise(); }
std::string Layout::digest() const { return impl_->layout->digest().hex(); }
std::int64_t Layout::world() const { return impl_->layout->world(); }
std::int64_t Layout::instances() const { return impl_->layout->instances(); }

std::vector<TensorInfo> Layout::tensors() const {
  std::vector<TensorInfo> out;
  for (const model::LogicalTensor& t : impl_->layout->catalogue().tensors)
    out.push_back({t.name, t.shape, name_of(t.dtype)});
  return out;
}
std::vector<std::pair<std::string, std::string>> Layout::tied() const { return impl_->layout->catalogue().tied; }

RankInfo Layout::rank(std::uint32_t number) const {
  const model::RankLayout made = take(impl_->layout->expand(Rank(number)));
  RankInfo out{.rank = number, .host = made.host, .buffers = {}, .holdings = {}, .parameters = {}};
  for (const model::BufferSpec& b : made.buffers) out.buffers.push_back({b.name, b.bytes});
  for (const model::Holding& h : made.holdings) out.holdings.push_back(describe(h, impl_->layout->catalogue(), made));
  for (const model::Parameter& p : made.parameters)
    out.parameters.push_back({p.name, p.shape, name_of(p.dtype), made.buffers[p.buffer].name, p.offset});
  return out;
}

}  // namespace refit::api
