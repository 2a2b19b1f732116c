// Casts: exhaustive where the source has 16 bits or fewer, edges and random bits elsewhere, against plain C++
// arithmetic.
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "unit/kernel/helpers.h"

namespace refit::kernel::testing {
namespace {

// Casts n packed items with run(); returns whether all were exact.
bool cast(DType from, DType to, const void* src, void* dst, std::int64_t n) {
  const std::int64_t extents[] = {n}, in[] = {item_size(from)}, out[] = {item_size(to)};
  Job job;
  job.src = src;
  job.dst = dst;
  job.extents = extents;
  job.src_strides = in;
  job.dst_strides = out;
  job.src_dtype = job.wire_dtype = from;
  job.dst_dtype = to;
  return run({}, std::span(&job, 1), {}).empty();
}
template <typename To, typename From>
To cast_one(DType from, DType to, From v, bool* exact = nullptr) {
  To out{};
  const bool was = cast(from, to, &v, &out, 1);
  if (exact != nullptr) *exact = was;
  return out;
}

// Value of a small float by definition; NaN for NaN.
double value_of(std::uint32_t bits, int exponent_bits, int mantissa_bits, bool has_infinity) {
  const int top = (1 << exponent_bits) - 1, bias = (1 << (exponent_bits - 1)) - 1;
  const auto exponent = static_cast<int>(bits >> mantissa_bits) & top;
  const auto mantissa = bits & ((1u << mantissa_bits) - 1);
  const double sign = (bits >> (exponent_bits + mantissa_bits)) != 0 ? -1.0 : 1.0;
  if (has_infinity && exponent == top)
    return mantissa == 0 ? sign * std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  if (!has_infinity && exponent == top && mantissa == (1u << mantissa_bits) - 1)
    return std::numeric_limits<double>::quiet_NaN();
  const double fraction = static_cast<double>(mantissa) / (1u << mantissa_bits);
  return sign * (exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1.0 + fraction, exponent - bias));
}

struct Small {
  DType type;
  int bytes, exponent_bits, mantissa_bits;
  bool has_infinity;
};
constexpr Small kSmall[] = {{DType::kF16, 2, 5, 10, true},
                            {DType::kBF16, 2, 8, 7, true},
                            {DType::kF8E4M3, 1, 4, 3, false},
                            {DType::kF8E5M2, 1, 5, 2, true}};

TEST(Cast, EverySmallFloatWidensToItsValueAndComesBackAsItWas) {
  for (const std::string& isa : available_isas()) {
    ASSERT_TRUE(force_isa(isa).ok());
    for (const Small& s : kSmall) {
      const std::uint32_t n = 1u << (8 * s.bytes);
      std::vector<char> src(n * static_cast<std::size_t>(s.bytes)), back(src.size());
      for (std::uint32_t i = 0; i < n; ++i)
        std::memcpy(src.data() + i * static_cast<std::size_t>(s.bytes), &i, static_cast<std::size_t>(s.bytes));
      std::vector<float> wide(n);
      EXPECT_TRUE(cast(s.type, DType::kF32, src.data(), wide.data(), n)) << isa << to_string(s.type);
      EXPECT_TRUE(cast(DType::kF32, s.type, wide.data(), back.data(), n)) << isa << to_string(s.type);
      EXPECT_TRUE(back == src) << isa << " " << to_string(s.type);
      for (std::uint32_t i = 0; i < n; ++i) {
        const double want = value_of(i, s.exponent_bits, s.mantissa_bits, s.has_infinity);
        if (std::isnan(want)) {
          ASSERT_TRUE(std::isnan(wide[i])) << i;
        } else {
          ASSERT_EQ(static_cast<double>(wide[i]), want) << i;
          ASSERT_EQ(std::signbit(wide[i]), std::signbit(want)) << i;
        }
      }
    }
  }
  ASSERT_TRUE(force_isa(available_isas().front()).ok());
}

// Nearest small float, ties to even, by looking at the two neighbours in the exact table of values.
std::uint32_t nearest(const Small& s, double v) {
  const std::uint32_t sign = std::signbit(v) ? 1u << (s.exponent_bits + s.mantissa_bits) : 0u;
  const double m = std::fabs(v);
  const std::uint32_t top = ((1u << s.exponent_bits) - 1) << s.mantissa_bits;
  const std::uint32_t beyond =
      s.has_infinity ? top : top | ((1u << s.mantissa_bits) - 1);  // first code that is no number
  std::uint32_t lo = 0, hi = beyond;
  while (hi - lo > 1) {
    const std::uint32_t mid = (lo + hi) / 2;
    (value_of(mid, s.exponent_bits, s.mantissa_bits, s.has_infinity) <= m ? lo : hi) = mid;
  }
  const double below = value_of(lo, s.exponent_bits, s.mantissa_bits, s.has_infinity);
  // The code past the largest number stands where the next number would be.
  const double above = value_of(hi, s.exponent_bits, s.mantissa_bits, false);
  const double next =
      std::isnan(above) ? below + (below - value_of(lo - 1, s.exponent_bits, s.mantissa_bits, s.has_infinity)) : above;
  if (m - below < next - m) return sign | lo;
  if (m - below > next - m) return sign | hi;
  return sign | (lo % 2 == 0 ? lo : hi);
}

TEST(Cast, NarrowingRoundsToNearestEven) {
  const std::uint64_t seed = test_seed(0xca57);
  SCOPED_TRACE("seed " + std::to_string(seed));
  Random random(seed);
  std::vector<std::uint32_t> bits;
  for (int i = 0; i < 20000; ++i) bits.push_back(static_cast<std::uint32_t>(random.engine()));
  // Around every small float and every tie between two of them.
  for (const Small& s : kSmall)
    for (std::uint32_t c = 0; c < (1u << (8 * s.bytes)); c += s.bytes == 1 ? 1 : 7) {
      const double v = value_of(c, s.exponent_bits, s.mantissa_bits, s.has_infinity),
                   w = value_of(c ^ 1, s.exponent_bits, s.mantissa_bits, s.has_infinity);
      for (const double x : {v, (v + w) / 2})
        for (const std::uint32_t d : {0u, 1u, ~0u})
          bits.push_back(std::bit_cast<std::uint32_t>(static_cast<float>(x)) + d);
    }
  for (const std::string& isa : available_isas()) {
    ASSERT_TRUE(force_isa(isa).ok());
    for (const Small& s : kSmall) {
      std::vector<char> out(bits.size() * static_cast<std::size_t>(s.bytes));
      cast(DType::kF32, s.type, bits.data(), out.data(), static_cast<std::int64_t>(bits.size()));
      for (std::size_t i = 0; i < bits.size(); ++i) {
        const auto v = std::bit_cast<float>(bits[i]);
        if (std::isnan(v) || std::isinf(v)) continue;
        std::uint32_t got = 0;
        std::memcpy(&got, out.data() + i * static_cast<std::size_t>(s.bytes), static_cast<std::size_t>(s.bytes));
        ASSERT_EQ(got, nearest(s, static_cast<double>(v)))
            << isa << " " << to_string(s.type) << " bits " << std::hex << bits[i];
      }
    }
  }
  ASSERT_TRUE(force_isa(available_isas().front()).ok());
}

TEST(Cast, NanPayloadsSignsAndInfinities) {
  for (const std::string& isa : available_isas()) {
    ASSERT_TRUE(force_isa(isa).ok());
    // Nine items so that vector bodies see them too.
    const auto narrow = [](DType to, std::uint32_t v, bool& exact) {
      const std::vector<std::uint32_t> src(9, v);
      std::vector<std::uint16_t> dst(9);
      exact = cast(DType::kF32, to, src.data(), dst.data(), 9);
      EXPECT_EQ(dst[0], dst[8]);
      return dst[0];
    };
    bool exact = false;
    EXPECT_EQ(narrow(DType::kBF16, 0x7f810000u, exact), 0x7f81u);  // a signalling NaN stays one
    EXPECT_TRUE(exact);
    EXPECT_EQ(narrow(DType::kBF16, 0xff800001u, exact), 0xffc0u);  // payload below the cut: still a NaN
    EXPECT_FALSE(exact);
    EXPECT_EQ(narrow(DType::kF16, 0x7f802000u, exact), 0x7c01u);
    EXPECT_TRUE(exact);
    EXPECT_EQ(narrow(DType::kF16, 0x80000000u, exact), 0x8000u);
    EXPECT_TRUE(exact);
    EXPECT_EQ(narrow(DType::kBF16, 0xff800000u, exact), 0xff80u);
    EXPECT_TRUE(exact);
    EXPECT_EQ(narrow(DType::kF16, 0x47800000u, exact), 0x7c00u);  // 65536 overflows
    EXPECT_FALSE(exact);
    EXPECT_EQ(narrow(DType::kF16, 0x00000001u, exact), 0x0000u);
    EXPECT_FALSE(exact);
  }
  ASSERT_TRUE(force_isa(available_isas().front()).ok());
  EXPECT_EQ((cast_one<std::uint8_t>(DType::kF32, DType::kF8E4M3, std::numeric_limits<float>::infinity())), 0x7f);
}

TEST(Cast, IntegersAndBool) {
  bool exact = false;
  EXPECT_EQ((cast_one<std::int8_t>(DType::kI32, DType::kI8, std::int32_t{-129}, &exact)), -128);
  EXPECT_FALSE(exact);
  EXPECT_EQ((cast_one<std::uint8_t>(DType::kI32, DType::kU8, std::int32_t{-1}, &exact)), 0);
  EXPECT_FALSE(exact);
  EXPECT_EQ((cast_one<std::int64_t>(DType::kF64, DType::kI64, -9223372036854775808.0, &exact)),
            std::numeric_limits<std::int64_t>::min());
  EXPECT_TRUE(exact);
  EXPECT_EQ((cast_one<std::int64_t>(DType::kF64, DType::kI64, 9223372036854775808.0, &exact)),
            std::numeric_limits<std::int64_t>::max());
  EXPECT_FALSE(exact);
  EXPECT_EQ((cast_one<float>(DType::kI64, DType::kF32, std::numeric_limits<std::int64_t>::max(), &exact)),
            9223372036854775808.0f);
  EXPECT_FALSE(exact);
  EXPECT_EQ((cast_one<std::int32_t>(DType::kF32, DType::kI32, 2.5f, &exact)), 2);
  EXPECT_FALSE(exact);
  EXPECT_EQ((cast_one<std::int32_t>(DType::kF32, DType::kI32, std::numeric_limits<float>::quiet_NaN(), &exact)), 0);
  EXPECT_FALSE(exact);
  EXPECT_EQ((cast_one<std::int32_t>(DType::kF32, DType::kI32, -0.0f, &exact)), 0);
  EXPECT_FALSE(exact);
  EXPECT_EQ((cast_one<std::uint8_t>(DType::kF32, DType::kBool, 1.0f, &exact)), 1);
  EXPECT_TRUE(exact);
  EXPECT_EQ((cast_one<std::uint8_t>(DType::kF32, DType::kBool, 0.5f, &exact)), 1);
  EXPECT_FALSE(exact);
  EXPECT_EQ((cast_one<std::uint8_t>(DType::kBool, DType::kU8, std::uint8_t{7}, &exact)), 1);
  EXPECT_FALSE(exact);
  EXPECT_EQ((cast_one<double>(DType::kI32, DType::kF64, std::int32_t{-7}, &exact)), -7.0);
  EXPECT_TRUE(exact);
}

TEST(Cast, DoubleToSingleMatchesTheProcessor) {
  const std::uint64_t seed = test_seed(0xca58);
  Random random(seed);
  for (int i = 0; i < 20000; ++i) {
    std::uint64_t bits = random.engine();
    if (i % 2 == 0)
      bits = (bits & 0x800fffffffffffffu) | static_cast<std::uint64_t>(1023 - 160 + random.below(320)) << 52;
    const auto v = std::bit_cast<double>(bits);
    if (std::isnan(v)) continue;
    bool exact = false;
    const float got = cast_one<float>(DType::kF64, DType::kF32, v, &exact);
    ASSERT_EQ(std::bit_cast<std::uint32_t>(got), std::bit_cast<std::uint32_t>(static_cast<float>(v)))
        << "seed " << seed << " " << std::hex << bits;
    ASSERT_EQ(exact, static_cast<double>(got) == v);
  }
}

TEST(Cast, TheFirstInexactElementOfEachJobIsNamed) {
  std::vector<float> src(64 * 64, 1.0f);
  src[70 * 5] = 1.0001f;
  src[4000] = 1.0001f;
  std::vector<std::uint16_t> dst(src.size());
  const std::int64_t extents[] = {64, 64}, in[] = {4, 256}, out[] = {2, 128};  // loops in column-major order
  Job job;
  job.src = src.data();
  job.dst = dst.data();
  job.extents = extents;
  job.src_strides = in;
  job.dst_strides = out;
  job.src_dtype = DType::kF32;
  Job exact = job;
  std::vector<float> good(src.size(), 2.0f);
  std::vector<std::uint16_t> dst2(src.size());
  exact.src = good.data();
  exact.dst = dst2.data();
  const Job jobs[] = {exact, job};
  ThreadPool pool(2);
  const auto found = run(Exec{&pool}, jobs, {});
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].job, 1u);
  // src index 350 = row 5, column 30 and 4000 = row 62, column 32, walked with the loops' order (column, row).
  EXPECT_EQ(found[0].linear, 30 * 64 + 5);
}

}  // namespace
}  // namespace refit::kernel::testing
