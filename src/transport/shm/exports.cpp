#include "transport/shm/exports.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

namespace refit::transport::shm {
namespace {

Result<Exports::Shared> duplicate(const Fd& fd, std::int64_t bytes) {
  Fd copy(::fcntl(fd.get(), F_DUPFD_CLOEXEC, 0));
  if (!copy.valid())
    return Error(Code::kExhausted, std::string("cannot duplicate a descriptor: ") + std::strerror(errno));
  return Exports::Shared{std::move(copy), bytes};
}

}  // namespace

Result<std::unique_ptr<Exports>> Exports::make(Env& env) {
  auto out = std::make_unique<Exports>();
  REFIT_ASSIGN(out->page_, memory::SharedRegion::make(env, kControlBytes, nullptr, "refit-control"));
  store_word(out->page_.data(), 0, kControlMark);
  return out;
}

Result<std::uint64_t> Exports::number_of(const memory::SharedRegion& region) {
  struct stat st {};
  if (::fstat(region.fd(), &st) != 0)
    return Error(Code::kInvalid, std::string("cannot stat shared memory: ") + std::strerror(errno));
  for (const auto& [number, file] : files_)
    if (file.device == st.st_dev && file.inode == st.st_ino) return number;
  REFIT_ASSIGN(Fd fd, region.export_fd());
  const std::uint64_t number = next_file_++;
  files_.emplace(number, File{st.st_dev, st.st_ino, std::move(fd), region.bytes()});
  return number;
}

Result<LentRegion> Exports::describe(const memory::RegionRef& region, std::size_t index) {
  const std::string which = "region " + std::to_string(index);
  if (region.bytes == 0) return LentRegion{};
  if (region.shared == nullptr)
    return Error(Code::kUnsupported,
                 which +
                     " is private memory, which shm cannot lend: copy it into a SharedRegion (snapshot) and lend that")
        .amounts(region.bytes, 0);
  if (!memory::contains(*region.shared, region.data, region.bytes))
    return Error(Code::kInvalid, which + " lies outside its shared memory")
        .amounts(region.bytes, region.shared->bytes());
  REFIT_ASSIGN(const std::uint64_t number, number_of(*region.shared));
  return LentRegion{number, region.shared->bytes(), region.data - region.shared->data(), region.bytes};
}

Result<std::pair<Exports::Lend, std::vector<LentRegion>>> Exports::lend(std::span<const memory::RegionRef> regions) {
  const std::lock_guard lock(mutex_);
  if (regions.size() > kMaxRegions)
    return Error(Code::kInvalid, "too many regions to lend: " + std::to_string(regions.size()) + ", at most " +
                                     std::to_string(kMaxRegions));
  Lend lend;
  while (lend.slot < kSlots && lends_.contains(lend.slot)) ++lend.slot;
  if (lend.slot == kSlots)
    return Error(Code::kExhausted, "all " + std::to_string(kSlots) + " lends of this process are open");
  std::vector<LentRegion> described;
  described.reserve(regions.size());
  for (std::size_t i = 0; i < regions.size(); ++i) {
    REFIT_ASSIGN(described.emplace_back(), describe(regions[i], i));
    if (described.back().file != 0) lend.files.insert(described.back().file);
  }
  lend.epoch = MemoryEpoch(next_epoch_++);
  lends_[lend.slot] = lend.files;
  drop_unused();
  store_word(page_.data(), slot_word(lend.slot), lend.epoch.value);
  return std::pair{lend, std::move(described)};
}

void Exports::drop_unused() {
  std::erase_if(files_, [&](const auto& entry) {
    for (const auto& [slot, used] : lends_)
      if (used.contains(entry.first)) return false;
    return true;
  });
}

void Exports::revoke_slot(std::uint32_t slot) {
  // Epochs are never reused, so a slot's next owner cannot revive an old descriptor.
  store_word(page_.data(), slot_word(slot), next_epoch_++);
}

void Exports::revoke(const Lend& lend) {
  const std::lock_guard lock(mutex_);
  if (lends_.erase(lend.slot) != 0) revoke_slot(lend.slot);
}

void Exports::revoke_all() {
  const std::lock_guard lock(mutex_);
  for (const auto& [slot, files] : lends_) revoke_slot(slot);
  lends_.clear();
  files_.clear();
}

Result<Exports::Shared> Exports::control() const {
  const std::lock_guard lock(mutex_);
  REFIT_ASSIGN(Fd fd, page_.export_fd());
  return Shared{std::move(fd), page_.bytes()};
}

Result<Exports::Shared> Exports::file(std::uint64_t number) const {
  const std::lock_guard lock(mutex_);
  const auto it = files_.find(number);
  if (it == files_.end()) return Error(Code::kMismatch, "no such file");
  return duplicate(it->second.fd, it->second.bytes);
}

}  // namespace refit::transport::shm
