// Link: one reader's connection to one source, with the maps it got over it. Lives as long as the mover, over rounds.
#pragma once
#include <map>
#include <memory>
#include <mutex>

#include "transport/common/sys.h"
#include "transport/shm/card.h"

namespace refit::transport::shm {

using FileMap = std::shared_ptr<const memory::MappedRegion>;  // shared by the link and the leases that view it

// *thread-safe*; calls take turns within their deadlines.
class Link {
 public:
  Link(Env& env, std::string runtime_dir, Peer peer)
      : env_(env), runtime_dir_(std::move(runtime_dir)), peer_(std::move(peer)) {}
  const Peer& peer() const { return peer_; }

  // Asks whether the peer is there.
  Status ping(Deadline deadline, const Wake& wake);
  // Connects if need be and maps the files that `regions` lie in; forgets files that they do not name. After kTimeout
  // the same call goes on where it was. Errors name the peer: kPeerLost, kTimeout, kMismatch, kCorrupt, kCancelled
  // (woken).
  Result<std::map<std::uint64_t, FileMap>> maps(std::span<const LentRegion> regions, Deadline deadline,
                                                const Wake& wake);
  // The slot's present epoch. kPeerLost when the source's process is gone.
  Result<MemoryEpoch> epoch(std::uint32_t slot);

 private:
  Status connect(Deadline deadline);
  Result<std::pair<Reply, Fd>> call(Ask ask, std::uint64_t file, Deadline deadline, const Wake& wake);
  Status send_request(const Request& request);
  Status receive_some();
  Status map_control(Deadline deadline, const Wake& wake);
  Result<FileMap> map_file(const LentRegion& region, Deadline deadline, const Wake& wake);
  Result<std::unique_lock<std::mutex>> turn(Deadline deadline);
  bool hung_up() const;
  Error lost();
  Error named(Error error) const { return std::move(error).at_peer(peer_.name); }

  Env& env_;
  const std::string runtime_dir_;
  const Peer peer_;
  std::mutex mutex_;
  Fd socket_;
  Card card_;
  std::shared_ptr<const memory::MappedRegion> control_;
  std::map<std::uint64_t, FileMap> files_;
  // A question whose answer has not come in full.
  bool asked_ = false;
  Ask ask_ = Ask::kPing;
  std::uint64_t ask_file_ = 0;
  std::size_t have_ = 0;
  std::array<std::byte, kReplyBytes> reply_{};
  Fd reply_fd_;
};

}  // namespace refit::transport::shm
