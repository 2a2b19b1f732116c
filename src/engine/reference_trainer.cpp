#include "engine/reference_trainer.h"

#include <cstring>

#include "engine/walk.h"

namespace refit::engine {

namespace {
constexpr int kPadGarbage = 0x5a;  // pads must never be read; a recognisable value shows it when they are
}

Result<std::unique_ptr<ReferenceTrainer>> ReferenceTrainer::make(Env& env, std::shared_ptr<const model::Layout> layout,
                                                                 Rank rank, memory::Budget* budget) {
  std::unique_ptr<ReferenceTrainer> t(new ReferenceTrainer);
  REFIT_ASSIGN(t->rank_layout_, layout->expand(rank));
  t->layout_ = std::move(layout);
  for (const auto& [tensor, value] : t->layout_->values()) {
    REFIT_TRY(model::check_value(value, t->layout_->catalogue().tensors[tensor.value].dtype));
    t->values_.emplace(tensor.value, value);
  }
  // Wider storage holds the tensor's own values: a trainer whose values have more digits needs a permitted cast.
  for (const model::Holding& h : t->rank_layout_.holdings)
    if (h.dtype == DType::kF32 && t->layout_->catalogue().tensors[h.tensor.value].dtype == DType::kBF16)
      t->values_.emplace(h.tensor.value, "");
  for (const model::BufferSpec& b : t->rank_layout_.buffers) {
    REFIT_ASSIGN(memory::SharedRegion region, memory::SharedRegion::make(env, b.bytes, budget, "trainer weights"));
    if (b.bytes > 0) std::memset(region.data(), kPadGarbage, static_cast<std::size_t>(b.bytes));
    t->memory_.push_back(std::move(region));
  }
  for (const memory::SharedRegion& r : t->memory_)
    t->regions_.push_back({r.data(), r.bytes(), memory::Kind::kHostShared, &r});
  return t;
}

template <typename F>
Status ReferenceTrainer::each_run(bool read, F f) {
  std::vector<std::byte> logical;
  std::vector<float> stored;
  for (const model::Holding& h : rank_layout_.holdings) {
    const model::LogicalTensor& tensor = layout_->catalogue().tensors[h.tensor.value];
    const auto value = values_.find(h.tensor.value);
    Status failed;
    for_each_run(tensor, h, memory_[h.buffer].data(), [&](std::int64_t linear, std::byte* data, std::int64_t count) {
      if (!failed.ok()) return;
      if (value == values_.end()) {
        failed = f(tensor, h.dtype, linear, data, count);
        return;
      }
      const auto n = static_cast<std::size_t>(count);
      logical.resize(n * static_cast<std::size_t>(item_size(tensor.dtype)));
      stored.resize(n);
      if (read) {
        std::memcpy(stored.data(), data, n * sizeof(float));
        failed = model::undone_values(value->second, tensor.dtype, stored, logical.data());
      }
      if (failed.ok()) failed = f(tensor, tensor.dtype, linear, logical.data(), count);
      if (failed.ok()) failed = model::store_values(value->second, tensor.dtype, logical.data(), stored);
      std::memcpy(data, stored.data(), n * sizeof(float));
    });
    REFIT_TRY(failed);
  }
  return {};
}

Status ReferenceTrainer::load(const LogicalBytes& checkpoint) {
  guard();
  for (const model::Holding& h : rank_layout_.holdings) {
    const model::LogicalTensor& tensor = layout_->catalogue().tensors[h.tensor.value];
    if (h.dtype != tensor.dtype && !values_.contains(h.tensor.value))
      return Error(Code::kUnsupported, "the reference trainer keeps tensors in their own dtype").at_tensor(tensor.name);
    const std::int64_t bytes = elements(whole(tensor.shape)) * item_size(tensor.dtype);
    if (const auto held = static_cast<std::int64_t>(checkpoint(tensor.name).size()); held != bytes)
      return Error(Code::kMismatch, "the checkpoint has not the bytes of this tensor")
          .at_tensor(tensor.name)
          .amounts(bytes, held);
  }
  return each_run(false, [&](const model::LogicalTensor& t, DType dtype, std::int64_t linear, std::byte* data,
                             std::int64_t count) -> Status {
    const std::int64_t item = item_size(dtype);
    std::memcpy(data, checkpoint(t.name).data() + linear * item, static_cast<std::size_t>(count * item));
    return {};
  });
}

void ReferenceTrainer::randomise(std::uint64_t seed) {
  guard();
  const Status done = each_run(false, [&](const model::LogicalTensor& t, DType dtype, std::int64_t linear, std::byte* data,
                             std::int64_t count) -> Status {
    initial_values(seed, t.name, dtype, linear, data, count);
    return {};
  });
  REFIT_CHECK(done.ok());  // make() has looked at the transforms
}

void ReferenceTrainer::step(const StepRule& rule, std::int64_t number) {
  guard();
  const Status done = each_run(true, [&](const model::LogicalTensor& t, DType dtype, std::int64_t linear, std::byte* data,
                            std::int64_t count) -> Status {
    apply_step(rule, number, t.name, dtype, linear, data, count);
    return {};
  });
  REFIT_CHECK(done.ok());
}

}  // namespace refit::engine
