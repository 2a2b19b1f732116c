#include "transport/shm/service.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

namespace refit::transport::shm {
namespace {

constexpr std::size_t kMaxConnections = 1024;  // readers of one source on one host
constexpr int kAcceptPauseMs = 20;             // when the process is out of descriptors

// The reply and, with it, at most one descriptor. A reader that does not drain 24 bytes is cut off.
bool send_reply(int to, const Reply& reply, int fd) {
  Bytes bytes = encode(reply);
  iovec part{bytes.data(), bytes.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (fd >= 0) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(head), &fd, sizeof fd);
  }
  return ::sendmsg(to, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == static_cast<ssize_t>(kReplyBytes);
}

}  // namespace

Status check_same_user(int fd) {
  ucred who{};
  socklen_t size = sizeof who;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &size) != 0)
    return Error(Code::kUnsupported, std::string("cannot learn the peer's user: ") + std::strerror(errno));
  if (who.uid != ::geteuid())
    return Error(Code::kUnsupported, "the peer runs as user " + std::to_string(who.uid) + ", not as ours");
  return {};
}

Result<std::unique_ptr<Service>> Service::start(Env& env, const std::string& path, const Card& self,
                                                const Exports& exports) {
  std::unique_ptr<Service> service(new Service(self, exports));
  REFIT_ASSIGN(service->wake_, Wake::make());
  REFIT_ASSIGN(service->listener_, listen_in(env, path));
  service->path_ = path;
  REFIT_ASSIGN(service->thread_, start_thread("refit-shm-fds", [s = service.get()] { s->loop(); }));
  return service;
}

Service::~Service() { stop(); }

void Service::stop() {
  if (path_.empty()) return;
  stop_.store(true);
  wake_.raise();
  if (thread_.joinable()) thread_.join();
  ::unlink(path_.c_str());
  path_.clear();
  listener_.reset();
  connections_.clear();
}

void Service::loop() {
  std::vector<pollfd> polled;
  bool accepting = true;
  while (!stop_.load()) {
    polled.assign({{wake_.fd(), POLLIN, 0}, {accepting ? listener_.get() : -1, POLLIN, 0}});
    for (const Connection& c : connections_) polled.push_back({c.fd.get(), POLLIN, 0});
    const int n = ::poll(polled.data(), polled.size(), accepting ? -1 : kAcceptPauseMs);
    accepting = true;
    if (n < 0) continue;
    for (std::size_t i = connections_.size(); i-- > 0;)
      if (polled[i + 2].revents != 0 && !serve(connections_[i]))
        connections_.erase(connections_.begin() + static_cast<std::ptrdiff_t>(i));
    if (polled[1].revents != 0) {
      const std::size_t before = connections_.size();
      accept_all();
      // Nothing came although somebody knocks: out of descriptors. Pause instead of spinning.
      accepting = connections_.size() != before;
    }
  }
}

void Service::accept_all() {
  while (true) {
    Fd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd.valid()) return;
    if (connections_.size() >= kMaxConnections || !check_same_user(fd.get()).ok()) {
      foreign_.fetch_add(1);
      continue;
    }
    connections_.push_back(Connection{std::move(fd), 0, {}});
  }
}

bool Service::serve(Connection& c) {
  while (true) {
    const ssize_t n = ::recv(c.fd.get(), c.request.data() + c.have, kRequestBytes - c.have, MSG_DONTWAIT);
    if (n < 0) return errno == EAGAIN || errno == EINTR;
    if (n == 0) return false;
    c.have += static_cast<std::size_t>(n);
    if (c.have < kRequestBytes) continue;
    c.have = 0;
    if (!answer(c)) return false;
  }
}

bool Service::answer(Connection& c) {
  const auto request = decode_request(c.request);
  if (!request.ok()) {
    bad_.fetch_add(1);
    return false;
  }
  if (request->server != self_) {
    foreign_.fetch_add(1);
    return send_reply(c.fd.get(), {Answer::kForeign, request->file, 0}, -1);
  }
  if (request->ask == Ask::kPing) return send_reply(c.fd.get(), {Answer::kYes, request->file, 0}, -1);
  const auto shared = request->ask == Ask::kControl ? exports_.control() : exports_.file(request->file);
  if (!shared.ok()) {
    const Answer why = shared.error().code == Code::kMismatch ? Answer::kUnknownFile : Answer::kExhausted;
    return send_reply(c.fd.get(), {why, request->file, 0}, -1);
  }
  return send_reply(c.fd.get(), {Answer::kYes, request->file, shared->bytes}, shared->fd.get());
}

}  // namespace refit::transport::shm
