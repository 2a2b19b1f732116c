#include "transport/tcp/stream.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "transport/common/net.h"

namespace refit::transport::tcp {
namespace {

constexpr std::size_t kParts = 512;            // of one call; the kernel takes 1,024
constexpr std::uint64_t kTurnBytes = 2 << 20;  // of one stream before the others have their turn
constexpr std::size_t kMaxControl = 1 << 16;   // frames queued to a peer that does not read
constexpr std::size_t kScratch = 64 << 10;
constexpr std::size_t kWarm = 256 << 10;  // read at once where the bytes are tagged next

}  // namespace

bool Incoming::claim(std::uint64_t offset, std::uint64_t length) {
  const std::uint64_t end = offset + length;  // within `bytes`: the header was checked
  auto after = claimed.lower_bound(offset);
  if (after != claimed.end() && after->first < end) return false;
  std::uint64_t start = offset, stop = end;
  if (after != claimed.begin()) {
    const auto before = std::prev(after);
    if (before->second > offset) return false;
    if (before->second == offset) {
      start = before->first;
      claimed.erase(before);
    }
  }
  if (after != claimed.end() && after->first == end) {
    stop = after->second;
    claimed.erase(after);
  }
  claimed[start] = stop;
  return true;
}

Stream::Stream(StreamOwner& owner, Fd fd, const Hello& hello, const Key& key)
    : owner_(owner),
      fd_(std::move(fd)),
      outgoing_(true),
      security_(hello.security),
      key_(key),
      hello_(hello),
      state_(State::kConnecting) {
  seen_ns = sent_ns = born_ns = owner.now();
}

Stream::Stream(StreamOwner& owner, Fd fd, Security security, const Key& key)
    : owner_(owner), fd_(std::move(fd)), outgoing_(false), security_(security), key_(key), state_(State::kHello) {
  seen_ns = sent_ns = born_ns = owner.now();
}

void Stream::doom(Error why) {
  if (state_ == State::kDead) return;
  state_ = State::kDead;
  why_ = std::move(why);
  chunk_.reset();
  control_.clear();
}

bool Stream::failed(ssize_t n, const char* what) {
  if (n > 0) return false;
  if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return false;
  const std::string how = n == 0 ? "the peer closed the connection"
                                 : std::string("connection lost while ") + what + ": " + std::strerror(errno);
  doom(Error(errno == ETIMEDOUT && n < 0 ? Code::kTimeout : Code::kPeerLost, how));
  return true;
}

// ---- handshake ----

void Stream::greet() {
  if (const int error = pending_error(fd_.get()); error != 0)
    return doom(Error(Code::kPeerLost, std::string("cannot connect: ") + std::strerror(error)));
  control_.push_front(encode(hello_));
  state_ = State::kHello;
}

Status Stream::keys(const Nonce& listener) {
  if (security_ == Security::kNone) return {};
  REFIT_ASSIGN(const ConnectionKeys k, derive_keys(key_, hello_, listener));
  REFIT_ASSIGN(mac_out_, Gmac::make(outgoing_ ? k.to_listener : k.to_connector));
  REFIT_ASSIGN(mac_in_, Gmac::make(outgoing_ ? k.to_connector : k.to_listener));
  return {};
}

bool Stream::read_exact(std::size_t want) {
  const ssize_t n = ::recv(fd_.get(), head_.data() + head_have_, want - head_have_, MSG_DONTWAIT);
  if (failed(n, "reading") || n < 0) return false;
  head_have_ += static_cast<std::size_t>(n);
  bytes_in += static_cast<std::uint64_t>(n);
  seen_ns = owner_.now();
  if (head_have_ < want) return false;
  head_have_ = 0;
  return true;
}

void Stream::read_welcome() {
  const auto welcome = decode_welcome(std::span(head_).first(kWelcomeBytes));
  if (!welcome.ok()) return doom(welcome.error());
  static constexpr const char* kNo[] = {"", "another process listens at the peer's address",
                                        "the two ends differ in security.bulk", "the peer has no room for connections"};
  if (welcome->answer != Answer::kYes)
    return doom(Error(welcome->answer == Answer::kFull ? Code::kExhausted : Code::kMismatch,
                      kNo[static_cast<std::size_t>(welcome->answer)]));
  if (Status s = keys(welcome->nonce); !s.ok()) return doom(s.error());
  state_ = State::kOpen;
  owner_.opened(*this);
}

void Stream::answer_hello() {
  const auto hello = decode_hello(std::span(head_).first(kHelloBytes));
  if (!hello.ok()) return doom(hello.error());
  hello_ = *hello;
  Welcome welcome{.answer = owner_.admit(*this, *hello), .nonce = {}};
  if (Status s = fresh(welcome.nonce); !s.ok()) return doom(s.error());
  control_.push_back(encode(welcome));
  if (welcome.answer != Answer::kYes) {
    writable();
    return doom(Error(Code::kMismatch, "a connector was turned away"));
  }
  if (Status s = keys(welcome.nonce); !s.ok()) return doom(s.error());
  state_ = State::kOpen;
  owner_.opened(*this);
}

void Stream::read_handshake() {
  if (!read_exact(outgoing_ ? kWelcomeBytes : kHelloBytes)) return;
  outgoing_ ? read_welcome() : answer_hello();
}

// ---- in ----

void Stream::readable() {
  if (state_ == State::kConnecting) return;
  const std::uint64_t until = bytes_in + kTurnBytes;
  while (bytes_in < until) {
    const std::uint64_t before = bytes_in;
    if (state_ == State::kHello)
      read_handshake();
    else if (state_ == State::kOpen && !(in_payload_ ? read_payload() : read_frame()))
      return;
    if (state_ == State::kDead || bytes_in == before) return;
  }
}

// The tag of the frame whose bytes mac_in_ has seen.
bool Stream::verify() {
  if (!mac_in_) return proven_ = true;
  const auto tag = mac_in_->finish();
  if (tag.ok() && same_tag(*tag, std::span(head_).subspan(kHeaderBytes))) return proven_ = true;
  doom(tag.ok() ? Error(Code::kCorrupt, "a frame is not authentic (security.bulk: mac)") : tag.error());
  return false;
}

bool Stream::read_frame() {
  if (!read_exact(kFrameBytes)) return false;
  auto header = decode_header(head_);
  if (!header.ok()) {
    doom(std::move(header).error());
    return false;
  }
  header_ = *header;
  if (mac_in_) mac_in_->begin(std::span(head_).first(kHeaderBytes));
  if (header_.length == 0) {
    if (!verify()) return false;
    owner_.frame(*this, header_);
    return state_ == State::kOpen;
  }
  auto sink = owner_.sink(*this, header_);
  if (!sink.ok()) {
    doom(std::move(sink).error());
    return false;
  }
  incoming_ = std::move(*sink);
  in_payload_ = true;
  payload_have_ = 0;
  return true;
}

bool Stream::read_payload() {
  static thread_local std::array<std::byte, kScratch> scratch;
  const std::size_t left = header_.length - payload_have_;
  std::byte* to = incoming_ ? incoming_->slot.data() + header_.offset + payload_have_ : scratch.data();
  const std::size_t most = incoming_ ? (mac_in_ ? kWarm : left) : scratch.size();
  const ssize_t n = ::recv(fd_.get(), to, std::min(left, most), MSG_DONTWAIT);
  if (failed(n, "reading") || n < 0) return false;
  if (mac_in_) mac_in_->add({to, static_cast<std::size_t>(n)});  // while it is in the cache
  bytes_in += static_cast<std::uint64_t>(n);
  payload_have_ += static_cast<std::uint32_t>(n);
  seen_ns = owner_.now();
  if (incoming_) incoming_->progress_ns = seen_ns;
  return payload_have_ < header_.length || finish_payload();
}

bool Stream::finish_payload() {
  in_payload_ = false;
  const std::shared_ptr<Incoming> incoming = std::move(incoming_);
  if (!verify()) return false;
  if (incoming) owner_.arrived(*this, header_, incoming);
  return state_ == State::kOpen;
}

// ---- out ----

Status Stream::tag(Bytes& head, const Post* post, Cursor at, std::uint64_t length) {
  if (!mac_out_) return {};
  mac_out_->begin(std::span(head).first(kHeaderBytes));
  for (; length > 0; ++at.part, at.offset = 0) {
    const auto part = post->parts[at.part].subspan(at.offset);
    const std::size_t take = std::min<std::uint64_t>(part.size(), length);
    mac_out_->add(part.first(take));
    length -= take;
  }
  REFIT_ASSIGN(const Tag tag, mac_out_->finish());
  std::copy(tag.begin(), tag.end(), head.begin() + kHeaderBytes);
  return {};
}

void Stream::send(const Header& header) {
  if (state_ != State::kOpen) return;
  if (control_.size() >= kMaxControl) return doom(Error(Code::kTimeout, "the peer does not read its control frames"));
  Bytes head = encode(header);
  if (Status s = tag(head, nullptr, {}, 0); !s.ok()) return doom(s.error());
  control_.push_back(std::move(head));
}

void Stream::send_chunk(std::shared_ptr<Outgoing> of, std::uint32_t length) {
  Chunk c{.of = std::move(of), .head = {}, .head_done = 0, .at = {}, .left = length};
  c.at = c.of->cursor;
  Header h{.type = Type::kData,
           .length = length,
           .id = c.of->id,
           .bucket = c.of->post->bucket,
           .code = 0,
           .offset = c.of->cut,
           .bytes = c.of->post->bytes};
  c.head = encode(h);
  advance(*c.of->post, c.of->cursor, length);
  c.of->cut += length;
  if (Status s = tag(c.head, c.of->post.get(), c.at, length); !s.ok()) return doom(s.error());
  chunk_ = std::move(c);
}

bool Stream::flush_control() {
  while (!control_.empty()) {
    const Bytes& front = control_.front();
    const ssize_t n =
        ::send(fd_.get(), front.data() + control_done_, front.size() - control_done_, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0) {
      (void)failed(n, "sending");
      return false;
    }
    control_done_ += static_cast<std::size_t>(n);
    bytes_out += static_cast<std::uint64_t>(n);
    sent_ns = owner_.now();
    if (control_done_ < front.size()) return false;
    control_.pop_front();
    control_done_ = 0;
  }
  return true;
}

bool Stream::flush_chunk() {
  for (std::uint64_t sent = 0; chunk_ && sent < kTurnBytes;) {
    Chunk& c = *chunk_;
    std::array<iovec, kParts> parts;
    parts[0] = {c.head.data() + c.head_done, c.head.size() - c.head_done};
    const std::size_t used = 1 + parts_at(*c.of->post, c.at, c.left, std::span(parts).subspan(1));
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = used;
    const ssize_t n = ::sendmsg(fd_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0) {
      (void)failed(n, "sending");
      return false;
    }
    auto moved = static_cast<std::uint64_t>(n);
    sent += moved;
    bytes_out += moved;
    sent_ns = c.of->progress_ns = owner_.now();
    const std::uint64_t of_head = std::min<std::uint64_t>(moved, c.head.size() - c.head_done);
    c.head_done += of_head;
    moved -= of_head;
    advance(*c.of->post, c.at, moved);
    c.left -= moved;
    if (c.left == 0 && c.head_done == c.head.size()) chunk_.reset();
  }
  return !chunk_;
}

void Stream::writable() {
  if (state_ == State::kConnecting) greet();
  // A chunk in hand was tagged before the frames that wait: one order for tags and bytes.
  if (state_ != State::kDead && chunk_ && !flush_chunk()) return;
  if (state_ != State::kDead) (void)flush_control();
}

}  // namespace refit::transport::tcp
