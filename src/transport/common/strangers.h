// Connections of a TCP listener that have not said hello under an admitted key yet: what they may cost, and the cut
// when they cost more. libzmq accepts and handshakes; it tells of each connection by its descriptor's number only.
#pragma once
#include <map>
#include <string>

#include "core/core.h"

namespace refit::transport {

inline constexpr std::size_t kMaxStrangers = 128, kMaxStrangersPerAddress = 64;
inline constexpr std::int64_t kHandshakeNs = 10 * kNsPerSecond;
inline constexpr std::uint64_t kMaxStrangerBytes = 16 << 10;

// *thread-compatible*.
class Strangers {
 public:
  explicit Strangers(std::size_t most = kMaxStrangers, std::size_t most_per_address = kMaxStrangersPerAddress)
      : most_(most), most_per_address_(most_per_address) {}
  // Also for a connection whose peer was dropped. `own_port`: the listener's. A number that is another descriptor's by
  // now is left alone.
  void accepted(int fd, std::uint16_t own_port, std::int64_t now);
  // It was welcomed under an admitted key, or is gone.
  void forget(int fd) { strangers_.erase(fd); }
  // The listener is closed: what is held here would keep its connections open.
  void let_go() { strangers_.clear(); }
  // Cuts who is too slow or has sent too much.
  void watch(std::int64_t now);
  // It is being turned away: true the first time that this is said of it.
  bool turn_away(int fd);
  // Cuts a connection at once.
  void cut(int fd, std::uint16_t own_port);
  std::uint64_t cut() const { return cut_; }

 private:
  struct Stranger {
    Fd hold;  // a second descriptor of the same connection, so that the cut hits no other
    std::string address;
    std::int64_t since_ns = 0;
    bool turned_away = false;
  };
  void cut(const Stranger& one);

  const std::size_t most_, most_per_address_;
  std::map<int, Stranger> strangers_;  // by libzmq's descriptor
  std::uint64_t cut_ = 0;
};

}  // namespace refit::transport
