#include "transport/common/staging.h"

namespace refit::transport {
namespace {
constexpr std::int64_t kAlign = 4096;
std::int64_t rounded(std::int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }
}  // namespace

Staging::Slot::~Slot() {
  if (owner_) owner_->give(offset_);
}

Staging::Slot& Staging::Slot::operator=(Slot&& o) noexcept {
  if (this == &o) return *this;
  if (owner_) owner_->give(offset_);
  owner_ = std::move(o.owner_);
  offset_ = o.offset_;
  bytes_ = o.bytes_;
  data_ = o.data_;
  return *this;
}

Status Staging::reserve(std::int64_t want) {
  const std::lock_guard lock(mutex_);
  const std::int64_t size = rounded(std::min(want, limit_));
  if (size <= arena_.bytes()) return {};
  if (!used_.empty())
    return Error(Code::kBusy, "staging cannot grow while leases of the last round are held")
        .amounts(size, arena_.bytes());
  arena_ = {};
  REFIT_ASSIGN(arena_, memory::Arena::make(size, budget_, "staging"));
  return {};
}

bool Staging::idle() const {
  const std::lock_guard lock(mutex_);
  return used_.empty();
}

std::span<std::byte> Staging::whole() const {
  const std::lock_guard lock(mutex_);
  return {arena_.data(), static_cast<std::size_t>(arena_.bytes())};
}

std::optional<Staging::Slot> Staging::take(std::int64_t bytes) {
  const std::lock_guard lock(mutex_);
  if (bytes == 0) return Slot();
  std::int64_t at = 0;
  for (const auto& [offset, size] : used_) {
    if (offset - at >= bytes) break;
    at = rounded(offset + size);
  }
  if (arena_.bytes() - at < bytes) return std::nullopt;
  used_.emplace(at, bytes);
  return Slot(shared_from_this(), at, bytes, arena_.data() + at);
}

void Staging::give(std::int64_t offset) {
  {
    const std::lock_guard lock(mutex_);
    used_.erase(offset);
  }
  freed_->raise();
}

}  // namespace refit::transport
