// Quantising and the delta's scan and apply against the scalar references.
#include <bit>

#include "codec/body.h"
#include "gpu/bench.h"
#include "unit/kernel/jobs.h"

namespace refit::gpu {
namespace {

using namespace refit::codec;
using refit::kernel::testing::Random;

std::int64_t spanned(const Part& p) {
  return p.elements() == 0 ? 0 : ((p.rows - 1) * p.stride + p.cols) * item_size(p.dtype);
}

// Values of all kinds: plain ones, whole blocks of zeros, subnormals, huge ones, limits of E4M3, infinities and NaN.
Bytes values(Random& random, const Part& p, bool strange) {
  Bytes out(static_cast<std::size_t>(spanned(p)));
  const std::int64_t item = item_size(p.dtype), n = static_cast<std::int64_t>(out.size()) / item;
  const float limits[] = {0.0F, -0.0F, 448, 449, 464, 480, 1e-40F, -1e-38F, 3e38F, 0.0078125F, 0.015625F};
  for (std::int64_t i = 0; i < n; ++i) {
    float v = static_cast<float>(random.in(-1000, 1000)) * 1e-4F;
    if (random.chance(2)) v = limits[random.below(11)];
    if (i / 300 % 5 == 3) v = 0;
    auto bits = std::bit_cast<std::uint32_t>(v);
    if (strange && random.chance(1)) bits = static_cast<std::uint32_t>(random.engine());
    if (strange && random.below(500) == 0) bits = random.chance(50) ? 0x7f800000 : 0xffc00001;
    if (item == 2) bits >>= 16;
    std::memcpy(out.data() + i * item, &bits, static_cast<std::size_t>(item));
  }
  return out;
}

struct QuantCase {
  std::string name;
  Quant q;
  Part p;
};

std::string compare(Bench& bench, const QuantCase& c, const Bytes& in) {
  const auto cells = static_cast<std::size_t>(cells_of(c.q, c.p).count() * c.q.scale_bytes());
  const auto count = static_cast<std::size_t>(c.p.elements());
  Bytes scales(cells), codes(count);
  const Findings want = quant_reference().quantise(c.q, c.p, in.data(), scales.data(), codes.data());
  Mirror src(bench, in.data(), static_cast<std::int64_t>(in.size())), to_scales(bench, nullptr, static_cast<std::int64_t>(cells)),
      to_codes(bench, nullptr, static_cast<std::int64_t>(count)),
      work(bench, nullptr, device_quant_work_bytes(c.q, c.p));
  const DeviceQuant d{src.at(), to_scales.at(), to_codes.at(), work.at()};
  if (auto f = text(device_quantise(bench.codecs, bench.stream, c.q, c.p, d)); !f.empty()) return f;
  if (to_scales.read() != scales) return "scales differ";
  if (to_codes.read() != codes) return "codes differ";
  if (!(findings_from(c.p, work.read().data()) == want)) return "findings differ";
  // The same by its two halves: amax, then codes under scales that follow from it, then under scales that are there.
  std::vector<float> amax(static_cast<std::size_t>(cells_of(c.q, c.p).count()));
  quant_reference().amax(c.q, c.p, in.data(), amax.data());
  Mirror again(bench, nullptr, static_cast<std::int64_t>(count));
  const DeviceQuant e{src.at(), to_scales.at(), again.at(), work.at()};
  if (auto f = text(device_amax(bench.codecs, bench.stream, c.q, c.p, e)); !f.empty()) return f;
  const Bytes found = work.read();
  if (std::memcmp(found.data() + device_findings_bytes(), amax.data(), amax.size() * 4) != 0) return "amax differs";
  for (const ScalesFrom from : {ScalesFrom::kAmax, ScalesFrom::kScales}) {
    if (auto f = text(device_quantise_with(bench.codecs, bench.stream, c.q, c.p, e, from)); !f.empty()) return f;
    if (again.read() != codes || to_scales.read() != scales) return "codes under given scales differ";
    (void)bench.stream.fill(again.at(), 0x33, again.bytes());
  }
  return "";
}

QuantCase random_case(Random& random, const std::string& name, const Quant& q, std::int64_t most) {
  QuantCase c{name, q, {}};
  c.p.rows = random.in(1, most);
  c.p.cols = random.in(1, 3 * most);
  if (random.chance(60)) c.p.cols = ceil_div(c.p.cols, 32) * 32;
  c.p.stride = c.p.cols + (random.chance(50) ? 0 : random.below(3) * 8);
  c.p.dtype = random.chance(70) ? DType::kBF16 : DType::kF32;
  if (random.chance(50)) {  // a part that begins inside the tensor, on a block's edge
    c.p.row = q.block_rows == 0 ? 0 : q.block_rows * random.below(3);
    c.p.col = q.block_cols == 0 ? 0 : q.block_cols * random.below(3);
  }
  return c;
}

}  // namespace

void check_quantise(Bench& bench) {
  Random random(kernel::testing::test_seed(0x6bf8));
  const std::pair<std::string, Quant> formats[] = {{"fp8_block", fp8_block()},
                                                   {"fp8_block_pow2", fp8_block(ScaleKind::kPowerOfTwo)},
                                                   {"fp8_channel", fp8_channel()},
                                                   {"fp8_tensor", fp8_tensor()},
                                                   {"mxfp8", mxfp8()},
                                                   {"mxfp8_least1", mxfp8(1)}};
  const int rounds = bench.is_double() ? 6 : 40;
  for (const auto& [name, q] : formats) {
    std::string fault;
    for (int i = 0; i < rounds && fault.empty(); ++i) {
      const QuantCase c = random_case(random, name, q, i == 0 ? 600 : 200);
      fault = compare(bench, c, values(random, c.p, i % 2 == 1));
      if (!fault.empty())
        fault += " at [" + std::to_string(c.p.rows) + ", " + std::to_string(c.p.cols) + "] stride " +
                 std::to_string(c.p.stride) + " " + std::string(to_string(c.p.dtype)) + ", round " + std::to_string(i);
    }
    bench.report->check("quantise." + name, fault, std::to_string(rounds) + " random matrices");
  }
  // Every bf16 as value, every code as result: the arithmetic itself.
  QuantCase all{"all", fp8_block(), {0, 0, 256, 256, 256, DType::kBF16}};
  Bytes in(131072);
  for (std::uint32_t v = 0; v < 65536; ++v) std::memcpy(in.data() + 2 * v, &v, 2);
  bench.report->check("quantise.every_bf16", compare(bench, all, in));
}

namespace {

template <typename V>
std::string compare_block(const Body& body, const Bytes& base, const Bytes& next, const Shape& shape, Form form,
                          std::int64_t block, std::int64_t room, const std::uint32_t* counts,
                          const std::uint16_t* positions, const V* found) {
  const std::int64_t from = block * 65536, n = std::min<std::int64_t>(65536, shape.elements - from);
  std::vector<Pos> at(static_cast<std::size_t>(n) + kSlack);
  std::vector<V> want(static_cast<std::size_t>(n) + kSlack);
  const auto* const a = reinterpret_cast<const Byte*>(base.data()) + from * shape.width;
  const auto* const b = reinterpret_cast<const Byte*>(next.data()) + from * shape.width;
  const std::size_t count = body.scan(a, b, static_cast<std::size_t>(n), shape.width, form, at.data(), want.data());
  if (counts[block] != count) return "counts " + std::to_string(counts[block]) + ", not " + std::to_string(count);
  for (std::size_t i = 0; i < std::min(count, static_cast<std::size_t>(room)); ++i) {
    const std::size_t k = static_cast<std::size_t>(block * room) + i;
    if (positions[k] != at[i]) return "positions differ";
    if (found[k] != want[i]) return "values differ";
  }
  return "";
}

struct DeltaCase {
  Shape shape;
  Form form;
  int per_mille, shift;
  std::int64_t room;
};

std::string compare(Bench& bench, Random& random, const DeltaCase& c) {
  const std::int64_t bytes = c.shape.bytes(), blocks = change_blocks(c.shape);
  Bytes base(static_cast<std::size_t>(bytes)), next;
  for (std::byte& b : base) b = static_cast<std::byte>(random.engine());
  next = base;
  for (std::int64_t i = 0; i < c.shape.elements; ++i)
    if (random.below(1000) < c.per_mille) {
      std::byte& b = next[static_cast<std::size_t>(i * c.shape.width + random.below(c.shape.width))];
      b = static_cast<std::byte>(static_cast<unsigned>(b) + 1 + static_cast<unsigned>(random.below(200)));
    }
  const std::int64_t value_bytes = std::max(2, c.shape.width);
  Bytes shifted(static_cast<std::size_t>(bytes + c.shift));
  const auto place = [&](const Bytes& from) {
    std::copy(from.begin(), from.end(), shifted.begin() + c.shift);
    return Mirror(bench, shifted.data(), static_cast<std::int64_t>(shifted.size()));
  };
  Mirror old = place(base), fresh = place(next);
  Mirror counts(bench, nullptr, 4 * blocks), positions(bench, nullptr, 2 * blocks * c.room),
      values(bench, nullptr, value_bytes * blocks * c.room);
  const DeviceChanges d{reinterpret_cast<std::uint32_t*>(counts.at()), reinterpret_cast<std::uint16_t*>(positions.at()),
                        values.at(), c.room};
  if (auto f = text(device_scan(bench.codecs, bench.stream, c.shape, c.form, old.at() + c.shift, fresh.at() + c.shift, d));
      !f.empty())
    return f;
  const Bytes n = counts.read(), p = positions.read(), v = values.read();
  bool whole = true;
  for (std::int64_t b = 0; b < blocks; ++b) {
    const auto* const count = reinterpret_cast<const std::uint32_t*>(n.data());
    const auto* const at = reinterpret_cast<const std::uint16_t*>(p.data());
    whole = whole && count[b] <= c.room;
    std::string f;
    if (value_bytes == 2)
      f = compare_block(kScalarBody, base, next, c.shape, c.form, b, c.room, count, at, reinterpret_cast<const std::uint16_t*>(v.data()));
    else if (value_bytes == 4)
      f = compare_block(kScalarBody, base, next, c.shape, c.form, b, c.room, count, at, reinterpret_cast<const std::uint32_t*>(v.data()));
    else
      f = compare_block(kScalarBody, base, next, c.shape, c.form, b, c.room, count, at, reinterpret_cast<const std::uint64_t*>(v.data()));
    if (!f.empty()) return f + " in block " + std::to_string(b);
  }
  if (!whole || c.shift % c.shape.width != 0) return "";
  const Change change = c.form == Form::kUndoable ? Change::kAdd : Change::kStore;
  const auto is = [&](const Bytes& want) {
    const Bytes got = old.read();
    return std::equal(want.begin(), want.end(), got.begin() + c.shift);
  };
  if (auto f = text(device_apply(bench.codecs, bench.stream, c.shape, change, d, old.at() + c.shift)); !f.empty()) return f;
  if (!is(next)) return "the applied bytes differ";
  if (c.form == Form::kOverwrite) return "";
  if (auto f = text(device_apply(bench.codecs, bench.stream, c.shape, Change::kSubtract, d, old.at() + c.shift)); !f.empty())
    return f;
  return is(base) ? "" : "the undone bytes differ";
}

// Positions behind the last element touch nothing, though memory follows there.
std::string behind_the_end(Bench& bench) {
  const Shape shape{2, 65536 + 100};
  const std::uint32_t counts[] = {1, 3};
  const std::uint16_t positions[] = {65535, 0, 0, 99, 100, 65535}, values[] = {7, 7, 7, 7, 7, 7};
  Mirror n(bench, counts, sizeof counts), at(bench, positions, sizeof positions), found(bench, values, sizeof values);
  Bytes want(4 * 65536, std::byte{0});
  Mirror target(bench, want.data(), static_cast<std::int64_t>(want.size()));
  for (const std::size_t i : {std::size_t{65535}, std::size_t{65536 + 99}}) want[2 * i] = std::byte{7};
  const DeviceChanges c{reinterpret_cast<std::uint32_t*>(n.at()), reinterpret_cast<std::uint16_t*>(at.at()), found.at(), 3};
  if (auto f = text(device_apply(bench.codecs, bench.stream, shape, Change::kStore, c, target.at())); !f.empty()) return f;
  return target.read() == want ? "" : "bytes differ";
}

}  // namespace

void check_delta(Bench& bench) {
  bench.report->check("delta.behind_the_end", behind_the_end(bench));
  Random random(kernel::testing::test_seed(0x6bde17a));
  const int rounds = bench.is_double() ? 4 : 20;
  for (const int width : {1, 2, 4, 8}) {
    std::string fault;
    int cases = 0;
    for (const Form form : {Form::kUndoable, Form::kOverwrite})
      for (int i = 0; i < rounds && fault.empty(); ++i, ++cases) {
        const int densities[] = {10, 0, 1000, 300};
        const DeltaCase c{{width, i == 1 ? 65536 * 2 : random.in(1, 200'000)},
                          form,
                          densities[i % 4],
                          i % 3 == 2 ? 3 : static_cast<int>(random.below(2)) * 8,
                          random.chance(70) ? 65536 : random.in(1, 3000)};
        fault = compare(bench, random, c);
        if (!fault.empty()) fault += ", round " + std::to_string(i);
      }
    bench.report->check("delta.width" + std::to_string(width), fault, std::to_string(cases) + " random pairs");
  }
}

}  // namespace refit::gpu
