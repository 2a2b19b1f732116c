// `refit bench quantize`: bf16 weights to codes and scales, against copying the weights.
#include <algorithm>
#include <cstring>

#include "bench/bench.h"
#include "codec/codec.h"
#include "engine/engine.h"

namespace refit::bench {
namespace {

struct QuantCase {
  const char* name;
  codec::Quant quant;
};
constexpr QuantCase kQuantCases[] = {{"quantize.fp8_block", codec::fp8_block()},
                                     {"quantize.fp8_block_pow2", codec::fp8_block(codec::ScaleKind::kPowerOfTwo)},
                                     {"quantize.fp8_channel", codec::fp8_channel()},
                                     {"quantize.mxfp8", codec::mxfp8()}};
constexpr std::int64_t kQuantCols = 4096;

// Random signs and mantissas, exponents of ordinary weights: 2^-14 to 2^1.
void fill_weights(Buffer& buffer) {
  buffer.fill_random(11);
  for (std::int64_t i = 0; i < buffer.bytes(); i += 2) {
    std::uint16_t v;
    std::memcpy(&v, buffer.data() + i, 2);
    v = static_cast<std::uint16_t>((v & 0x87ff) | 113 << 7);
    std::memcpy(buffer.data() + i, &v, 2);
  }
}

struct QuantBed {
  Buffer values, copy, codes;
  std::vector<std::byte> scales;
  codec::Part part;
  void run(const codec::QuantOps& ops, const codec::Quant& q) {
    ops.quantise(q, part, values.data(), scales.data(), codes.data());
  }
  // The first rows by the reference.
  bool agrees(const codec::Quant& q) const {
    codec::Part head = part;
    head.rows = std::min<std::int64_t>(part.rows, 256);
    std::vector<std::byte> want(static_cast<std::size_t>(head.elements())), want_scales(scales.size());
    codec::quant_reference().quantise(q, head, values.data(), want_scales.data(), want.data());
    return std::memcmp(want.data(), codes.data(), want.size()) == 0;
  }
};

// Weights drawn as the reference trainer draws them. How many codes change when a stated share moves by 1 to 3 units in
// the last place of bf16: value = changed codes / codes, ceiling = changed weights / weights.
constexpr double kShares[] = {0.001, 0.01, 0.05};

std::int64_t differing(const std::byte* a, const std::byte* b, std::int64_t items, std::int64_t item) {
  std::int64_t n = 0;
  for (std::int64_t i = 0; i < items; ++i)
    n += std::memcmp(a + i * item, b + i * item, static_cast<std::size_t>(item)) != 0;
  return n;
}

Result<std::vector<Row>> density_rows(QuantBed& bed) {
  constexpr QuantCase kFormats[] = {{"fp8_block", codec::fp8_block()}, {"mxfp8", codec::mxfp8()}};
  std::vector<Row> rows;
  const std::int64_t n = bed.part.elements();
  REFIT_ASSIGN(Buffer before, Buffer::make(n));
  for (const QuantCase& format : kFormats)
    for (double share : kShares) {
      engine::initial_values(5, "bench", DType::kBF16, 0, bed.values.data(), n);
      std::memcpy(bed.copy.data(), bed.values.data(), static_cast<std::size_t>(2 * n));
      bed.run(codec::quant_ops(), format.quant);
      std::memcpy(before.data(), bed.codes.data(), static_cast<std::size_t>(n));
      const std::vector<std::byte> scales = bed.scales;
      engine::apply_step({3, share}, 1, "bench", DType::kBF16, 0, bed.values.data(), n);
      bed.run(codec::quant_ops(), format.quant);
      const auto part_of = [&](std::int64_t changed) { return static_cast<double>(changed) / static_cast<double>(n); };
      const std::int64_t cells = cells_of(format.quant, bed.part).count(), item = format.quant.scale_bytes();
      const double scaled = static_cast<double>(differing(scales.data(), bed.scales.data(), cells, item)) / static_cast<double>(cells);
      char name[64], note[128];
      std::snprintf(name, sizeof name, "quantize.delta.%s.%g%%", format.name, share * 100);
      std::snprintf(note, sizeof note, "share of bf16 weights that changed; %.2f %% of the scales did", scaled * 100);
      rows.push_back(against(name, 100 * part_of(differing(before.data(), bed.codes.data(), n, 1)), "%",
                             100 * part_of(differing(bed.copy.data(), bed.values.data(), n, 2)), note));
    }
  return rows;
}

Result<std::vector<Row>> bench_quantize(const Options& options) {
  REFIT_TRY(kernel::isa_status());
  QuantBed bed;
  bed.part = {0, 0, options.bytes / 2 / kQuantCols, kQuantCols, kQuantCols, DType::kBF16};
  const std::int64_t bytes = 2 * bed.part.elements();
  REFIT_ASSIGN(bed.values, Buffer::make(bytes));
  REFIT_ASSIGN(bed.copy, Buffer::make(bytes));
  REFIT_ASSIGN(bed.codes, Buffer::make(bed.part.elements()));
  bed.scales.resize(static_cast<std::size_t>(bed.part.elements() / 32));
  fill_weights(bed.values);
  ThreadPool pool(1);
  std::vector<std::function<void()>> works = {memcpy_work(pool, bed.copy.data(), bed.values.data(), bytes)};
  for (const QuantCase& c : kQuantCases) {
    bed.run(codec::quant_ops(), c.quant);
    if (!bed.agrees(c.quant)) return Error(Code::kInternal, std::string(c.name) + ": other codes than the reference");
    works.push_back([&bed, &c] { bed.run(codec::quant_ops(), c.quant); });
  }
  const std::vector<double> s = median_seconds_in_turn(options.repeats, works);
  std::vector<Row> rows;
  for (std::size_t i = 0; i < std::size(kQuantCases); ++i)
    rows.push_back(against(kQuantCases[i].name, gbps(bytes, s[i + 1]), "GB/s", gbps(bytes, s[0]),
                           "memcpy of the bf16 input, one thread"));
  REFIT_ASSIGN(std::vector<Row> density, density_rows(bed));
  rows.insert(rows.end(), std::make_move_iterator(density.begin()), std::make_move_iterator(density.end()));
  return rows;
}

const Registration kQuantize("quantize", "bf16 to FP8 codes and scales on one thread, in bytes of input",
                             bench_quantize);

}  // namespace
}  // namespace refit::bench
