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
void ReferenceTrainer::each_run(F f) {
  for (const model::Holding& h : rank_layout_.holdings) {
    const model::LogicalTensor& tensor = layout_->catalogue().tensors[h.tensor.value];
    for_each_run(tensor, h, memory_[h.buffer].data(),
                 [&](std::int64_t linear, std::byte* data, std::int64_t count) { f(tensor, h, linear, data, count); });
  }
}

Status ReferenceTrainer::load(const LogicalBytes& checkpoint) {
  guard();
  for (const model::Holding& h : rank_layout_.holdings) {
    const model::LogicalTensor& tensor = layout_->catalogue().tensors[h.tensor.value];
    if (h.dtype != tensor.dtype)
      return Error(Code::kUnsupported, "the reference trainer keeps tensors in their own dtype").at_tensor(tensor.name);
    const std::int64_t item = item_size(tensor.dtype);
    const std::span<const std::byte> bytes = checkpoint(tensor.name);
    if (static_cast<std::int64_t>(bytes.size()) != elements(whole(tensor.shape)) * item)
      return Error(Code::kMismatch, "the checkpoint has not the bytes of this tensor")
          .at_tensor(tensor.name)
          .amounts(elements(whole(tensor.shape)) * item, static_cast<std::int64_t>(bytes.size()));
    for_each_run(tensor, h, memory_[h.buffer].data(), [&](std::int64_t linear, std::byte* data, std::int64_t count) {
      std::memcpy(data, bytes.data() + linear * item, static_cast<std::size_t>(count * item));
    });
  }
  return {};
}

void ReferenceTrainer::randomise(std::uint64_t seed) {
  guard();
  each_run([&](const model::LogicalTensor& t, const model::Holding& h, std::int64_t linear, std::byte* data,
               std::int64_t count) { initial_values(seed, t.name, h.dtype, linear, data, count); });
}

void ReferenceTrainer::step(const StepRule& rule, std::int64_t number) {
  guard();
  each_run([&](const model::LogicalTensor& t, const model::Holding& h, std::int64_t linear, std::byte* data,
               std::int64_t count) { apply_step(rule, number, t.name, h.dtype, linear, data, count); });
}

}  // namespace refit::engine
