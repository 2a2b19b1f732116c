// What a follower keeps over restarts in a directory of its own: how far it came (the high-water mark), whom it
// believes, and the mirror's bytes, each chunk of which proves itself.
#pragma once
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "store/history.h"

namespace refit::store {

struct FollowMark {
  Lineage lineage;
  std::uint64_t number = 0;  // newest version that was served
  Trust trust;
  friend bool operator==(const FollowMark& a, const FollowMark& b) {
    return a.lineage == b.lineage && a.number == b.number && a.trust.key == b.trust.key &&
           a.trust.pinned == b.trust.pinned;
  }
};
Bytes write_mark(const FollowMark& mark);
Result<FollowMark> read_mark(View bytes);

// One process at a time has it. *thread-compatible*.
class FollowState {
 public:
  // Makes the directory where it is missing. Errors: kBusy when another process has it, kCorrupt for a damaged mark.
  static Result<FollowState> open(const std::string& directory);
  FollowState(FollowState&&) noexcept;
  FollowState& operator=(FollowState&&) = delete;
  ~FollowState();
  const std::optional<FollowMark>& mark() const { return mark_; }
  Status save(const FollowMark& mark);  // durable when it returns
  // Maps `bytes` of the mirror, as an earlier process left them. Errors: kExhausted when the disk lacks the room.
  Result<std::span<std::byte>> mirror(std::int64_t bytes);

 private:
  FollowState() = default;
  std::string directory_;
  std::unique_ptr<ObjectStore> files_;
  Fd lock_;
  std::optional<FollowMark> mark_;
  std::byte* mapped_ = nullptr;
  std::size_t mapped_bytes_ = 0;
};

}  // namespace refit::store
