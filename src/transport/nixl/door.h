// Door: the source's end of the small connections over which readers learn whether it lives and a lend is still open.
// The mover's loop owns it and waits on its descriptors.
#pragma once
#include <poll.h>

#include <atomic>
#include <list>
#include <vector>

#include "transport/common/net.h"
#include "transport/nixl/exports.h"

namespace refit::transport::nixl {

// *thread-compatible*, except the counters.
class Door {
 public:
  // Listens; the card says where.
  static Result<std::unique_ptr<Door>> open(const MoverOptions& options);
  const Card& card() const { return card_; }
  void add_to(std::vector<pollfd>& polled, std::int64_t now) const;
  // `polled`: what add_to() added, with what poll() found.
  void serve(std::span<const pollfd> polled, const Exports& exports, std::int64_t now);
  // Nobody is answered any more.
  void close();
  std::uint64_t foreign() const { return foreign_.load(); }
  std::uint64_t bad() const { return bad_.load(); }

 private:
  struct Visitor {
    Fd fd;
    std::int64_t since_ns = 0;
    bool known = false;
    Bytes have;
  };
  void accept_all(std::int64_t now);
  bool serve(Visitor& v, const Exports& exports);
  bool answer(Visitor& v, std::span<const std::byte> message, const Exports& exports);

  Card card_;
  Fd listener_;
  std::list<Visitor> visitors_;
  std::atomic<std::uint64_t> foreign_{0}, bad_{0};
  std::int64_t stall_ns_ = 0;
  std::int64_t rests_until_ns_ = 0;  // no visitor is let in before
};

}  // namespace refit::transport::nixl
