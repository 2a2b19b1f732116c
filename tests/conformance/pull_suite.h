// What every pull lane must do. Instantiated per mover in pull_test.cpp.
#pragma once
#include <map>
#include <thread>

#include "bed.h"

namespace refit::conformance {

struct PullPair : Pair {
  std::unique_ptr<PullLane> out, in;  // of the source, of the target

  static Result<PullPair> make(Bed& bed) {
    REFIT_ASSIGN(Pair base, Pair::make(bed));
    PullPair p;
    static_cast<Pair&>(p) = std::move(base);
    REFIT_TRY(p.open());
    return p;
  }
  Status open() {
    ++rounds;
    REFIT_ASSIGN(out, source->open_pull(lane_id(kSource), of_source));
    REFIT_ASSIGN(in, target->open_pull(lane_id(kTarget), of_target));
    return {};
  }
  Status close() {
    REFIT_TRY(in->close(patience()));
    return out->close(patience());
  }
};

inline Segment run_of(std::uint32_t region, std::int64_t offset, std::int64_t bytes) {
  return {region, offset, bytes, {}, {}};
}

// The bytes of a lease in the order of its segments, whether packed or mapped.
inline Bytes gathered(const Lease& lease, std::span<const Segment> segments) {
  if (lease.bases().empty()) return {lease.packed().begin(), lease.packed().end()};
  Bytes out;
  for (std::size_t s = 0; s < segments.size(); ++s) {
    const Segment& g = segments[s];
    std::int64_t steps = 1;
    for (std::int64_t e : g.extents) steps *= e;
    for (std::int64_t step = 0; step < steps; ++step) {
      std::int64_t rest = step, at = 0;
      for (std::size_t k = g.extents.size(); k-- > 0; rest /= g.extents[k]) at += rest % g.extents[k] * g.strides[k];
      const std::byte* from = lease.bases()[s] + at;
      if (g.run_bytes > 0) out.insert(out.end(), from, from + g.run_bytes);
    }
  }
  return out;
}
// What it should be, from the pattern that region `r` was filled with (salt r).
inline Bytes wanted(std::span<const Segment> segments) {
  Bytes out;
  for (const Segment& g : segments) {
    std::int64_t steps = 1;
    for (std::int64_t e : g.extents) steps *= e;
    for (std::int64_t step = 0; step < steps; ++step) {
      std::int64_t rest = step, at = g.offset;
      for (std::size_t k = g.extents.size(); k-- > 0; rest /= g.extents[k]) at += rest % g.extents[k] * g.strides[k];
      for (std::int64_t i = 0; i < g.run_bytes; ++i) out.push_back(pattern(at + i, g.region));
    }
  }
  return out;
}
inline std::vector<memory::RegionRef> patterned(Bed& bed, std::initializer_list<std::int64_t> sizes) {
  std::vector<memory::RegionRef> out;
  for (std::int64_t bytes : sizes) {
    out.push_back(bed.region(bytes));
    fill({out.back().data, static_cast<std::size_t>(bytes)}, static_cast<std::uint32_t>(out.size() - 1));
  }
  return out;
}
// Requests, receives, compares, re-checks one bucket.
inline Status read_one(PullPair& p, std::uint32_t bucket, const Bytes& descriptor,
                       const std::vector<Segment>& segments) {
  REFIT_TRY(p.in->request(BucketId(bucket), kSource, descriptor, segments));
  REFIT_ASSIGN(const Lease lease, p.in->next(p.patience()));
  REFIT_MUST(lease.bucket().value == bucket && lease.sender() == kSource, "lease of another bucket");
  REFIT_MUST(gathered(lease, segments) == wanted(segments), "bytes differ in bucket " + std::to_string(bucket));
  return p.in->recheck(kSource);
}

inline Status pull_sizes(Bed& bed) {
  REFIT_ASSIGN(auto p, PullPair::make(bed));
  const std::int64_t huge = 24 << 20;
  const auto regions = patterned(bed, {huge, 4099});
  REFIT_ASSIGN(const Bytes d, p.out->expose(regions));
  std::uint32_t bucket = 0;
  for (std::int64_t bytes : {std::int64_t{0}, std::int64_t{1}, std::int64_t{3}, std::int64_t{4095}, std::int64_t{4097},
                             std::int64_t{1 << 20} + 13, huge})
    REFIT_TRY(read_one(p, bucket++, d, {run_of(0, huge - bytes, bytes)}));
  REFIT_TRY(read_one(p, bucket++, d, {}));
  REFIT_TRY(read_one(p, bucket++, d, {run_of(1, 4099, 0), run_of(0, 5, 7), run_of(1, 0, 4099)}));
  return p.close();
}

inline Status pull_strided(Bed& bed) {
  REFIT_ASSIGN(auto p, PullPair::make(bed));
  REFIT_ASSIGN(const Bytes d, p.out->expose(patterned(bed, {1 << 16, 1 << 12})));
  REFIT_TRY(read_one(p, 1, d, {{0, 100, 2, {5, 7}, {700, 20}}, {1, 4000, 8, {10}, {-16}}, {0, 9, 4, {3, 2}, {0, 40}}}));
  REFIT_TRY(read_one(p, 2, d, {{1, 0, 1, {0, 9}, {1, 1}}, {0, 65532, 4, {}, {}}}));
  return p.close();
}

inline Status pull_many_outstanding(Bed& bed) {
  REFIT_ASSIGN(auto p, PullPair::make(bed));
  REFIT_ASSIGN(const Bytes d, p.out->expose(patterned(bed, {1 << 20})));
  std::map<std::uint64_t, int> owed;
  constexpr std::uint32_t kBuckets = 256;
  const auto segment = [](std::uint32_t b) { return run_of(0, std::int64_t{b} * 4093, 3001 + b); };
  for (std::uint32_t b = 0; b < kBuckets; ++b) {
    const Segment s = segment(b);
    REFIT_ASSIGN(const std::uint64_t ticket, p.in->request(BucketId(b), kSource, d, {&s, 1}));
    REFIT_MUST(owed.emplace(ticket, 1).second && ticket != kExposeTicket, "ticket used twice");
  }
  REFIT_MUST(drain(*p.in).empty(), "a request was complete before its lease was handed out");
  std::vector<int> seen(kBuckets, 0);
  for (std::uint32_t i = 0; i < kBuckets; ++i) {
    REFIT_ASSIGN(const Lease lease, p.in->next(p.patience()));
    REFIT_MUST(lease.bucket().value < kBuckets && seen[lease.bucket().value]++ == 0, "bucket arrived twice");
    const Segment s = segment(lease.bucket().value);
    REFIT_MUST(gathered(lease, {&s, 1}) == wanted({&s, 1}), "bytes differ");
  }
  for (const Completion& c : drain(*p.in)) {
    REFIT_MUST(!c.error && c.member == kSource, "request failed");
    REFIT_MUST(owed[c.ticket]-- == 1, "completed twice");
  }
  for (const auto& [ticket, left] : owed) REFIT_MUST(left == 0, "not completed");
  REFIT_MUST(err(p.in->next(Deadline::after_ns(1'000'000))).code == Code::kTimeout, "more leases than requests");
  REFIT_TRY(p.in->recheck(kSource));
  return p.close();
}

inline Status pull_both_directions(Bed& bed) {
  REFIT_ASSIGN(auto p, PullPair::make(bed));
  const auto regions = patterned(bed, {5000});
  REFIT_ASSIGN(const Bytes d_source, p.out->expose(regions));
  REFIT_ASSIGN(const Bytes d_target, p.in->expose(regions));
  const std::vector<Segment> s{run_of(0, 17, 4321)};
  REFIT_TRY(p.out->request(BucketId(9), kTarget, d_target, s));
  REFIT_TRY(read_one(p, 8, d_source, s));
  REFIT_ASSIGN(const Lease lease, p.out->next(p.patience()));
  REFIT_MUST(gathered(lease, s) == wanted(s) && lease.sender() == kTarget, "bytes differ on the way back");
  return p.close();
}

inline Status pull_lend_completes_once(Bed& bed) {
  REFIT_ASSIGN(auto p, PullPair::make(bed));
  const auto regions = patterned(bed, {64});
  REFIT_TRY(p.out->expose(regions));
  REFIT_MUST(err(p.out->expose(regions)).code == Code::kBusy, "a second lend at once");
  REFIT_MUST(drain(*p.out).empty(), "lend completed while it lasts");
  REFIT_TRY(p.out->withdraw());
  REFIT_TRY(p.out->withdraw());
  auto done = drain(*p.out);
  REFIT_MUST(done.size() == 1 && done[0].ticket == kExposeTicket && !done[0].error,
             "withdraw must complete the lend once");
  REFIT_TRY(p.out->expose(regions));
  REFIT_TRY(p.out->close(p.patience()));
  REFIT_MUST(drain(*p.out).size() == 1, "close must complete the lend once");
  return {};
}

inline Status pull_abort_with_pending(Bed& bed) {
  REFIT_ASSIGN(auto p, PullPair::make(bed));
  REFIT_ASSIGN(const Bytes d, p.out->expose(patterned(bed, {64})));
  const Segment s = run_of(0, 0, 64);
  for (std::uint32_t b = 0; b < 5; ++b) REFIT_TRY(p.in->request(BucketId(b), kSource, d, {&s, 1}));
  p.in->abort(Error(Code::kCorrupt, "first"));
  p.in->abort(Error(Code::kTimeout, "second"));
  const auto done = drain(*p.in);
  REFIT_MUST(done.size() == 5, "one completion per request after abort");
  for (const Completion& c : done) REFIT_MUST(c.error && c.error->message == "first", "completed with another error");
  // The first error sticks to every later call.
  REFIT_MUST(err(p.in->next(p.patience())).message == "first", "next forgot the error");
  REFIT_MUST(err(p.in->request(BucketId(9), kSource, d, {&s, 1})).message == "first", "request forgot the error");
  REFIT_MUST(err(p.in->recheck(kSource)).message == "first", "recheck forgot the error");
  REFIT_MUST(err(p.in->expose({})).message == "first", "expose forgot the error");
  REFIT_TRY(p.in->close(p.patience()));
  REFIT_MUST(drain(*p.in).empty(), "completed again by close");
  // A failed round does not spoil the next.
  REFIT_TRY(p.out->close(p.patience()));
  REFIT_TRY(p.open());
  REFIT_ASSIGN(const Bytes fresh, p.out->expose(patterned(bed, {64})));
  return read_one(p, 1, fresh, {s});
}

inline Status pull_close_with_pending(Bed& bed) {
  REFIT_ASSIGN(auto p, PullPair::make(bed));
  REFIT_ASSIGN(const Bytes d, p.out->expose(patterned(bed, {64})));
  const Segment s = run_of(0, 0, 64);
  for (std::uint32_t b = 0; b < 5; ++b) REFIT_TRY(p.in->request(BucketId(b), kSource, d, {&s, 1}));
  REFIT_TRY(p.in->close(p.patience()));
  REFIT_TRY(p.in->close(p.patience()));
  const auto done = drain(*p.in);
  REFIT_MUST(done.size() == 5 && done[0].error && done[0].error->code == Code::kCancelled,
             "close must complete what is open");
  REFIT_MUST(err(p.in->next(p.patience())).code == Code::kCancelled, "a closed lane is refused");
  return {};
}

inline Status pull_abort_wakes_next(Bed& bed) {
  REFIT_ASSIGN(auto p, PullPair::make(bed));
  std::thread other([&] {
    system_env().wait(Deadline::after_ns(30'000'000));
    p.in->abort(Error(Code::kCancelled, "from another thread"));
  });
  const std::int64_t start = monotonic_ns();
  const auto lease = p.in->next(Deadline::after_s(30));
  other.join();
  REFIT_MUST(!lease.ok() && lease.error().message == "from another thread", "next was not woken by abort");
  REFIT_MUST(monotonic_ns() - start < static_cast<std::int64_t>(bed.slack_s * 1e9), "abort woke next too late");
  return {};
}

inline Status pull_deadline_holds(Bed& bed) {
  REFIT_ASSIGN(auto p, PullPair::make(bed));
  const std::int64_t start = monotonic_ns();
  for (int i = 0; i < 3; ++i)
    REFIT_MUST(err(p.in->next(Deadline::after_ns(20'000'000))).code == Code::kTimeout, "nothing was asked for");
  REFIT_MUST(monotonic_ns() - start < static_cast<std::int64_t>(bed.slack_s * 1e9), "deadline overrun");
  REFIT_ASSIGN(const Bytes d, p.out->expose(patterned(bed, {64})));
  return read_one(p, 1, d, {run_of(0, 0, 64)});  // a timeout leaves the lane usable
}

inline Status pull_stale_epoch(Bed& bed) {
  REFIT_ASSIGN(auto p, PullPair::make(bed));
  const auto regions = patterned(bed, {64});
  const Segment s = run_of(0, 0, 64);
  REFIT_ASSIGN(const Bytes old, p.out->expose(regions));
  REFIT_TRY(p.in->request(BucketId(1), kSource, old, {&s, 1}));
  REFIT_ASSIGN(const Lease lease, p.in->next(p.patience()));
  REFIT_TRY(p.in->recheck(kSource));
  REFIT_TRY(p.out->withdraw());
  REFIT_MUST(gathered(lease, {&s, 1}) == wanted({&s, 1}), "a lease stays readable");
  const Status revoked = p.in->recheck(kSource);
  REFIT_MUST(!revoked.ok() && revoked.error().code == Code::kMismatch && revoked.error().peer == "source:0.0",
             "re-check must see the withdrawal");
  // A re-exposed region has another epoch: the old descriptor stays dead.
  REFIT_TRY(p.in->close(p.patience()));
  REFIT_ASSIGN(p.in, p.target->open_pull(p.lane_id(kTarget), p.of_target));
  REFIT_ASSIGN(const Bytes fresh, p.out->expose(regions));
  REFIT_TRY(read_one(p, 2, fresh, {s}));
  const auto asked = p.in->request(BucketId(3), kSource, old, {&s, 1});
  if (asked.ok()) {
    const auto got = p.in->next(p.patience());
    REFIT_MUST(!got.ok() && got.error().code == Code::kMismatch, "an old descriptor was followed");
  } else {
    REFIT_MUST(err(asked).code == Code::kMismatch, "wrong code for an old descriptor");
  }
  return {};
}

inline Status pull_foreign_descriptors(Bed& bed) {
  REFIT_ASSIGN(auto p, PullPair::make(bed));
  const auto regions = patterned(bed, {64});
  const Segment s = run_of(0, 0, 64);
  LaneId id = p.lane_id(kSource);
  id.txn.counter += 1;  // of another round
  REFIT_ASSIGN(auto other_round, p.source->open_pull(id, p.of_source));
  id = p.lane_id(kSource);
  id.incarnation = Incarnation(77);  // of a process that is no more
  REFIT_ASSIGN(auto other_life, p.source->open_pull(id, p.of_source));
  for (PullLane* lane : {other_round.get(), other_life.get()}) {
    REFIT_ASSIGN(const Bytes d, lane->expose(regions));
    const auto asked = p.in->request(BucketId(1), kSource, d, {&s, 1});
    REFIT_MUST(!asked.ok() && asked.error().code == Code::kMismatch, "a foreign descriptor was followed");
  }
  id = p.lane_id(kSource);
  id.job = hash128("another job");
  const auto other_job = p.source->open_pull(id, p.of_source);
  REFIT_MUST(!other_job.ok() && other_job.error().code == Code::kMismatch, "a lane of another job was opened");
  REFIT_MUST(p.target->counters().frames_foreign >= 2, "foreign descriptors are counted");
  REFIT_MUST(drain(*p.in).empty(), "a refused request has no completion");
  REFIT_ASSIGN(const Bytes d, p.out->expose(regions));
  return read_one(p, 1, d, {s});  // the lane goes on
}

inline Status pull_hostile_bytes(Bed& bed) {
  REFIT_ASSIGN(auto p, PullPair::make(bed));
  REFIT_ASSIGN(const Bytes good, p.out->expose(patterned(bed, {64})));
  const Segment s = run_of(0, 0, 64);
  for (std::size_t cut = 0; cut < good.size(); ++cut)
    REFIT_MUST(!p.in->request(BucketId(1), kSource, std::span(good).first(cut), {&s, 1}).ok(),
               "a truncated descriptor was accepted");
  for (std::size_t bit = 0; bit < good.size() * 8; ++bit) {
    Bytes bad = good;
    bad[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
    REFIT_MUST(!p.in->request(BucketId(1), kSource, bad, {&s, 1}).ok(),
               "a flipped bit was accepted at " + std::to_string(bit));
  }
  const std::int64_t max = std::numeric_limits<std::int64_t>::max();
  const std::vector<Segment> outside{run_of(0, 0, 65),      run_of(0, -1, 2),       run_of(0, max, 1),
                                     run_of(1, 0, 1),       {0, 0, 1, {65}, {1}},   {0, 63, 1, {2}, {-64}},
                                     {0, 0, 1, {2}, {max}}, {0, 0, 1, {-1}, {1}},   {0, 0, 1, {1, 2}, {1}},
                                     run_of(0, 0, -1),      {0, 0, max, {max}, {1}}};
  for (const Segment& bad : outside) {
    const auto asked = p.in->request(BucketId(1), kSource, good, {&bad, 1});
    REFIT_MUST(!asked.ok() && asked.error().code == Code::kInvalid, "a segment outside its region was accepted");
  }
  REFIT_MUST(err(p.in->request(BucketId(1), 99, good, {&s, 1})).code == Code::kInvalid,
             "an unknown sender was accepted");
  return read_one(p, 1, good, {s});
}

inline Status pull_dead_source(Bed& bed) {
  {  // before the first read
    REFIT_ASSIGN(auto p, PullPair::make(bed));
    REFIT_ASSIGN(const Bytes d, p.out->expose(patterned(bed, {64})));
    const Segment s = run_of(0, 0, 64);
    REFIT_TRY(p.in->request(BucketId(1), kSource, d, {&s, 1}));
    REFIT_TRY(p.source->shutdown(p.patience()));
    const auto lease = p.in->next(p.patience());
    REFIT_MUST(!lease.ok() && lease.error().code == Code::kPeerLost && lease.error().peer == "source:0.0",
               "a dead source must be named, got " + (lease.ok() ? "a lease" : lease.error().to_string()));
    const auto done = drain(*p.in);
    REFIT_MUST(done.size() == 1 && done[0].error, "the request fails with its source");
    REFIT_MUST(!p.target->reach(p.of_target[0], p.patience()).ok(), "a dead source is out of reach");
  }
  REFIT_ASSIGN(auto p, PullPair::make(bed));
  REFIT_TRY(p.target->reach(p.of_target[0], p.patience()));
  REFIT_ASSIGN(const Bytes d, p.out->expose(patterned(bed, {64})));
  const std::vector<Segment> s{run_of(0, 0, 64)};
  REFIT_TRY(p.in->request(BucketId(1), kSource, d, s));
  REFIT_ASSIGN(const Lease lease, p.in->next(p.patience()));
  REFIT_TRY(p.source->shutdown(p.patience()));
  REFIT_MUST(gathered(lease, s) == wanted(s), "a lease outlives its source");
  const Status checked = p.in->recheck(kSource);
  REFIT_MUST(!checked.ok() && checked.error().peer == "source:0.0", "re-check must see the death");
  return {};
}

inline Status pull_private_memory(Bed& bed) {
  REFIT_ASSIGN(auto p, PullPair::make(bed));
  Bytes own(64);
  const memory::RegionRef region{own.data(), 64, memory::Kind::kHost, nullptr};
  const auto lent = p.out->expose({&region, 1});
  if (!p.source->capabilities().mapped) return lent.ok() ? Status() : Status(lent.error());
  REFIT_MUST(lent.ok() || lent.error().code == Code::kUnsupported, "private memory is lent or refused as unsupported");
  return {};
}

inline Status pull_flat_over_rounds(Bed& bed) {
  REFIT_ASSIGN(auto p, PullPair::make(bed));
  const auto regions = patterned(bed, {1 << 16, 999});
  std::size_t fds = 0, threads = 0;
  std::int64_t areas = 0;
  for (int round = 0; round < 200; ++round) {
    REFIT_ASSIGN(const Bytes d, p.out->expose(regions));
    REFIT_TRY(read_one(p, 1, d, {run_of(0, round, 4000), run_of(1, 0, 999)}));
    REFIT_TRY(p.out->withdraw());
    REFIT_TRY(p.close());
    if (round == 9) fds = open_descriptors(), threads = live_threads(), areas = mapped_areas();
    REFIT_TRY(p.open());
  }
  REFIT_TRY(p.close());
  REFIT_MUST(open_descriptors() <= fds,
             "descriptors grow: " + std::to_string(fds) + " to " + std::to_string(open_descriptors()));
  REFIT_MUST(live_threads() <= threads, "threads grow");
  // The allocator may still map a few areas of its own; 190 rounds would show as 190.
  REFIT_MUST(mapped_areas() <= areas + 40,
             "mappings grow: " + std::to_string(areas) + " to " + std::to_string(mapped_areas()));
  return {};
}

inline std::vector<Check> pull_checks() {
  return {{"sizes", pull_sizes},
          {"strided", pull_strided},
          {"many_outstanding", pull_many_outstanding},
          {"both_directions", pull_both_directions},
          {"lend_completes_once", pull_lend_completes_once},
          {"abort_with_pending", pull_abort_with_pending},
          {"close_with_pending", pull_close_with_pending},
          {"abort_wakes_next", pull_abort_wakes_next, true},
          {"deadline_holds", pull_deadline_holds},
          {"stale_epoch", pull_stale_epoch},
          {"foreign_descriptors", pull_foreign_descriptors},
          {"hostile_bytes", pull_hostile_bytes},
          {"dead_source", pull_dead_source},
          {"private_memory", pull_private_memory},
          {"flat_over_rounds", pull_flat_over_rounds}};
}

}  // namespace refit::conformance
