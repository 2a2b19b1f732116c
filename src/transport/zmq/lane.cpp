#include "transport/zmq/lane.h"

#include <unistd.h>
#include <zmq.h>

#include <algorithm>

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

template <typename T>
Status set(void* socket, int option, const char* name, T value) {
  if (zmq_setsockopt(socket, option, &value, sizeof value) == 0) return {};
  return zmq_error(std::string("cannot set ") + name);
}

}  // namespace

Result<std::unique_ptr<ControlLane>> ControlLaneZmq::open(Env& env, const ControlAddress& address,
                                                          std::shared_ptr<Tally> tally) {
  REFIT_ASSIGN(std::string path, control_path(address.address));
  if (address.silent_after_ms < 100)
    return Error(Code::kInvalid,
                 "silent_after_ms must be at least 100, got " + std::to_string(address.silent_after_ms));
  REFIT_TRY(check_private_dir(path.substr(0, std::max<std::size_t>(1, path.find_last_of('/')))));
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
                std::int64_t{kMaxControlBytes + static_cast<std::int64_t>(kHeadBytes)}));
  // Few messages inside libzmq: the bound that callers see is the mailbox.
  REFIT_TRY(set(socket_, ZMQ_SNDHWM, "ZMQ_SNDHWM", 16));
  REFIT_TRY(set(socket_, ZMQ_RCVHWM, "ZMQ_RCVHWM", 16));
  REFIT_TRY(set(socket_, ZMQ_HEARTBEAT_IVL, "ZMQ_HEARTBEAT_IVL", std::max(1, silent / 4)));
  REFIT_TRY(set(socket_, ZMQ_HEARTBEAT_TIMEOUT, "ZMQ_HEARTBEAT_TIMEOUT", silent));
  REFIT_TRY(set(socket_, ZMQ_LINGER, "ZMQ_LINGER", 0));
  if (zmq_socket_monitor(socket_, "inproc://monitor", ZMQ_EVENT_DISCONNECTED) != 0)
    return zmq_error("cannot monitor the control socket");
  monitor_ = zmq_socket(context_, ZMQ_PAIR);
  if (monitor_ == nullptr || zmq_connect(monitor_, "inproc://monitor") != 0)
    return zmq_error("cannot monitor the control socket");
  return attach();
}

Status ControlLaneZmq::attach() {
  last_loop_ns_ = env_.now_ns();
  if (!address_.listen) {
    // Only finished connections take messages, so that a hello is not parked for a coordinator of the past.
    REFIT_TRY(set(socket_, ZMQ_IMMEDIATE, "ZMQ_IMMEDIATE", 1));
    REFIT_TRY(set(socket_, ZMQ_RECONNECT_IVL, "ZMQ_RECONNECT_IVL", 20));
    if (zmq_connect(socket_, address_.address.c_str()) != 0) return zmq_error("cannot connect to " + address_.address);
    peers_[0].seen_ns = last_loop_ns_;
    mailbox_.open_outbox(0);
    return {};
  }
  REFIT_TRY(set(socket_, ZMQ_ROUTER_MANDATORY, "ZMQ_ROUTER_MANDATORY", 1));
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
  }
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
  if (address_.listen && had_thread) ::unlink(path_.c_str());
  return {};
}

}  // namespace refit::transport::zmq
