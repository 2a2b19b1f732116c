#include "transport/zmq/door.h"

#include <zmq.h>

#include <algorithm>
#include <array>
#include <vector>

namespace refit::transport::zmq {
namespace {

constexpr std::size_t kKeyBytes = 32;
constexpr std::size_t kMaxZapFrame = 512;

bool send_frame(void* socket, std::string_view text, bool more) {
  return zmq_send(socket, text.data(), text.size(), ZMQ_DONTWAIT | (more ? ZMQ_SNDMORE : 0)) >= 0;
}

}  // namespace

Result<std::unique_ptr<Door>> Door::open(void* context, const ControlKeys& keys) {
  void* zap = zmq_socket(context, ZMQ_REP);
  if (zap == nullptr) return Error(Code::kExhausted, std::string("cannot make a socket: ") + zmq_strerror(zmq_errno()));
  std::unique_ptr<Door> door(new Door(zap));
  const int none = 0;
  if (zmq_setsockopt(zap, ZMQ_LINGER, &none, sizeof none) != 0 || zmq_bind(zap, "inproc://zeromq.zap.01") != 0)
    return Error(Code::kInternal, std::string("cannot guard the listener: ") + zmq_strerror(zmq_errno()));
  for (const Admitted& a : keys.admitted) {
    std::array<std::uint8_t, kKeyBytes> raw{};
    if (zmq_z85_decode(raw.data(), a.public_key.c_str()) == nullptr)
      return Error(Code::kInvalid, "the key of " + a.name.to_string() + " is not Z85");
    door->admitted_.emplace(std::string(raw.begin(), raw.end()), a.name);
  }
  return door;
}

Door::~Door() { zmq_close(zap_); }

void Door::answer_all() {
  while (answer()) {
  }
}

// One question of libzmq (ZeroMQ RFC 27): version, request, domain, address, identity, mechanism, credentials …
bool Door::answer() {
  std::vector<std::string> frames;
  int more = 1;
  while (more != 0) {
    zmq_msg_t message;
    zmq_msg_init(&message);
    if (zmq_msg_recv(&message, zap_, ZMQ_DONTWAIT) < 0) {
      zmq_msg_close(&message);
      return false;
    }
    const std::size_t size = std::min(zmq_msg_size(&message), kMaxZapFrame);
    frames.emplace_back(static_cast<const char*>(zmq_msg_data(&message)), size);
    more = zmq_msg_more(&message);
    zmq_msg_close(&message);
  }
  const bool curve = frames.size() == 7 && frames[0] == "1.0" && frames[5] == "CURVE" && frames[6].size() == kKeyBytes;
  const auto found = curve ? admitted_.find(frames[6]) : admitted_.end();
  const bool in = found != admitted_.end();
  if (!in) ++refused_;
  const std::string user = in ? found->second.to_string() : "";
  // A REP socket that lost its peer in between drops the answer by itself.
  (void)(send_frame(zap_, "1.0", true) && send_frame(zap_, frames.size() > 1 ? frames[1] : "", true) &&
         send_frame(zap_, in ? "200" : "400", true) && send_frame(zap_, in ? "" : "key not admitted", true) &&
         send_frame(zap_, user, true) && send_frame(zap_, "", false));
  return true;
}

std::optional<MemberName> Door::who(const char* user) const {
  return user == nullptr ? std::nullopt : MemberName::parse(user);
}

}  // namespace refit::transport::zmq
