#include "transport/zmq/lane.h"

#include <unistd.h>
#include <zmq.h>

#include <algorithm>

#include "transport/zmq/endpoint.h"

namespace refit::transport::zmq {
namespace {

constexpr std::uint32_t kThreadsPerLane = 3;  // our loop, and libzmq's I/O thread and reaper
constexpr std::int64_t kLingerNs = kNsPerSecond;

Error zmq_error(const std::string& what) {
  const int err = zmq_errno();
  const Code code = err == EMFILE || err == ENOMEM || err == ENOBUFS ? Code::kExhausted
                    : err == EADDRINUSE                              ? Code::kBusy
                                                                     : Code::kInvalid;
  return Error(code, what + ": " + zmq_strerror(err));
}

constexpr int kConnectMs = 5'000;         // a host that does not answer is tried again
constexpr std::uint64_t kTellBroken = 3;  // connections that end before an answer, until it is worth a word
constexpr std::int64_t kCurveBytes = 64;  // its command name, nonce and tag round a message take 33
constexpr int kHandshakeMs = static_cast<int>(kHandshakeNs / 1'000'000);

Status set_text(void* socket, int option, const char* name, const std::string& value) {
  if (zmq_setsockopt(socket, option, value.data(), value.size()) == 0) return {};
  return zmq_error(std::string("cannot set ") + name);  // never the value: it may be a secret
}

template <typename T>
Status set(void* socket, int option, const char* name, T value) {
  if (zmq_setsockopt(socket, option, &value, sizeof value) == 0) return {};
  return zmq_error(std::string("cannot set ") + name);
}

}  // namespace

Result<std::unique_ptr<ControlLane>> ControlLaneZmq::open(Env& env, const ControlAddress& address,
                                                          std::shared_ptr<Tally> tally) {
  std::string path;
  if (!address.keys) {
    REFIT_ASSIGN(path, control_path(address.address));
    REFIT_TRY(check_private_dir(path.substr(0, std::max<std::size_t>(1, path.find_last_of('/')))));
  } else {
    REFIT_TRY(parse_endpoint(address.address, address.listen));
    REFIT_TRY(check_keys(*address.keys, address.listen));
  }
  if (address.silent_after_ms < 100)
    return Error(Code::kInvalid,
                 "silent_after_ms must be at least 100, got " + std::to_string(address.silent_after_ms));
  std::unique_ptr<ControlLaneZmq> lane(new ControlLaneZmq(env, address, std::move(path), std::move(tally)));
  REFIT_ASSIGN(lane->wake_, Wake::make());
  REFIT_TRY(lane->open_sockets());
  REFIT_ASSIGN(lane->thread_, start_thread("refit-control", [l = lane.get()] { l->loop(); }));
  lane->tally_->threads.fetch_add(kThreadsPerLane);
  return std::unique_ptr<ControlLane>(std::move(lane));
}

Status ControlLaneZmq::open_sockets() {
  context_ = zmq_ctx_new();
  if (context_ == nullptr) return zmq_error("cannot make a ZeroMQ context");
  socket_ = zmq_socket(context_, address_.listen ? ZMQ_ROUTER : ZMQ_DEALER);
  if (socket_ == nullptr) return zmq_error("cannot make a control socket");
  const int silent = static_cast<int>(std::min<std::int64_t>(address_.silent_after_ms, 3'600'000));
  REFIT_TRY(set(socket_, ZMQ_MAXMSGSIZE, "ZMQ_MAXMSGSIZE",
                std::int64_t{kMaxControlBytes + static_cast<std::int64_t>(kHeadBytes) + (tcp() ? kCurveBytes : 0)}));
  // Few messages inside libzmq: the bound that callers see is the mailbox.
  REFIT_TRY(set(socket_, ZMQ_SNDHWM, "ZMQ_SNDHWM", 16));
  REFIT_TRY(set(socket_, ZMQ_RCVHWM, "ZMQ_RCVHWM", 16));
  REFIT_TRY(set(socket_, ZMQ_HEARTBEAT_IVL, "ZMQ_HEARTBEAT_IVL", std::max(1, silent / 4)));
  REFIT_TRY(set(socket_, ZMQ_HEARTBEAT_TIMEOUT, "ZMQ_HEARTBEAT_TIMEOUT", silent));
  REFIT_TRY(set(socket_, ZMQ_LINGER, "ZMQ_LINGER", 0));
  if (tcp()) REFIT_TRY(open_curve());
  if (zmq_socket_monitor(socket_, "inproc://monitor",
                         ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH) != 0)
    return zmq_error("cannot monitor the control socket");
  monitor_ = zmq_socket(context_, ZMQ_PAIR);
  if (monitor_ == nullptr || zmq_connect(monitor_, "inproc://monitor") != 0)
    return zmq_error("cannot monitor the control socket");
  return attach();
}

// Both ends prove their keys before a byte of ours travels; what does not is libzmq's to drop, and the door's to bound.
Status ControlLaneZmq::open_curve() {
  const ControlKeys& keys = *address_.keys;
  REFIT_TRY(set_text(socket_, ZMQ_CURVE_PUBLICKEY, "ZMQ_CURVE_PUBLICKEY", keys.own.public_key));
  REFIT_TRY(set_text(socket_, ZMQ_CURVE_SECRETKEY, "ZMQ_CURVE_SECRETKEY", keys.own.secret_key));
  REFIT_TRY(set(socket_, ZMQ_HANDSHAKE_IVL, "ZMQ_HANDSHAKE_IVL", kHandshakeMs));
  REFIT_TRY(set(socket_, ZMQ_IPV6, "ZMQ_IPV6", 1));
  REFIT_TRY(set(socket_, ZMQ_TCP_KEEPALIVE, "ZMQ_TCP_KEEPALIVE", 1));
  REFIT_TRY(set(socket_, ZMQ_TCP_MAXRT, "ZMQ_TCP_MAXRT", static_cast<int>(address_.silent_after_ms)));
  if (!address_.listen) {
    REFIT_TRY(set(socket_, ZMQ_CONNECT_TIMEOUT, "ZMQ_CONNECT_TIMEOUT", kConnectMs));
    return set_text(socket_, ZMQ_CURVE_SERVERKEY, "ZMQ_CURVE_SERVERKEY", keys.coordinator);
  }
  REFIT_ASSIGN(door_, Door::open(context_, keys));
  REFIT_TRY(set(socket_, ZMQ_CURVE_SERVER, "ZMQ_CURVE_SERVER", 1));
  return set_text(socket_, ZMQ_ZAP_DOMAIN, "ZMQ_ZAP_DOMAIN", "refit");
}

Status ControlLaneZmq::attach() {
  last_loop_ns_ = env_.now_ns();
  if (!address_.listen) {
    // Only finished connections take messages, so that a hello is not parked for a coordinator of the past.
    REFIT_TRY(set(socket_, ZMQ_IMMEDIATE, "ZMQ_IMMEDIATE", 1));
    REFIT_TRY(set(socket_, ZMQ_RECONNECT_IVL, "ZMQ_RECONNECT_IVL", 20));
    told_ = address_.address;
    if (zmq_connect(socket_, address_.address.c_str()) != 0) return zmq_error("cannot connect to " + address_.address);
    peers_[0].seen_ns = last_loop_ns_;
    mailbox_.open_outbox(0);
    return {};
  }
  REFIT_TRY(set(socket_, ZMQ_ROUTER_MANDATORY, "ZMQ_ROUTER_MANDATORY", 1));
  return tcp() ? listen_tcp() : listen_ipc();
}

Status ControlLaneZmq::listen_tcp() {
  REFIT_ASSIGN(const Endpoint where, parse_endpoint(address_.address, true));
  REFIT_ASSIGN(Listening at, listen_on(where.host, where.ports, env_.random_u64(), "control address"));
  REFIT_TRY(set(socket_, ZMQ_USE_FD, "ZMQ_USE_FD", at.fd.get()));
  if (zmq_bind(socket_, to_address(at.host, at.port).c_str()) != 0)
    return zmq_error("cannot listen on " + address_.address);
  (void)at.fd.release();  // libzmq closes it
  port_ = at.port;
  told_ = to_address(address_.advertise.empty() ? at.host : address_.advertise, at.port);
  return {};
}

Status ControlLaneZmq::listen_ipc() {
  told_ = address_.address;
  // libzmq would unlink whatever lies at the path; ours reclaims only a dead socket, so it binds and hands over.
  REFIT_ASSIGN(Fd listener, listen_in(env_, path_));
  Status bound = set(socket_, ZMQ_USE_FD, "ZMQ_USE_FD", listener.get());
  if (bound.ok() && zmq_bind(socket_, address_.address.c_str()) != 0)
    bound = zmq_error("cannot listen on " + address_.address);
  if (!bound.ok()) {
    ::unlink(path_.c_str());
    return bound;
  }
  (void)listener.release();  // libzmq closes it
  return {};
}

ControlLaneZmq::~ControlLaneZmq() { (void)close(Deadline::after_ns(0)); }

void ControlLaneZmq::close_sockets(int linger_ms) {
  if (socket_ != nullptr) {
    (void)zmq_setsockopt(socket_, ZMQ_LINGER, &linger_ms, sizeof linger_ms);
    (void)zmq_socket_monitor(socket_, nullptr, 0);
    zmq_close(socket_);
    strangers_.let_go();
  }
  door_.reset();
  if (monitor_ != nullptr) {
    const int none = 0;
    (void)zmq_setsockopt(monitor_, ZMQ_LINGER, &none, sizeof none);
    zmq_close(monitor_);
  }
  socket_ = monitor_ = nullptr;
}

Status ControlLaneZmq::send(std::uint32_t peer, std::span<const std::byte> bytes) {
  REFIT_TRY(mailbox_.send(peer, bytes));
  wake_.raise();
  return {};
}

Result<ControlMessage> ControlLaneZmq::next(Deadline deadline) {
  const bool was_full = mailbox_.inbox_full();
  auto message = mailbox_.next(deadline);
  if (was_full) wake_.raise();  // the loop may read again
  if (!message.ok() && message.error().code == Code::kTimeout && !address_.listen && !welcomed_.load()) {
    // Whoever gives up on waiting should be able to say why nothing came.
    const bool answered = broken_.load() >= kTellBroken;
    return Error(Code::kTimeout, "the coordinator at " + told_ +
                                     (answered && tcp() ? " ends connections before it proves its key: it is another "
                                                          "coordinator's, or no coordinator at all"
                                                        : " has not answered yet"))
        .at_peer("coordinator");
  }
  return message;
}

void ControlLaneZmq::abort(Error error) {
  mailbox_.fail(std::move(error));
  wake_.raise();
}

Status ControlLaneZmq::close(Deadline deadline) {
  const std::lock_guard lock(close_mutex_);
  const bool had_thread = thread_.joinable();
  if (had_thread) {
    flush_by_ns_.store(deadline.ns());
    stop_.store(true);
    wake_.raise();
    thread_.join();
    tally_->threads.fetch_sub(kThreadsPerLane);
  }
  mailbox_.fail(Error(Code::kCancelled, "the control lane is closed"));
  if (context_ == nullptr) return {};
  const std::int64_t linger = std::min(deadline.left_ns(), kLingerNs) / 1'000'000;
  close_sockets(static_cast<int>(linger));
  while (zmq_ctx_term(context_) != 0 && zmq_errno() == EINTR) {
  }
  context_ = nullptr;
  if (address_.listen && had_thread && !tcp()) ::unlink(path_.c_str());
  return {};
}

}  // namespace refit::transport::zmq
