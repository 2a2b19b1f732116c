// The loop thread of an exchange: the only one that polls, and the only one that destroys streams.
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>

#include "transport/common/net.h"
#include "transport/tcp/exchange.h"

namespace refit::transport::tcp {
namespace {

constexpr std::size_t kMaxIncoming = 4096, kMaxStrangers = 256;
constexpr std::int64_t kHandshakeNs = 5 * kNsPerSecond;
constexpr std::int64_t kBeatNs = kNsPerSecond;
constexpr std::uint64_t kChunk = 1 << 20;

std::string seconds(std::int64_t ns) { return std::to_string(ns / kNsPerSecond) + " s"; }

}  // namespace

void Exchange::loop() {
  while (!stop_.load()) poll_once();
  const std::lock_guard lock(mutex_);
  // What lanes said last: peers hear it if their sockets take it now; else the closed connection says the same.
  for (auto& [member, link] : links_)
    for (auto& stream : link->streams) stream->writable();
  for (auto& stream : incoming_) stream->writable();
}

int Exchange::poll_ms() const {
  return static_cast<int>(std::clamp<std::int64_t>(options_.net.stall_ns / 8 / 1'000'000, 10, 250));
}

void Exchange::poll_once() {
  std::vector<pollfd> polled;
  std::vector<Stream*> streams;
  {
    while (callers_.load() > 0) std::this_thread::yield();
    const std::lock_guard lock(mutex_);
    graveyard_.clear();
    polled.push_back({wake_->fd(), POLLIN, 0});
    polled.push_back({listener_.get(), POLLIN, 0});
    const auto add = [&](Stream& s) {
      streams.push_back(&s);
      polled.push_back({s.fd(), static_cast<short>(POLLIN | (s.wants_write() ? POLLOUT : 0)), 0});
    };
    for (auto& [member, link] : links_)
      for (auto& stream : link->streams) add(*stream);
    for (auto& stream : incoming_) add(*stream);
  }
  (void)::poll(polled.data(), polled.size(), poll_ms());
  const auto turn = [&] {
    while (callers_.load() > 0) std::this_thread::yield();
    return std::lock_guard(mutex_);
  };
  if (polled[0].revents != 0) wake_->lower();
  {
    const auto lock = turn();
    forgive_own_gap();
    if (polled[1].revents != 0) accept_all();
  }
  for (std::size_t i = 0; i < streams.size(); ++i) {
    if (polled[i + 2].revents == 0) continue;
    const auto lock = turn();
    move(*streams[i], polled[i + 2].revents);
  }
  const auto lock = turn();
  timers();
  bury();
  serve_offers();
  serve_links();
  bury();
}

void Exchange::accept_all() {
  while (true) {
    Fd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd.valid()) return;
    const auto strangers =
        std::count_if(incoming_.begin(), incoming_.end(), [](const auto& s) { return !s->proven(); });
    if (incoming_.size() >= kMaxIncoming || static_cast<std::size_t>(strangers) >= kMaxStrangers) {
      ++counters_.frames_foreign;
      continue;
    }
    tune(fd.get(), options_.net.stall_ns);
    incoming_.push_back(std::make_unique<Stream>(*this, std::move(fd), security_, card_.key));
  }
}

void Exchange::move(Stream& stream, short events) {
  if (stream.dead()) return;
  if ((events & POLLOUT) != 0) stream.writable();
  if (!stream.dead() && (events & (POLLIN | POLLHUP | POLLERR)) != 0) {
    if (stream.outgoing() && !stream.open()) stream.writable();  // a refused connection shows as an error only
    if (!stream.dead()) stream.readable();
  }
}

// Streams that ended: their links and lanes hear why, then they go.
void Exchange::bury() {
  for (auto& [member, link] : links_) {
    const auto dead = std::find_if(link->streams.begin(), link->streams.end(), [](const auto& s) { return s->dead(); });
    if (dead == link->streams.end()) continue;
    if ((*dead)->why().code == Code::kCorrupt) ++counters_.frames_bad;
    fail_link(*link, Error((*dead)->why()));
  }
  for (auto& stream : incoming_) {
    if (!stream->dead()) continue;
    if (stream->why().code == Code::kCorrupt) ++counters_.frames_bad;
    const Hello& who = stream->hello();
    if (who.job != options_.job) continue;  // it was never let in
    lose(who.from, who.from_incarnation, stream->why(), true);
    if (who.stream == 0)
      std::erase_if(offers_,
                    [&](const Offer& o) { return o.member == who.from && o.incarnation == who.from_incarnation; });
  }
  for (auto& stream : incoming_)
    if (stream->dead()) graveyard_.push_back(std::move(stream));
  std::erase(incoming_, nullptr);
}

// A process that itself stood still judges nobody for silence (rule L2).
void Exchange::forgive_own_gap() {
  const std::int64_t t = now();
  const bool gap = t - last_turn_ns_ > std::max(kNsPerSecond, options_.net.stall_ns / 2);
  last_turn_ns_ = t;
  if (!gap) return;
  const auto forgive = [&](Stream& s) { s.seen_ns = s.born_ns = t; };
  for (auto& stream : incoming_) forgive(*stream);
  for (auto& [member, link] : links_) {
    for (auto& stream : link->streams) forgive(*stream);
    for (auto& out : link->todo) out->progress_ns = t;
  }
  for (auto& [serial, lane] : lanes_)
    for (auto& [key, incoming] : lane->incoming) incoming->progress_ns = t;
}

void Exchange::check_stream(Stream& s, std::int64_t t) {
  const std::int64_t stall = options_.net.stall_ns;
  if (!s.proven()) {
    if (t - s.born_ns > std::min(kHandshakeNs, stall))
      s.doom(Error(Code::kTimeout, "no handshake within " + seconds(std::min(kHandshakeNs, stall))));
    return;
  }
  if (s.hello().stream != 0) return;  // one connection of each pair has the heartbeats
  if (t - s.seen_ns > stall) return s.doom(Error(Code::kTimeout, "the peer was silent for " + seconds(stall)));
  if (t - s.sent_ns > std::min(kBeatNs, stall / 4)) {
    Header beat;
    beat.id.job = options_.job;
    beat.id.incarnation = options_.incarnation;
    s.send(beat);
    s.sent_ns = t;
  }
}

void Exchange::timers() {
  const std::int64_t t = now();
  for (auto& stream : incoming_)
    if (!stream->dead()) check_stream(*stream, t);
  for (auto& [member, link] : links_)
    for (auto& stream : link->streams)
      if (!stream->dead()) check_stream(*stream, t);
  check_progress(t);
}

// Peers that live but move nothing. Judged per peer: a bucket may wait behind another one.
void Exchange::check_progress(std::int64_t t) {
  const std::int64_t stall = options_.net.stall_ns;
  for (auto& [member, link] : links_) {
    std::int64_t newest = 0;
    for (auto& out : link->todo)
      if (out->state == Outgoing::State::kGranted) newest = std::max(newest, out->progress_ns);
    if (newest != 0 && t - newest > stall)
      fail_link(*link, Error(Code::kTimeout, "the peer took no byte for " + seconds(stall)));
  }
  for (auto& [serial, lane] : lanes_) {
    std::map<std::uint32_t, std::int64_t> newest;
    for (auto& [key, incoming] : lane->incoming) newest[key.first] = std::max(newest[key.first], incoming->progress_ns);
    for (const auto& [sender, at_ns] : newest)
      if (t - at_ns > stall)
        lose(sender, lane->peers.at(sender).incarnation,
             Error(Code::kTimeout, "the peer sent no byte for " + seconds(stall)), true);
  }
}

void Exchange::serve_links() {
  for (auto& [member, link] : links_) serve_link(*link);
}

void Exchange::serve_link(Link& link) {
  finish_condemned(link);
  if (link.todo.empty() && !link.watch) return;
  if (link.streams.empty()) {
    if (const Status s = connect(link); !s.ok()) fail_link(link, s.error());
    return;
  }
  if (!link.streams[0]->open()) return;
  offer_some(link);
  const bool granted = std::any_of(link.todo.begin(), link.todo.end(), [](const auto& out) {
    return out->state == Outgoing::State::kGranted && out->cut < out->post->bytes;
  });
  if (!granted) return;
  while (link.streams.size() < static_cast<std::size_t>(options_.net.streams))
    if (const Status s = connect(link); !s.ok()) return fail_link(link, s.error());
  cut_chunks(link);
}

void Exchange::finish_condemned(Link& link) {
  for (auto it = link.todo.begin(); it != link.todo.end();) {
    const bool sent_now =
        std::any_of(link.streams.begin(), link.streams.end(), [&](const auto& s) { return s->sending() == it->get(); });
    if (!(*it)->error || sent_now) {
      ++it;
      continue;
    }
    finish(**it, link.peer, (*it)->error);
    it = link.todo.erase(it);
  }
}

void Exchange::offer_some(Link& link) {
  std::size_t known = 0;
  for (auto& out : link.todo) {
    if (known >= kOffered) return;
    ++known;
    if (out->state != Outgoing::State::kQueued) continue;
    link.streams[0]->send({.type = Type::kOffer,
                           .length = 0,
                           .id = out->id,
                           .bucket = out->post->bucket,
                           .code = 0,
                           .offset = 0,
                           .bytes = out->post->bytes});
    out->state = Outgoing::State::kOffered;
  }
}

void Exchange::cut_chunks(Link& link) {
  for (auto& stream : link.streams) {
    if (!stream->idle()) continue;
    for (auto& out : link.todo) {
      if (out->state != Outgoing::State::kGranted || out->error || out->cut == out->post->bytes) continue;
      stream->send_chunk(out, static_cast<std::uint32_t>(std::min(kChunk, out->post->bytes - out->cut)));
      break;
    }
  }
}

Status Exchange::connect(Link& link) {
  Hello hello{options_.job,
              options_.member,
              link.peer.member,
              options_.incarnation,
              link.peer.incarnation,
              security_,
              static_cast<std::uint32_t>(link.streams.size()),
              {}};
  REFIT_TRY(fresh(hello.nonce));
  REFIT_ASSIGN(Fd fd, connect_to(link.card.host, link.card.port));
  tune(fd.get(), options_.net.stall_ns);
  link.streams.push_back(std::make_unique<Stream>(*this, std::move(fd), hello, link.card.key));
  return {};
}

void Exchange::close_streams(Link& link) {
  for (auto& stream : link.streams) {
    stream->doom(Error(Code::kCancelled, "the connections to this peer were closed"));
    graveyard_.push_back(std::move(stream));
  }
  link.streams.clear();
}

// Everything that waits for this peer ends; what comes later connects again.
void Exchange::fail_link(Link& link, const Error& error) {
  close_streams(link);
  link.watch = false;
  std::list<std::shared_ptr<Outgoing>> todo;
  todo.swap(link.todo);
  for (auto& out : todo) finish(*out, link.peer, out->error ? out->error : error);
  // A connection that an abort of our own has cut says nothing about the peer.
  if (error.code != Code::kCancelled) lose(link.peer.member, link.peer.incarnation, error, false);
}

}  // namespace refit::transport::tcp
