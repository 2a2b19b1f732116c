// The door of a TCP listener: who is let in, and what may be spent on who has not proven a key yet. libzmq does the
// CURVE handshake and asks here (ZAP) whose key it is; it also tells of each accepted connection, which is cut when
// there are too many of them, or when one sends too much or takes too long before it has said hello.
#pragma once
#include <atomic>
#include <map>
#include <memory>

#include "transport/keys.h"

namespace refit::transport::zmq {

// Before a connection has said its first word under an admitted key.
inline constexpr std::size_t kMaxUnproven = 128, kMaxUnprovenPerAddress = 64;
inline constexpr std::int64_t kHandshakeNs = 10 * kNsPerSecond;
inline constexpr std::uint64_t kMaxUnprovenBytes = 64 << 10;

// *loop-only*, except refused().
class Door {
 public:
  // Before the listener is bound: where nobody answers, this libzmq lets everybody in. (Such a peer would have no name,
  // and the lane takes nothing from one.)
  static Result<std::unique_ptr<Door>> open(void* context, const ControlKeys& keys);
  ~Door();
  void* socket() const { return zap_; }  // readable: call answer_all()
  void answer_all();
  // The identity that a message carries; none for what the door did not name.
  std::optional<MemberName> who(const char* user) const;

  void accepted(int fd, std::uint16_t own_port, std::int64_t now);
  void proven(int fd);  // a message came in under an admitted key
  void closed(int fd);
  void watch(std::int64_t now);
  std::uint64_t refused() const { return refused_.load(); }

 private:
  struct Unproven {
    Fd hold;  // a second descriptor of the same connection: the number alone may be another one's by now
    std::string address;
    std::int64_t since_ns = 0;
  };
  explicit Door(void* zap) : zap_(zap) {}
  bool answer();
  void cut(const Unproven& one);

  void* zap_ = nullptr;
  std::map<std::string, MemberName> admitted_;  // by public key, 32 raw bytes
  std::map<int, Unproven> unproven_;            // by libzmq's descriptor
  std::atomic<std::uint64_t> refused_{0};
};

}  // namespace refit::transport::zmq
