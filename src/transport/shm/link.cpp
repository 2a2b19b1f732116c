#include "transport/shm/link.h"

#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "transport/shm/service.h"

namespace refit::transport::shm {
namespace {

// A card exists only after its mover listens, so a socket that is missing will not come.
constexpr std::int64_t kConnectNs = 200'000'000;
constexpr std::int64_t kTurnPauseNs = 1'000'000;

}  // namespace

Result<std::unique_lock<std::mutex>> Link::turn(Deadline deadline) {
  std::unique_lock lock(mutex_, std::try_to_lock);
  while (!lock.owns_lock()) {
    if (deadline.over()) return named(Error(Code::kTimeout, "another lane is asking the same peer"));
    env_.wait(Deadline::after_ns(kTurnPauseNs).sooner(deadline));
    (void)lock.try_lock();
  }
  return lock;
}

Error Link::lost() {
  socket_.reset();
  asked_ = false;
  sweep_dead_sockets(runtime_dir_);
  return named(Error(Code::kPeerLost, "the source's process is gone"));
}

Status Link::connect(Deadline deadline) {
  if (socket_.valid()) return {};
  auto card = decode_card(peer_.card);
  if (!card.ok()) return named(std::move(card).error());
  if (card->member != peer_.member || card->incarnation != peer_.incarnation)
    return named(Error(Code::kMismatch, "the peer's card is of another member or incarnation"));
  auto fd = env_.connect(socket_path(runtime_dir_, *card), Deadline::after_ns(kConnectNs).sooner(deadline));
  if (!fd.ok()) {
    if (fd.error().code == Code::kPeerLost) sweep_dead_sockets(runtime_dir_);
    if (fd.error().code == Code::kBusy)
      return named(Error(Code::kTimeout, "the source stands still: its queue of connections is full"));
    return named(std::move(fd).error());
  }
  if (auto same = check_same_user(fd->get()); !same.ok()) return named(std::move(same).error());
  card_ = *card;
  socket_ = std::move(*fd);
  asked_ = false;
  return {};
}

Status Link::send_request(const Request& request) {
  const Bytes bytes = encode(request);
  if (::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT) !=
      static_cast<ssize_t>(bytes.size()))
    return lost();
  asked_ = true;
  ask_ = request.ask;
  ask_file_ = request.file;
  have_ = 0;
  reply_fd_.reset();
  return {};
}

Status Link::receive_some() {
  iovec part{reply_.data() + have_, kReplyBytes - have_};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t n = ::recvmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return {};
  if (n <= 0) return lost();
  for (cmsghdr* head = CMSG_FIRSTHDR(&message); head != nullptr; head = CMSG_NXTHDR(&message, head)) {
    if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) continue;
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(head), sizeof fd);
    reply_fd_ = Fd(fd);
  }
  if ((message.msg_flags & MSG_CTRUNC) != 0) {
    socket_.reset();
    return named(Error(Code::kExhausted, "this process has no descriptor left for a peer's region"));
  }
  have_ += static_cast<std::size_t>(n);
  return {};
}

Result<std::pair<Reply, Fd>> Link::call(Ask ask, std::uint64_t file, Deadline deadline, const Wake& wake) {
  // An answer still under way to another question would be taken for ours: start over on a fresh connection.
  if (asked_ && (ask_ != ask || ask_file_ != file)) socket_.reset();
  REFIT_TRY(connect(deadline));
  if (!asked_) REFIT_TRY(send_request({ask, file, card_}));
  while (have_ < kReplyBytes) {
    const Ready ready = wait_readable(socket_.get(), wake, deadline);
    if (ready == Ready::kWoken) return named(Error(Code::kCancelled, "the lane was aborted"));
    if (ready == Ready::kTimeout) return named(Error(Code::kTimeout, "no answer to a request for shared memory"));
    REFIT_TRY(receive_some());
  }
  asked_ = false;
  auto reply = decode_reply(reply_);
  if (!reply.ok() || reply->file != file) {
    socket_.reset();
    return named(Error(Code::kCorrupt, "an answer that fits no question"));
  }
  switch (reply->answer) {
    case Answer::kYes:
      return std::pair{*reply, std::move(reply_fd_)};
    case Answer::kForeign:
      return named(Error(Code::kMismatch, "the process there is of another job or incarnation"));
    case Answer::kUnknownFile:
      return named(Error(Code::kMismatch, "the memory is no longer lent (its memory epoch has passed)"));
    case Answer::kExhausted:
      break;
  }
  return named(Error(Code::kExhausted, "the source has no descriptor left to share its memory"));
}

Status Link::ping(Deadline deadline, const Wake& wake) {
  REFIT_ASSIGN(const auto lock, turn(deadline));
  if (socket_.valid() && hung_up()) (void)lost();
  REFIT_TRY(call(Ask::kPing, 0, deadline, wake));
  return {};
}

Status Link::map_control(Deadline deadline, const Wake& wake) {
  if (control_ != nullptr) return {};
  REFIT_ASSIGN(auto answer, call(Ask::kControl, 0, deadline, wake));
  auto map = memory::MappedRegion::map(std::move(answer.second), kControlBytes);
  if (!map.ok()) return named(std::move(map).error());
  if (load_word(map->data(), 0) != kControlMark) return named(Error(Code::kCorrupt, "the control page lacks its mark"));
  control_ = std::make_shared<const memory::MappedRegion>(std::move(*map));
  return {};
}

Result<FileMap> Link::map_file(const LentRegion& region, Deadline deadline, const Wake& wake) {
  if (const auto it = files_.find(region.file); it != files_.end()) {
    if (it->second->bytes() != region.file_bytes)
      return named(Error(Code::kCorrupt, "a descriptor contradicts an earlier one about a file's length"));
    return it->second;
  }
  REFIT_ASSIGN(auto answer, call(Ask::kFile, region.file, deadline, wake));
  // The file's own length decides; what the answer and the descriptor claim must agree with it.
  if (answer.first.bytes != region.file_bytes)
    return named(Error(Code::kCorrupt, "the source's answer contradicts its descriptor about a file's length"));
  auto map = memory::MappedRegion::map(std::move(answer.second), region.file_bytes);
  if (!map.ok()) return named(std::move(map).error());
  auto shared = std::make_shared<const memory::MappedRegion>(std::move(*map));
  files_.emplace(region.file, shared);
  return FileMap(std::move(shared));
}

Result<std::map<std::uint64_t, FileMap>> Link::maps(std::span<const LentRegion> regions, Deadline deadline,
                                                    const Wake& wake) {
  REFIT_ASSIGN(const auto lock, turn(deadline));
  if (socket_.valid() && hung_up() && !asked_) return lost();
  REFIT_TRY(connect(deadline));
  REFIT_TRY(map_control(deadline, wake));
  std::map<std::uint64_t, FileMap> wanted;
  for (const LentRegion& region : regions) {
    if (region.file == 0 || wanted.contains(region.file)) continue;
    REFIT_ASSIGN(wanted[region.file], map_file(region, deadline, wake));
  }
  std::erase_if(files_, [&](const auto& entry) { return !wanted.contains(entry.first); });
  return wanted;
}

bool Link::hung_up() const {
  pollfd polled{socket_.get(), POLLIN | POLLRDHUP, 0};
  if (::poll(&polled, 1, 0) <= 0) return false;
  return (polled.revents & (POLLHUP | POLLRDHUP | POLLERR)) != 0;
}

Result<MemoryEpoch> Link::epoch(std::uint32_t slot) {
  const std::lock_guard lock(mutex_);
  if (!socket_.valid() || hung_up()) return lost();
  if (control_ == nullptr) return named(Error(Code::kMismatch, "nothing was read from this peer"));
  return MemoryEpoch(load_word(control_->data(), slot_word(slot)));
}

}  // namespace refit::transport::shm
