#include "transport/zmq_sparse/socket.h"

#include <zmq.h>

#include <cstring>
#include <utility>

#include "transport/zmq_sparse/card.h"

namespace refit::transport::zmq_sparse {
namespace {

constexpr std::size_t kKeyText = 41;  // with its NUL
constexpr int kLingerMs = 200;        // an end that was sent may still leave
constexpr int kQueue = 64;            // messages; chunks are bounded by credit
// A listener's replies are small and bounded by credit: a few for each bucket that is offered or under way. Who lets
// more gather reads none of them, and is cut off.
constexpr int kReplies = 1024;
constexpr int kBacklog = 512;  // all ranks of a job connect at once
constexpr int kHandshakeMs = 5000;
constexpr int kConnectMs = 10'000;

Error failed(const std::string& what) {
  return {Code::kExhausted, "zmq_sparse: cannot " + what + ": " + zmq_strerror(zmq_errno())};
}

template <typename T>
bool set(void* socket, int option, const T& value) {
  return zmq_setsockopt(socket, option, &value, sizeof value) == 0;
}
bool set_text(void* socket, int option, const std::string& value) {
  return zmq_setsockopt(socket, option, value.c_str(), value.size()) == 0;
}

bool common(void* socket, std::size_t most_bytes) {
  return set(socket, ZMQ_LINGER, kLingerMs) && set(socket, ZMQ_SNDHWM, kQueue) && set(socket, ZMQ_RCVHWM, kQueue) &&
         set(socket, ZMQ_IPV6, 1) && set(socket, ZMQ_MAXMSGSIZE, static_cast<std::int64_t>(most_bytes)) &&
         set(socket, ZMQ_HANDSHAKE_IVL, kHandshakeMs);
}

std::string at_port(const std::string& host, std::uint16_t port) {
  const std::string name = host.find(':') == std::string::npos ? host : "[" + host + "]";
  return "tcp://" + name + ":" + (port == 0 ? std::string("*") : std::to_string(port));
}

class Part {
 public:
  Part() { zmq_msg_init(&message_); }
  ~Part() { zmq_msg_close(&message_); }
  Part(const Part&) = delete;
  Part& operator=(const Part&) = delete;
  bool receive(void* socket) { return zmq_msg_recv(&message_, socket, ZMQ_DONTWAIT) >= 0; }
  bool more() { return zmq_msg_more(&message_) != 0; }
  int descriptor() { return zmq_msg_get(&message_, ZMQ_SRCFD); }
  Bytes bytes() {
    const auto* first = static_cast<const std::byte*>(zmq_msg_data(&message_));
    return {first, first + zmq_msg_size(&message_)};
  }

 private:
  zmq_msg_t message_;
};

}  // namespace

Result<CurveKeys> fresh_keys() {
  char open[kKeyText] = {}, secret[kKeyText] = {};
  if (zmq_has("curve") == 0 || zmq_curve_keypair(open, secret) != 0)
    return Error(Code::kUnsupported,
                 "zmq_sparse: this libzmq has no CURVE; refit.security.bulk: none must be spelled out to do without");
  return CurveKeys{open, secret};
}

std::string key_text(std::span<const std::byte> raw) {
  char text[kKeyText] = {};
  if (raw.size() != kKeyBytes ||
      zmq_z85_encode(text, reinterpret_cast<const std::uint8_t*>(raw.data()), raw.size()) == nullptr)
    return {};
  return text;
}

Bytes key_bytes(const std::string& text) {
  Bytes out(kKeyBytes);
  if (zmq_z85_decode(reinterpret_cast<std::uint8_t*>(out.data()), text.c_str()) == nullptr) return {};
  return out;
}

Result<std::shared_ptr<Context>> Context::make() {
  void* context = zmq_ctx_new();
  if (context == nullptr) return failed("make a context");
  return std::shared_ptr<Context>(new Context(context));
}
Context::~Context() { zmq_ctx_term(context_); }

Socket::Socket(Socket&& o) noexcept : socket_(std::exchange(o.socket_, nullptr)), endpoint_(std::move(o.endpoint_)) {}
Socket& Socket::operator=(Socket&& o) noexcept {
  if (this != &o) {
    close();
    socket_ = std::exchange(o.socket_, nullptr);
    endpoint_ = std::move(o.endpoint_);
  }
  return *this;
}
void Socket::close() {
  if (socket_ != nullptr) zmq_close(std::exchange(socket_, nullptr));
}

Result<Socket> Socket::listener(Context& context, const std::string& host, std::uint16_t low, std::uint16_t high,
                                std::uint64_t random, const std::optional<CurveKeys>& keys, std::size_t most_bytes,
                                std::string& at) {
  Socket s(zmq_socket(context.get(), ZMQ_ROUTER));
  if (!s || !common(s.get(), most_bytes) || !set(s.get(), ZMQ_ROUTER_MANDATORY, 1) ||
      !set(s.get(), ZMQ_SNDHWM, kReplies) || !set(s.get(), ZMQ_BACKLOG, kBacklog))
    return failed("make a listener");
  if (keys && (!set(s.get(), ZMQ_CURVE_SERVER, 1) || !set_text(s.get(), ZMQ_CURVE_SECRETKEY, keys->secret)))
    return failed("set its keys");
  const std::uint32_t count = low == 0 ? 1 : std::uint32_t{high} - low + 1;
  for (std::uint32_t i = 0; i < count; ++i) {  // from a random start, so that many movers of a host spread
    const auto port = static_cast<std::uint16_t>(low == 0 ? 0 : low + (random + i) % count);
    if (zmq_bind(s.get(), at_port(host, port).c_str()) != 0) {
      if (zmq_errno() == EADDRINUSE) continue;
      return Error(Code::kInvalid,
                   "advertise_address: zmq_sparse cannot listen on '" + host + "': " + zmq_strerror(zmq_errno()));
    }
    char endpoint[kLongestEndpoint + 1] = {};
    std::size_t size = sizeof endpoint;
    if (zmq_getsockopt(s.get(), ZMQ_LAST_ENDPOINT, endpoint, &size) != 0) return failed("learn its port");
    at = endpoint;
    return s;
  }
  return Error(Code::kExhausted, "port_range: every port of it is taken on '" + host + "'");
}

Result<Socket> Socket::connection(Context& context, const std::string& endpoint, const std::string& server,
                                  const CurveKeys& own, std::size_t most_bytes) {
  Socket s(zmq_socket(context.get(), ZMQ_DEALER));
  if (!s || !common(s.get(), most_bytes) || !set(s.get(), ZMQ_RECONNECT_IVL, -1) ||
      !set(s.get(), ZMQ_CONNECT_TIMEOUT, kConnectMs))
    return failed("make a connection");
  if (!server.empty() &&
      (!set_text(s.get(), ZMQ_CURVE_SERVERKEY, server) || !set_text(s.get(), ZMQ_CURVE_PUBLICKEY, own.open) ||
       !set_text(s.get(), ZMQ_CURVE_SECRETKEY, own.secret)))
    return failed("set its keys");
  s.endpoint_ = endpoint;
  return s;
}

void Socket::unwatch() {
  if (socket_ != nullptr) (void)zmq_socket_monitor(socket_, nullptr, 0);
}

Status Socket::connect() {
  if (zmq_connect(socket_, endpoint_.c_str()) != 0) return failed("connect to " + endpoint_);
  return {};
}

Result<Socket> Socket::monitor(Context& context, Socket& watched, const std::string& name) {
  const std::string at = "inproc://" + name;
  if (zmq_socket_monitor(watched.get(), at.c_str(),
                         ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_CLOSED |
                             ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL | ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL |
                             ZMQ_EVENT_HANDSHAKE_FAILED_AUTH) != 0)
    return failed("watch a connection");
  Socket s(zmq_socket(context.get(), ZMQ_PAIR));
  if (!s || !set(s.get(), ZMQ_LINGER, 0) || zmq_connect(s.get(), at.c_str()) != 0) return failed("watch a connection");
  return s;
}

bool Socket::writable() const {
  int events = 0;
  std::size_t size = sizeof events;
  return zmq_getsockopt(socket_, ZMQ_EVENTS, &events, &size) == 0 && (events & ZMQ_POLLOUT) != 0;
}

bool Socket::receive(Message& out, bool routed) {
  Part first;
  if (!first.receive(socket_)) return false;
  out.routing_id = routed ? first.bytes() : Bytes();
  out.descriptor = -1;
  out.body = routed ? Bytes() : first.bytes();
  for (bool more = first.more(); more;) {
    Part rest;
    if (!rest.receive(socket_)) break;
    if (routed && out.body.empty()) out.body = rest.bytes(), out.descriptor = rest.descriptor();
    more = rest.more();
  }
  return true;
}

Sent Socket::send(std::span<const std::byte> routing_id, std::span<const std::byte> message) {
  if (zmq_send(socket_, routing_id.data(), routing_id.size(), ZMQ_DONTWAIT | ZMQ_SNDMORE) < 0)
    return zmq_errno() == EAGAIN ? Sent::kFull : Sent::kGone;
  return zmq_send(socket_, message.data(), message.size(), ZMQ_DONTWAIT) >= 0 ? Sent::kYes : Sent::kGone;
}

bool Socket::send(std::span<const std::byte> head, std::size_t rest,
                  const std::function<void(std::span<std::byte>)>& fill) {
  zmq_msg_t body;
  if (!writable() || zmq_msg_init_size(&body, head.size() + rest) != 0) return false;
  auto* to = static_cast<std::byte*>(zmq_msg_data(&body));
  std::memcpy(to, head.data(), head.size());
  if (rest > 0) fill({to + head.size(), rest});
  if (zmq_msg_send(&body, socket_, ZMQ_DONTWAIT) >= 0) return true;
  zmq_msg_close(&body);
  return false;
}

bool Socket::broke() {
  bool any = false;
  while (const auto e = event()) any = any || e->what != ZMQ_EVENT_ACCEPTED;
  return any;
}

// An event's first frame: its number, and a value (native byte order, this process' own).
std::optional<SocketEvent> Socket::event() {
  Message m;
  SocketEvent e;
  if (!receive(m, false) || m.body.size() < sizeof e.what + sizeof e.value) return std::nullopt;
  std::memcpy(&e.what, m.body.data(), sizeof e.what);
  std::memcpy(&e.value, m.body.data() + sizeof e.what, sizeof e.value);
  return e;
}

}  // namespace refit::transport::zmq_sparse
