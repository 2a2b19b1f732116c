// `refit bench quantize`: bf16 weights to codes and scales, against copying the weights.
#include <algorithm>
#include <cstring>

#include "bench/bench.h"
#include "codec/codec.h"

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
  return rows;
}

const Registration kQuantize("quantize", "bf16 to FP8 codes and scales on one thread, in bytes of input",
                             bench_quantize);

}  // namespace
}  // namespace refit::bench
