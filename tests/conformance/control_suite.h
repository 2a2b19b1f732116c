// What every control lane must do. Instantiated per mover in control_test.cpp.
#pragma once
#include <algorithm>
#include <map>
#include <thread>

#include "bed.h"

namespace refit::conformance {

// A coordinator lane and any number of member lanes, each of its own mover.
struct Star {
  Bed* bed = nullptr;
  std::vector<std::unique_ptr<Mover>> movers;
  std::unique_ptr<ControlLane> hub;
  std::string address;
  std::int64_t silent_after_ms = 10'000;
  std::map<const ControlLane*, std::vector<Liveness>> events;  // seen, not yet waited for

  static Result<Star> make(Bed& bed) {
    Star s;
    s.bed = &bed;
    s.address = bed.control_address();
    REFIT_ASSIGN(s.hub, s.open(true));
    s.address = s.hub->address();  // with the port that it has
    return s;
  }
  Result<std::unique_ptr<ControlLane>> open(bool listen) {
    MoverOptions options;
    options.runtime_dir = bed->runtime_dir;
    options.job = bed->job;
    options.member = static_cast<std::uint32_t>(movers.size());
    options.incarnation = Incarnation(movers.size() + 1);
    REFIT_ASSIGN(auto mover, bed->mover(options));
    movers.push_back(std::move(mover));
    ControlAddress at{address, listen, silent_after_ms};
    at.keys = bed->control_keys(listen);
    REFIT_ASSIGN(auto lane, movers.back()->open_control(at));
    events.erase(lane.get());
    return lane;
  }
  Deadline patience() const { return Deadline::after_s(bed->patience_s); }
  // The next event of `lane` within the patience.
  Result<Liveness> event(ControlLane& lane, PeerEvent wanted) {
    std::vector<Liveness>& seen = events[&lane];
    for (const Deadline deadline = patience(); !deadline.over(); bed->turn()) {
      for (const Liveness& l : lane.liveness()) seen.push_back(l);
      const auto it = std::find_if(seen.begin(), seen.end(), [&](const Liveness& l) { return l.event == wanted; });
      if (it == seen.end()) continue;
      const Liveness found = *it;
      seen.erase(it);
      return found;
    }
    return Error(Code::kTimeout, "no such liveness event");
  }
  // A member that is connected, and its number at the hub.
  Result<std::pair<std::unique_ptr<ControlLane>, std::uint32_t>> join() {
    REFIT_ASSIGN(auto lane, open(false));
    REFIT_ASSIGN(const Liveness at_hub, event(*hub, PeerEvent::kConnected));
    REFIT_ASSIGN(const Liveness at_member, event(*lane, PeerEvent::kConnected));
    REFIT_MUST(at_member.peer == 0, "the coordinator is peer 0");
    return std::pair{std::move(lane), at_hub.peer};
  }
};

inline Bytes message(std::size_t bytes, std::uint32_t salt) {
  Bytes out(bytes);
  fill(out, salt);
  return out;
}

inline Status control_sizes_both_ways(Bed& bed) {
  REFIT_ASSIGN(auto s, Star::make(bed));
  REFIT_ASSIGN(auto member, s.join());
  std::uint32_t salt = 0;
  for (std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{7}, std::size_t{4097}, std::size_t{1} << 20,
                            static_cast<std::size_t>(kMaxControlBytes)}) {
    REFIT_TRY(member.first->send(0, message(bytes, ++salt)));
    REFIT_ASSIGN(const ControlMessage up, s.hub->next(s.patience()));
    REFIT_MUST(up.peer == member.second && up.bytes == message(bytes, salt), "bytes differ on the way up");
    REFIT_TRY(s.hub->send(member.second, message(bytes, ++salt)));
    REFIT_ASSIGN(const ControlMessage down, member.first->next(s.patience()));
    REFIT_MUST(down.peer == 0 && down.bytes == message(bytes, salt), "bytes differ on the way down");
  }
  const Bytes large(static_cast<std::size_t>(kMaxControlBytes) + 1);
  const Status refused = s.hub->send(member.second, large);
  REFIT_MUST(!refused.ok() && refused.error().code == Code::kInvalid && refused.error().have == kMaxControlBytes,
             "an oversized message");
  return {};
}

inline Status control_order_and_once(Bed& bed) {
  REFIT_ASSIGN(auto s, Star::make(bed));
  std::vector<std::unique_ptr<ControlLane>> members;
  std::map<std::uint32_t, std::uint32_t> salt_of, seen;
  for (std::uint32_t m = 0; m < 4; ++m) {
    REFIT_ASSIGN(auto joined, s.join());
    salt_of[joined.second] = m;
    members.push_back(std::move(joined.first));
  }
  REFIT_MUST(salt_of.size() == 4, "peer numbers are distinct");
  constexpr std::uint32_t kEach = 200;
  for (std::uint32_t m = 0; m < 4; ++m)
    for (std::uint32_t i = 0; i < kEach; ++i) REFIT_TRY(members[m]->send(0, message(10 + i, m * 1000 + i)));
  for (std::uint32_t i = 0; i < 4 * kEach; ++i) {
    REFIT_ASSIGN(const ControlMessage got, s.hub->next(s.patience()));
    const std::uint32_t n = seen[got.peer]++;
    REFIT_MUST(got.bytes == message(10 + n, salt_of.at(got.peer) * 1000 + n), "lost, repeated, reordered or changed");
  }
  REFIT_MUST(err(s.hub->next(Deadline::after_ns(30'000'000))).code == Code::kTimeout, "more messages than were sent");
  return {};
}

inline Status control_send_before_connected(Bed& bed) {
  REFIT_ASSIGN(auto s, Star::make(bed));
  REFIT_TRY(s.hub->close(s.patience()));
  REFIT_ASSIGN(auto early, s.open(false));  // nobody listens yet
  REFIT_TRY(early->send(0, message(5, 1)));
  REFIT_MUST(err(early->next(Deadline::after_ns(30'000'000))).code == Code::kTimeout, "nothing can have come");
  REFIT_ASSIGN(s.hub, s.open(true));
  REFIT_ASSIGN(const ControlMessage got, s.hub->next(s.patience()));
  REFIT_MUST(got.bytes == message(5, 1), "the first message is kept until there is a coordinator");
  return {};
}

inline Status control_close_is_seen(Bed& bed) {
  REFIT_ASSIGN(auto s, Star::make(bed));
  REFIT_ASSIGN(auto a, s.join());
  REFIT_ASSIGN(auto b, s.join());
  REFIT_TRY(a.first->send(0, message(3, 1)));
  REFIT_TRY(a.first->close(s.patience()));
  REFIT_TRY(a.first->close(s.patience()));
  REFIT_MUST(err(a.first->send(0, message(3, 1))).code == Code::kCancelled, "a closed lane is refused");
  REFIT_MUST(err(a.first->next(s.patience())).code == Code::kCancelled, "a closed lane is refused");
  REFIT_ASSIGN(const ControlMessage last, s.hub->next(s.patience()));
  REFIT_MUST(last.peer == a.second, "what was sent before close arrives");
  REFIT_ASSIGN(const Liveness gone, s.event(*s.hub, PeerEvent::kGone));
  REFIT_MUST(gone.peer == a.second, "the wrong peer is gone");
  REFIT_MUST(err(s.hub->send(a.second, message(1, 1))).code == Code::kPeerLost, "sending to a peer that is gone");
  // The other one is not touched, and who comes back is a new peer.
  REFIT_TRY(s.hub->send(b.second, message(2, 2)));
  REFIT_ASSIGN(const ControlMessage kept, b.first->next(s.patience()));
  REFIT_MUST(kept.bytes == message(2, 2), "bytes differ");
  REFIT_ASSIGN(auto again, s.join());
  REFIT_MUST(again.second != a.second && again.second != b.second, "a peer number was reused");
  return {};
}

inline Status control_hub_close_is_seen(Bed& bed) {
  REFIT_ASSIGN(auto s, Star::make(bed));
  REFIT_ASSIGN(auto a, s.join());
  REFIT_TRY(s.hub->send(a.second, message(9, 3)));
  REFIT_TRY(s.hub->close(s.patience()));
  REFIT_ASSIGN(const Liveness gone, s.event(*a.first, PeerEvent::kGone));
  REFIT_MUST(gone.peer == 0, "the coordinator is peer 0");
  REFIT_ASSIGN(const ControlMessage last, a.first->next(s.patience()));
  REFIT_MUST(last.bytes == message(9, 3), "what came before the end is still handed out");
  REFIT_MUST(err(a.first->next(s.patience())).code == Code::kPeerLost, "then the loss is told");
  REFIT_MUST(err(a.first->send(0, message(1, 1))).code == Code::kPeerLost, "the loss sticks");
  // A new coordinator at the same place.
  REFIT_ASSIGN(s.hub, s.open(true));
  REFIT_ASSIGN(auto b, s.join());
  return {};
}

inline Status control_abort_sticks(Bed& bed) {
  REFIT_ASSIGN(auto s, Star::make(bed));
  REFIT_ASSIGN(auto a, s.join());
  s.hub->abort(Error(Code::kCorrupt, "first"));
  s.hub->abort(Error(Code::kTimeout, "second"));
  REFIT_MUST(err(s.hub->send(a.second, message(1, 1))).message == "first", "send forgot the error");
  REFIT_MUST(err(s.hub->next(s.patience())).message == "first", "next forgot the error");
  REFIT_ASSIGN(const Liveness gone, s.event(*a.first, PeerEvent::kGone));
  REFIT_MUST(gone.peer == 0, "the peer must hear of it");
  return s.hub->close(s.patience());
}

inline Status control_abort_wakes_next(Bed& bed) {
  REFIT_ASSIGN(auto s, Star::make(bed));
  std::thread other([&] {
    system_env().wait(Deadline::after_ns(30'000'000));
    s.hub->abort(Error(Code::kCancelled, "from another thread"));
  });
  const auto got = s.hub->next(Deadline::after_s(30));
  other.join();
  REFIT_MUST(!got.ok() && got.error().message == "from another thread", "next was not woken");
  return {};
}

inline Status control_bounded_queue(Bed& bed) {
  REFIT_ASSIGN(auto s, Star::make(bed));
  REFIT_TRY(s.hub->close(s.patience()));
  REFIT_ASSIGN(auto lonely, s.open(false));
  std::size_t taken = 0;
  Status last;
  while (last.ok() && taken <= 2 * kControlQueueMessages) {
    last = lonely->send(0, message(16, 1));
    if (last.ok()) ++taken;
  }
  REFIT_MUST(!last.ok() && last.error().code == Code::kExhausted, "the queue to an absent peer must be bounded");
  REFIT_MUST(taken >= 64, "but it holds a burst");
  REFIT_MUST(err(s.hub->send(77, message(1, 1))).code != Code::kInternal, "an unknown peer is an error");
  return {};
}

inline Status control_send_from_threads(Bed& bed) {
  REFIT_ASSIGN(auto s, Star::make(bed));
  REFIT_ASSIGN(auto a, s.join());
  constexpr std::uint32_t kThreads = 4, kEach = 100;
  std::vector<std::thread> threads;
  for (std::uint32_t t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      for (std::uint32_t i = 0; i < kEach; ++i) (void)a.first->send(0, message(8, t * 1000 + i));
    });
  std::map<Bytes, int> got;
  Status failed;
  for (std::uint32_t i = 0; i < kThreads * kEach && failed.ok(); ++i) {
    auto one = s.hub->next(s.patience());
    if (one.ok())
      ++got[one->bytes];
    else
      failed = one.error();
  }
  for (std::thread& t : threads) t.join();
  REFIT_TRY(failed);
  for (std::uint32_t t = 0; t < kThreads; ++t)
    for (std::uint32_t i = 0; i < kEach; ++i) REFIT_MUST(got[message(8, t * 1000 + i)] == 1, "lost or repeated");
  return {};
}

inline Status control_deadline_holds(Bed& bed) {
  REFIT_ASSIGN(auto s, Star::make(bed));
  const std::int64_t start = monotonic_ns();
  REFIT_MUST(err(s.hub->next(Deadline::after_ns(20'000'000))).code == Code::kTimeout, "nothing came");
  REFIT_MUST(monotonic_ns() - start < static_cast<std::int64_t>(bed.slack_s * 1e9), "deadline overrun");
  return {};
}

inline Status control_refuses_tcp(Bed& bed) {
  REFIT_ASSIGN(auto s, Star::make(bed));
  for (bool listen : {true, false})
    for (const char* address : {"tcp://127.0.0.1:5555", "tcp://*:0"}) {
      const auto lane = s.movers[0]->open_control({address, listen, 10'000});
      REFIT_MUST(!lane.ok() && lane.error().code == Code::kUnsupported &&
                     lane.error().message.find("key") != std::string::npos,
                 "tcp without keys");
    }
  for (const char* address : {"", "ipc://", "ipc://relative", "ipc://@abstract", "ipc://*", "inproc://x"})
    REFIT_MUST(!s.movers[0]->open_control({address, true, 10'000}).ok(), std::string("accepted ") + address);
  return {};
}

inline Status control_flat_over_rounds(Bed& bed) {
  REFIT_ASSIGN(auto s, Star::make(bed));
  std::size_t fds = 0, threads = 0;
  for (int round = 0; round < 40; ++round) {
    {
      REFIT_ASSIGN(auto a, s.join());
      REFIT_TRY(a.first->send(0, message(100, 1)));
      REFIT_TRY(s.hub->next(s.patience()));
      REFIT_TRY(a.first->close(s.patience()));
      REFIT_TRY(s.event(*s.hub, PeerEvent::kGone));
    }
    s.movers.pop_back();
    system_env().wait(Deadline::after_ns(1'000'000));
    if (round == 4) fds = open_descriptors(), threads = live_threads();
  }
  // The last peer's connection may still be closing.
  for (const Deadline deadline = s.patience(); open_descriptors() > fds && !deadline.over();) bed.turn();
  REFIT_MUST(open_descriptors() <= fds && live_threads() <= threads, "descriptors or threads grow");
  return {};
}

inline std::vector<Check> control_checks() {
  return {{"sizes_both_ways", control_sizes_both_ways},
          {"order_and_once", control_order_and_once},
          {"send_before_connected", control_send_before_connected},
          {"close_is_seen", control_close_is_seen},
          {"hub_close_is_seen", control_hub_close_is_seen},
          {"abort_sticks", control_abort_sticks},
          {"abort_wakes_next", control_abort_wakes_next, true},
          {"bounded_queue", control_bounded_queue},
          {"send_from_threads", control_send_from_threads, true},
          {"deadline_holds", control_deadline_holds},
          {"refuses_tcp", control_refuses_tcp},
          {"flat_over_rounds", control_flat_over_rounds}};
}

}  // namespace refit::conformance
