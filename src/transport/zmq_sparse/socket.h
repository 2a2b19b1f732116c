// libzmq's handles with owners, and what this mover sets on them.
#pragma once
#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "transport/transport.h"

namespace refit::transport::zmq_sparse {

struct CurveKeys {
  std::string open, secret;  // as libzmq prints them (Z85)
};
// kUnsupported where libzmq has no CURVE.
Result<CurveKeys> fresh_keys();
// Raw bytes ⇄ libzmq's text. Empty for anything that is no key.
std::string key_text(std::span<const std::byte> raw);
Bytes key_bytes(const std::string& text);

class Context {
 public:
  static Result<std::shared_ptr<Context>> make();
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  void* get() const { return context_; }

 private:
  explicit Context(void* context) : context_(context) {}
  void* context_;
};

// One message that has arrived.
struct Message {
  Bytes routing_id;  // of a router
  Bytes body;
  int descriptor = -1;  // libzmq's, of the connection it came over
};
enum class Sent : std::uint8_t { kYes, kFull, kGone };
struct SocketEvent {
  std::uint16_t what = 0;  // ZMQ_EVENT_…
  std::int32_t value = 0;  // a descriptor, mostly
};

// *thread-compatible*: made anywhere, used by one thread at a time.
class Socket {
 public:
  Socket() = default;
  ~Socket() { close(); }
  Socket(Socket&& o) noexcept;
  Socket& operator=(Socket&& o) noexcept;

  // A listener on one of `ports` of `host` (0: any). `keys`: CURVE, absent: plain. Returns the endpoint in `at`.
  static Result<Socket> listener(Context& context, const std::string& host, std::uint16_t low, std::uint16_t high,
                                 std::uint64_t random, const std::optional<CurveKeys>& keys, std::size_t most_bytes,
                                 std::string& at);
  // A connection to `endpoint` that is not made again once it breaks; made by connect(). `server`: its key, empty:
  // plain.
  static Result<Socket> connection(Context& context, const std::string& endpoint, const std::string& server,
                                   const CurveKeys& own, std::size_t most_bytes);
  // What happens to the connections of `watched`, whose name for it is unique in the context.
  static Result<Socket> monitor(Context& context, Socket& watched, const std::string& name);

  // No monitor hears of it any more. Before the monitor is closed: libzmq waits for one that takes no events.
  void unwatch();
  Status connect();
  void* get() const { return socket_; }
  explicit operator bool() const { return socket_ != nullptr; }
  // False: nothing there, or no whole message.
  bool receive(Message& out, bool routed);
  Sent send(std::span<const std::byte> routing_id, std::span<const std::byte> message);  // of a router
  bool send(std::span<const std::byte> message) { return send(message, 0, {}); }
  // `rest` bytes follow the head: `fill` writes them in place. False: the queue is full, or the peer is gone.
  bool send(std::span<const std::byte> head, std::size_t rest, const std::function<void(std::span<std::byte>)>& fill);
  // Of a monitor: true when the connection broke, was refused, or its handshake failed.
  bool broke();
  std::optional<SocketEvent> event();  // the next one, of any kind that is watched
  void close();

 private:
  explicit Socket(void* socket) : socket_(socket) {}
  bool writable() const;
  void* socket_ = nullptr;
  std::string endpoint_;
};

}  // namespace refit::transport::zmq_sparse
