// What every push lane must do. Instantiated per mover in push_test.cpp.
#pragma once
#include <limits>
#include <map>
#include <thread>

#include "bed.h"

namespace refit::conformance {

struct PushPair : Pair {
  std::unique_ptr<PushLane> out, in;  // of the source, of the target

  static Result<PushPair> make(Bed& bed) {
    REFIT_ASSIGN(Pair base, Pair::make(bed));
    PushPair p;
    static_cast<Pair&>(p) = std::move(base);
    REFIT_TRY(p.open());
    return p;
  }
  Status open() {
    ++rounds;
    REFIT_ASSIGN(out, source->open_push(lane_id(kSource), of_source));
    REFIT_ASSIGN(in, target->open_push(lane_id(kTarget), of_target));
    return {};
  }
  Status close() {
    REFIT_TRY(out->close(patience()));
    return in->close(patience());
  }
  // Completions of `lane` until there are `count`, or the patience ends.
  std::vector<Completion> completions(PushLane& lane, std::size_t count) {
    std::vector<Completion> all;
    for (const Deadline deadline = patience(); all.size() < count && !deadline.over();) {
      const auto some = drain(lane);
      all.insert(all.end(), some.begin(), some.end());
      if (all.size() < count) bed->turn();
    }
    return all;
  }
};

inline constexpr std::uint32_t kToTarget[] = {kTarget}, kToSource[] = {kSource};
inline Result<std::uint64_t> post_one(PushLane& lane, std::uint32_t bucket, const Bytes& bytes,
                                      std::span<const std::uint32_t> to = kToTarget) {
  const std::span<const std::byte> part = bytes;
  return lane.post(BucketId(bucket), {&part, 1}, to);
}
inline Bytes payload(std::int64_t bytes, std::uint32_t salt) {
  Bytes out(static_cast<std::size_t>(bytes));
  fill(out, salt);
  return out;
}

inline Status push_sizes(Bed& bed) {
  REFIT_ASSIGN(auto p, PushPair::make(bed));
  const std::vector<std::int64_t> sizes{0, 1, 3, 4095, 4097, (1 << 20) + 13, 24 << 20};
  std::vector<Expected> expected;
  std::vector<Bytes> sent;
  for (std::uint32_t b = 0; b < sizes.size(); ++b) {
    expected.push_back({BucketId(b), kSource, sizes[b]});
    sent.push_back(payload(sizes[b], b));
  }
  REFIT_TRY(p.in->expect(expected));
  for (std::uint32_t b = 0; b < sizes.size(); ++b) {
    // In three parts, one of them empty.
    const std::span<const std::byte> all = sent[b];
    const std::span<const std::byte> parts[] = {all.first(all.size() / 3), {}, all.subspan(all.size() / 3)};
    REFIT_TRY(p.out->post(BucketId(b), parts, kToTarget));
    REFIT_ASSIGN(const Lease lease, p.in->next(p.patience()));
    REFIT_MUST(lease.bucket().value == b && lease.sender() == kSource, "lease of another bucket");
    REFIT_MUST(std::equal(lease.packed().begin(), lease.packed().end(), sent[b].begin(), sent[b].end()),
               "bytes differ");
  }
  const auto done = p.completions(*p.out, sizes.size());
  REFIT_MUST(done.size() == sizes.size(), "not every post completed");
  for (const Completion& c : done) REFIT_MUST(!c.error && c.member == kTarget, "a post failed");
  REFIT_MUST(err(p.in->next(Deadline::after_ns(1'000'000))).code == Code::kTimeout, "more leases than posts");
  for (std::size_t b = 0; b < sizes.size(); ++b)
    REFIT_MUST(sent[b] == payload(sizes[b], static_cast<std::uint32_t>(b)), "the sender's bytes changed");
  return p.close();
}

// More than the staging holds at once: back-pressure, then all of it, each once.
inline Status push_many_outstanding(Bed& bed) {
  REFIT_ASSIGN(auto p, PushPair::make(bed));
  constexpr std::uint32_t kBuckets = 200;
  std::vector<Expected> expected;
  std::vector<Bytes> sent;
  for (std::uint32_t b = 0; b < kBuckets; ++b) {
    sent.push_back(payload(500'000 + b, b));
    expected.push_back({BucketId(b), kSource, 600'000});
  }
  std::map<std::uint64_t, int> owed;
  for (std::uint32_t b = 0; b < kBuckets; ++b) {
    REFIT_ASSIGN(const std::uint64_t ticket, post_one(*p.out, b, sent[b]));
    REFIT_MUST(owed.emplace(ticket, 1).second, "ticket used twice");
  }
  bed.turn();
  // Nobody has room for them yet: the memory is still lent.
  REFIT_MUST(drain(*p.out).empty(), "complete before the receiver could take it");
  REFIT_TRY(p.in->expect(expected));
  std::vector<int> seen(kBuckets, 0);
  for (std::uint32_t i = 0; i < kBuckets; ++i) {
    REFIT_ASSIGN(const Lease lease, p.in->next(p.patience()));
    const std::uint32_t b = lease.bucket().value;
    REFIT_MUST(b < kBuckets && seen[b]++ == 0, "bucket arrived twice");
    REFIT_MUST(std::equal(lease.packed().begin(), lease.packed().end(), sent[b].begin(), sent[b].end()),
               "bytes differ");
  }
  const auto done = p.completions(*p.out, kBuckets);
  for (const Completion& c : done) REFIT_MUST(!c.error && owed[c.ticket]-- == 1, "failed or completed twice");
  REFIT_MUST(done.size() == kBuckets, "not every post completed");
  return p.close();
}

inline Status push_bounded_staging(Bed& bed) {
  REFIT_ASSIGN(auto p, PushPair::make(bed));
  const Bytes large = payload(40 << 20, 1), second = payload(40 << 20, 2);  // the staging has 64 MiB
  const Expected expected[] = {{BucketId(1), kSource, 40 << 20}, {BucketId(2), kSource, 40 << 20}};
  REFIT_TRY(p.in->expect(expected));
  REFIT_TRY(post_one(*p.out, 1, large));
  REFIT_TRY(post_one(*p.out, 2, second));
  {
    REFIT_ASSIGN(const Lease held, p.in->next(p.patience()));
    REFIT_MUST(p.completions(*p.out, 1).size() == 1, "the first post completes");
    REFIT_MUST(err(p.in->next(Deadline::after_ns(20'000'000))).code == Code::kTimeout,
               "staging is full while the lease is held");
    REFIT_MUST(drain(*p.out).empty(), "the second post was completed without room for it");
  }
  REFIT_TRY(p.in->next(p.patience()));
  return p.close();
}

inline Status push_both_directions(Bed& bed) {
  REFIT_ASSIGN(auto p, PushPair::make(bed));
  const Bytes there = payload(5000, 1), back = payload(7000, 2);
  const Expected at_target[] = {{BucketId(1), kSource, 5000}}, at_source[] = {{BucketId(1), kTarget, 7000}};
  REFIT_TRY(p.in->expect(at_target));
  REFIT_TRY(p.out->expect(at_source));
  REFIT_TRY(post_one(*p.out, 1, there));
  REFIT_TRY(post_one(*p.in, 1, back, kToSource));
  REFIT_ASSIGN(const Lease a, p.in->next(p.patience()));
  REFIT_ASSIGN(const Lease b, p.out->next(p.patience()));
  REFIT_MUST(std::equal(a.packed().begin(), a.packed().end(), there.begin(), there.end()), "bytes differ");
  REFIT_MUST(std::equal(b.packed().begin(), b.packed().end(), back.begin(), back.end()),
             "bytes differ on the way back");
  return p.close();
}

inline Status push_abort_with_pending(Bed& bed) {
  REFIT_ASSIGN(auto p, PushPair::make(bed));
  const Bytes bytes = payload(100, 1);
  for (std::uint32_t b = 0; b < 5; ++b) REFIT_TRY(post_one(*p.out, b, bytes));
  p.out->abort(Error(Code::kCorrupt, "first"));
  p.out->abort(Error(Code::kTimeout, "second"));
  const auto done = drain(*p.out);
  REFIT_MUST(done.size() == 5, "one completion per post after abort");
  for (const Completion& c : done) REFIT_MUST(c.error && c.error->message == "first", "completed with another error");
  REFIT_MUST(err(post_one(*p.out, 9, bytes)).message == "first", "post forgot the error");
  REFIT_MUST(err(p.out->next(p.patience())).message == "first", "next forgot the error");
  REFIT_MUST(err(p.out->expect({})).message == "first", "expect forgot the error");
  REFIT_TRY(p.out->close(p.patience()));
  REFIT_MUST(drain(*p.out).empty(), "completed again by close");
  // The receiver hears that nothing more will come; the next round is not spoilt.
  const Expected expected[] = {{BucketId(0), kSource, 100}};
  REFIT_TRY(p.in->expect(expected));
  const auto lease = p.in->next(p.patience());
  REFIT_MUST(!lease.ok() && lease.error().peer == "source:0.0" && lease.error().bucket == "0",
             "peer and bucket must be named");
  REFIT_TRY(p.in->close(p.patience()));
  REFIT_TRY(p.open());
  REFIT_TRY(p.in->expect(expected));
  REFIT_TRY(post_one(*p.out, 0, bytes));
  REFIT_TRY(p.in->next(p.patience()));
  return p.close();
}

inline Status push_close_with_pending(Bed& bed) {
  REFIT_ASSIGN(auto p, PushPair::make(bed));
  const Bytes bytes = payload(100, 1);
  for (std::uint32_t b = 0; b < 5; ++b) REFIT_TRY(post_one(*p.out, b, bytes));
  REFIT_TRY(p.out->close(p.patience()));
  REFIT_TRY(p.out->close(p.patience()));
  const auto done = drain(*p.out);
  REFIT_MUST(done.size() == 5 && done[0].error && done[0].error->code == Code::kCancelled,
             "close must complete what is open");
  REFIT_MUST(err(post_one(*p.out, 9, bytes)).code == Code::kCancelled, "a closed lane is refused");
  return {};
}

inline Status push_abort_wakes_next(Bed& bed) {
  REFIT_ASSIGN(auto p, PushPair::make(bed));
  REFIT_TRY(p.in->expect({}));
  std::thread other([&] {
    system_env().wait(Deadline::after_ns(30'000'000));
    p.in->abort(Error(Code::kCancelled, "from another thread"));
  });
  const auto lease = p.in->next(Deadline::after_s(30));
  other.join();
  REFIT_MUST(!lease.ok() && lease.error().message == "from another thread", "next was not woken by abort");
  return {};
}

inline Status push_silent_peer(Bed& bed) {
  REFIT_ASSIGN(auto p, PushPair::make(bed));
  const Expected expected[] = {{BucketId(1), kSource, 10}};
  REFIT_TRY(p.in->expect(expected));
  const std::int64_t start = monotonic_ns();
  for (int i = 0; i < 3; ++i)
    REFIT_MUST(err(p.in->next(Deadline::after_ns(20'000'000))).code == Code::kTimeout, "nothing was sent");
  REFIT_MUST(monotonic_ns() - start < static_cast<std::int64_t>(bed.slack_s * 1e9), "deadline overrun");
  const Bytes bytes = payload(10, 1);
  REFIT_TRY(post_one(*p.out, 1, bytes));
  REFIT_TRY(p.in->next(p.patience()));  // a timeout leaves the lane usable
  return p.close();
}

inline Status push_dead_peer(Bed& bed) {
  const Bytes bytes = payload(10, 1);
  {  // the sender, with one bucket delivered and one owed
    REFIT_ASSIGN(auto p, PushPair::make(bed));
    const Expected expected[] = {{BucketId(1), kSource, 10}, {BucketId(2), kSource, 10}};
    REFIT_TRY(p.in->expect(expected));
    REFIT_TRY(post_one(*p.out, 1, bytes));
    REFIT_MUST(p.completions(*p.out, 1).size() == 1, "the first bucket is delivered");
    REFIT_TRY(p.source->shutdown(p.patience()));
    REFIT_TRY(p.in->next(p.patience()));  // what arrived is good
    const auto lease = p.in->next(p.patience());
    REFIT_MUST(!lease.ok() && lease.error().code == Code::kPeerLost && lease.error().peer == "source:0.0" &&
                   lease.error().bucket == "2",
               "the dead sender and the bucket must be named");
    REFIT_MUST(!p.target->reach(p.of_target[0], p.patience()).ok(), "a dead peer is out of reach");
  }
  REFIT_ASSIGN(auto p, PushPair::make(bed));  // the receiver, before and after the post
  REFIT_TRY(p.source->reach(p.of_source[0], p.patience()));
  REFIT_TRY(post_one(*p.out, 1, bytes));
  REFIT_TRY(p.target->shutdown(p.patience()));
  REFIT_TRY(post_one(*p.out, 2, bytes));
  const auto done = p.completions(*p.out, 2);
  REFIT_MUST(done.size() == 2, "posts to a dead recipient complete");
  for (const Completion& c : done)
    REFIT_MUST(c.error && c.error->code == Code::kPeerLost && c.error->peer == "target:0.0",
               "the dead recipient must be named");
  return {};
}

inline Status push_foreign_lanes(Bed& bed) {
  REFIT_ASSIGN(auto p, PushPair::make(bed));
  const Bytes bytes = payload(10, 1);
  LaneId id = p.lane_id(kSource);
  id.job = hash128("another job");
  REFIT_MUST(err(p.source->open_push(id, p.of_source)).code == Code::kMismatch, "a lane of another job was opened");
  id = p.lane_id(kSource);
  id.incarnation = Incarnation(77);
  REFIT_ASSIGN(auto other_life, p.source->open_push(id, p.of_source));
  id = p.lane_id(kSource);
  id.txn.counter += 1;
  REFIT_ASSIGN(auto other_round, p.source->open_push(id, p.of_source));
  const Expected expected[] = {{BucketId(1), kSource, 10}};
  REFIT_TRY(p.in->expect(expected));
  REFIT_TRY(post_one(*other_life, 1, bytes));
  REFIT_TRY(post_one(*other_round, 1, bytes));
  const Deadline until = p.patience();
  do {  // on a busy machine the frames take their time
    REFIT_MUST(err(p.in->next(Deadline::after_ns(30'000'000))).code == Code::kTimeout, "a foreign frame was taken");
  } while (p.target->counters().frames_foreign == 0 && !until.over());
  REFIT_MUST(p.target->counters().frames_foreign >= 1, "foreign frames are counted");
  REFIT_TRY(post_one(*p.out, 1, bytes));
  REFIT_TRY(p.in->next(p.patience()));
  return {};
}

inline Status push_refuses_wrong_calls(Bed& bed) {
  REFIT_ASSIGN(auto p, PushPair::make(bed));
  const Bytes bytes = payload(100, 1);
  const std::uint32_t stranger[] = {99}, twice[] = {kTarget, kTarget};
  REFIT_MUST(err(post_one(*p.out, 1, bytes, stranger)).code == Code::kInvalid, "an unknown recipient");
  REFIT_MUST(err(post_one(*p.out, 1, bytes, twice)).code == Code::kInvalid, "a recipient named twice");
  REFIT_MUST(err(post_one(*p.out, 1, bytes, {})).code == Code::kInvalid, "no recipient");
  REFIT_MUST(err(p.in->next(Deadline::after_ns(0))).code == Code::kInvalid, "next before expect");
  const Expected unknown[] = {{BucketId(1), 99, 1}},
                 double_bucket[] = {{BucketId(1), kSource, 1}, {BucketId(1), kSource, 1}};
  REFIT_MUST(err(p.in->expect(unknown)).code == Code::kInvalid, "an unknown sender");
  REFIT_MUST(err(p.in->expect(double_bucket)).code == Code::kInvalid, "a bucket expected twice");
  const Expected small[] = {{BucketId(1), kSource, 99}, {BucketId(2), kSource, 10}};
  REFIT_TRY(p.in->expect(small));
  REFIT_MUST(err(p.in->expect(small)).code == Code::kInvalid, "expect twice");
  REFIT_MUST(drain(*p.out).empty(), "a refused post has no completion");
  REFIT_TRY(post_one(*p.out, 7, bytes));  // nobody expects it
  auto done = p.completions(*p.out, 1);
  REFIT_MUST(done.size() == 1 && done[0].error, "a bucket that nobody expects fails at its sender");
  REFIT_TRY(post_one(*p.out, 1, bytes));  // larger than announced
  done = p.completions(*p.out, 1);
  REFIT_MUST(done.size() == 1 && done[0].error, "an oversized bucket fails at its sender");
  const auto lease = p.in->next(p.patience());
  REFIT_MUST(!lease.ok() && lease.error().code == Code::kCorrupt && lease.error().peer == "source:0.0",
             "and at its receiver, naming it");
  return {};
}

inline Status push_flat_over_rounds(Bed& bed) {
  REFIT_ASSIGN(auto p, PushPair::make(bed));
  const Bytes bytes = payload(100'000, 1);
  const Expected expected[] = {{BucketId(1), kSource, 100'000}};
  std::size_t fds = 0, threads = 0;
  for (int round = 0; round < 200; ++round) {
    REFIT_TRY(p.in->expect(expected));
    REFIT_TRY(post_one(*p.out, 1, bytes));
    REFIT_TRY(p.in->next(p.patience()));
    REFIT_MUST(p.completions(*p.out, 1).size() == 1, "completion");
    REFIT_TRY(p.close());
    if (round == 9) fds = open_descriptors(), threads = live_threads();
    REFIT_TRY(p.open());
  }
  REFIT_MUST(open_descriptors() <= fds && live_threads() <= threads, "descriptors or threads grow");
  return p.close();
}

inline std::vector<Check> push_checks() {
  return {{"sizes", push_sizes},
          {"many_outstanding", push_many_outstanding},
          {"bounded_staging", push_bounded_staging},
          {"both_directions", push_both_directions},
          {"abort_with_pending", push_abort_with_pending},
          {"close_with_pending", push_close_with_pending},
          {"abort_wakes_next", push_abort_wakes_next, true},
          {"silent_peer", push_silent_peer},
          {"dead_peer", push_dead_peer},
          {"foreign_lanes", push_foreign_lanes},
          {"refuses_wrong_calls", push_refuses_wrong_calls},
          {"flat_over_rounds", push_flat_over_rounds}};
}

}  // namespace refit::conformance
