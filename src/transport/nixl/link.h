// Link: one reader's connection to one source's door. Lives over rounds.
#pragma once
#include <poll.h>

#include <functional>
#include <map>
#include <mutex>

#include "transport/common/net.h"
#include "transport/nixl/card.h"

namespace refit::transport::nixl {

// Loop-only, except hung_up().
class Link {
 public:
  using Told = std::function<void(const Result<bool>&)>;  // yes or no, or why there is no answer
  Link(Peer peer, std::int64_t stall_ns) : peer_(std::move(peer)), stall_ns_(stall_ns) {}
  const Peer& peer() const { return peer_; }

  // Connects where need be. Questions that are open when the link is lost are told so.
  void ask(MemoryEpoch epoch, std::int64_t now, Told told);
  // Where `watch`: what poll() should look at; -1: nothing.
  pollfd wanted() const;
  void move(short events, std::int64_t now);
  // Ends it when it owes an answer for too long. `since`: nothing before counts, this process stood still.
  void judge(std::int64_t now, std::int64_t since);
  // Tells all that is open; a later question connects anew.
  void lose(Error error);
  bool owes() const { return !open_.empty(); }
  // *thread-safe*: the source's end is closed, or there is no connection.
  bool hung_up() const;

  // What the reading agent knows of this source.
  std::uint64_t loaded_by = 0;  // the agent's generation; 0: nothing
  Hash128 loaded;
  std::string name;

 private:
  enum class State : std::uint8_t { kNone, kConnecting, kGreeting, kReady };
  struct Open {
    std::int64_t since_ns = 0;
    Told told;
  };
  Status connect();
  Status flush();
  Status take(std::int64_t now);
  Status reply(const Reply& reply);

  const Peer peer_;
  const std::int64_t stall_ns_;
  mutable std::mutex mutex_;  // of the descriptor's life
  Fd fd_;
  State state_ = State::kNone;
  Card card_;
  Bytes out_, in_;
  std::map<std::uint64_t, Open> open_;  // by number
  std::uint64_t next_ = 1;
};

}  // namespace refit::transport::nixl
