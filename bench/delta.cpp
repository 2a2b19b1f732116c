// `refit bench delta`: the delta codec on bf16-like elements whose changed positions are random.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <unordered_map>

#include "bench/bench.h"
#include "codec/codec.h"

namespace refit::bench {
namespace {

enum class Spread { kUniform, kSkewed, kGeometric, kWide };

struct Case {
  const char* suffix;  // of the row names
  double density;
  Spread spread = Spread::kUniform;  // ±1..3
  bool timed = true;
};
// Uniform over ±1..3 unless said; skewed: 80 % at ±1; geometric: mean 4; wide: log-uniform to 2^12.
constexpr Case kCases[] = {{"0.1%", 0.001},
                           {"1%", 0.01},
                           {"3%", 0.03},
                           {"5%", 0.05},
                           {"10%", 0.1},
                           {"20%", 0.2},
                           {"skewed.0.1%", 0.001, Spread::kSkewed, false},
                           {"skewed.1%", 0.01, Spread::kSkewed},
                           {"skewed.5%", 0.05, Spread::kSkewed},
                           {"geometric.1%", 0.01, Spread::kGeometric, false},
                           {"geometric.5%", 0.05, Spread::kGeometric, false},
                           {"wide.1%", 0.01, Spread::kWide},
                           {"wide.5%", 0.05, Spread::kWide}};

struct Random {
  std::uint64_t x = 0x9e3779b97f4a7c15;
  std::uint64_t next() {
    x ^= x << 13;
    x ^= x >> 7;
    return x ^= x << 17;
  }
  double unit() { return static_cast<double>(next() >> 11) * 0x1p-53; }
};

std::uint16_t difference(Random& random, Spread spread) {
  double m = 1;
  switch (spread) {
    case Spread::kUniform:
      m = 1 + std::floor(3 * random.unit());
      break;
    case Spread::kSkewed:
      m = random.unit() < 0.8 ? 1 : 2 + std::floor(2 * random.unit());
      break;
    case Spread::kGeometric:
      m = 1 + std::floor(std::log(1 - random.unit()) / std::log(0.75));
      break;
    case Spread::kWide:
      m = std::floor(std::exp2(12 * random.unit()));
      break;
  }
  const auto d = static_cast<int>(std::min(m, 32767.0));
  return static_cast<std::uint16_t>((random.next() >> 40 & 1) != 0 ? d : -d);
}

double plogp(double p) { return p > 0 ? -p * std::log2(p) : 0; }

struct Bed {
  Buffer base, next, live;
  std::vector<std::byte> message;
  codec::Shape shape;
  ThreadPool pool;
  codec::Workspace work;
  explicit Bed(int threads) : pool(threads), work(kernel::Exec{threads == 1 ? nullptr : &pool}) {}
  std::span<const std::byte> old_bytes() const { return {base.data(), static_cast<std::size_t>(shape.bytes())}; }
  std::span<const std::byte> new_bytes() const { return {next.data(), static_cast<std::size_t>(shape.bytes())}; }
  std::span<std::byte> live_bytes() const { return {live.data(), static_cast<std::size_t>(shape.bytes())}; }
};

// Makes `next` from `base`; returns the order-0 entropy of positions and values in bytes.
double change(Bed& bed, const Case& c) {
  std::memcpy(bed.next.data(), bed.base.data(), static_cast<std::size_t>(bed.shape.bytes()));
  Random random;
  std::unordered_map<std::uint16_t, std::int64_t> seen;
  std::int64_t changed = 0;
  const double scale = 1 / std::log1p(-c.density);
  for (std::int64_t i = 0;; ++i) {
    i += static_cast<std::int64_t>(std::log(1 - random.unit()) * scale);
    if (i >= bed.shape.elements) break;
    const std::uint16_t d = difference(random, c.spread);
    std::uint16_t v;
    std::memcpy(&v, bed.base.data() + 2 * i, 2);
    v = static_cast<std::uint16_t>(v + d);
    std::memcpy(bed.next.data() + 2 * i, &v, 2);
    ++seen[d];
    ++changed;
  }
  const auto n = static_cast<double>(bed.shape.elements), k = static_cast<double>(changed);
  double bits = n * (plogp(k / n) + plogp(1 - k / n));
  for (const auto& [value, count] : seen) bits += k * plogp(static_cast<double>(count) / k);
  return bits / 8;
}

Result<std::int64_t> encode(Bed& bed) {
  return codec::encode(bed.work, bed.shape, codec::Form::kUndoable, {}, bed.old_bytes(), bed.new_bytes(), bed.message);
}

// Encodes, checks, applies to a copy, compares, undoes, compares.
Result<codec::Delta> verified(Bed& bed, const Case& c) {
  REFIT_ASSIGN(const std::int64_t bytes, encode(bed));
  REFIT_ASSIGN(codec::Delta delta,
               codec::check(bed.work, std::span(bed.message).first(static_cast<std::size_t>(bytes))));
  const auto size = static_cast<std::size_t>(bed.shape.bytes());
  std::memcpy(bed.live.data(), bed.base.data(), size);
  codec::apply(bed.work, delta, bed.live_bytes());
  const bool applied = std::memcmp(bed.live.data(), bed.next.data(), size) == 0;
  codec::undo(bed.work, delta, bed.live_bytes());
  if (!applied || std::memcmp(bed.live.data(), bed.base.data(), size) != 0)
    return Error(Code::kInternal, std::string("delta.") + c.suffix + ": apply or undo gave other bytes");
  return delta;
}

Status run_case(Bed& bed, const Case& c, const Options& options, std::vector<Row>& rows) {
  const double bound = change(bed, c);
  REFIT_ASSIGN(const codec::Delta delta, verified(bed, c));
  const auto message_bytes =
      static_cast<double>(delta.header().payload_bytes + codec::kHeaderBytes + 4 * delta.header().frames);
  const std::string name = c.suffix;
  rows.push_back({"delta.bytes." + name, message_bytes / bound, "ratio", 1.0, message_bytes / bound,
                  "order-0 entropy of positions and values"});
  if (!c.timed) return {};
  const std::int64_t bytes = bed.shape.bytes();
  const std::span<const std::byte> message = std::span(bed.message).first(static_cast<std::size_t>(message_bytes));
  std::vector<std::byte> copy(message.begin(), message.end());  // encode writes over the other
  const Result<codec::Delta> kept = codec::check(bed.work, copy);
  if (!kept.ok()) return kept.error();
  const std::vector<std::function<void()>> works = {memcpy_work(bed.pool, bed.live.data(), bed.base.data(), bytes),
                                                    read_two_work(bed.pool, bed.base.data(), bed.next.data(), bytes),
                                                    [&] { REFIT_CHECK(encode(bed).ok()); },
                                                    [&] { codec::apply(bed.work, *kept, bed.live_bytes()); },
                                                    [&] { REFIT_CHECK(codec::check(bed.work, copy).ok()); }};
  const std::vector<double> s = median_seconds_in_turn(options.repeats, works);
  const double plain = gbps(bytes, s[0]), two = gbps(bytes, s[1]);
  rows.push_back(against("delta.encode." + name, gbps(bytes, s[2]), "GB/s", two, "reading old and new"));
  rows.push_back(against("delta.apply." + name, gbps(bytes, s[3]), "GB/s", plain, "memcpy"));
  rows.push_back(against("delta.check." + name, gbps(bytes, s[4]), "GB/s", plain, "memcpy"));
  return {};
}

Result<std::vector<Row>> bench_delta(const Options& options) {
  REFIT_TRY(kernel::isa_status());
  Bed bed(options.threads);
  bed.shape = {2, options.bytes / 2};
  REFIT_ASSIGN(bed.base, Buffer::make(options.bytes));
  REFIT_ASSIGN(bed.next, Buffer::make(options.bytes));
  REFIT_ASSIGN(bed.live, Buffer::make(options.bytes));
  REFIT_ASSIGN(const std::int64_t room, codec::message_bound(bed.shape));
  bed.message.resize(static_cast<std::size_t>(room));
  bed.base.fill_random(5);
  std::vector<Row> rows;
  for (const Case& c : kCases) REFIT_TRY(run_case(bed, c, options, rows));
  return rows;
}

const Registration kDelta("delta", "the delta codec: bytes against the entropy bound, speeds against memory",
                          bench_delta);

}  // namespace
}  // namespace refit::bench
