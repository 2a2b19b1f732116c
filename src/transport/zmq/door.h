// The door of a TCP listener: whose keys are let in. libzmq does the CURVE handshake and asks here (ZAP) whose key it
// is.
#pragma once
#include <map>
#include <memory>
#include <optional>

#include "transport/keys.h"

namespace refit::transport::zmq {

// *loop-only*.
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
  std::uint64_t refused() const { return refused_; }

 private:
  explicit Door(void* zap) : zap_(zap) {}
  bool answer();

  void* zap_ = nullptr;
  std::map<std::string, MemberName> admitted_;  // by public key, 32 raw bytes
  std::uint64_t refused_ = 0;
};

}  // namespace refit::transport::zmq
