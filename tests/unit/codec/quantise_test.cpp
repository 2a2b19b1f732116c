// Quantised formats: every instruction set against the reference, shards against the whole, and the kinds of F08.
#include <limits>

#include "unit/codec/helpers.h"

namespace refit::codec::testing {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Matrix {
  Part part;
  Bytes bytes;

  Matrix(std::int64_t rows, std::int64_t cols, DType dtype = DType::kBF16)
      : part{0, 0, rows, cols, cols, dtype}, bytes(static_cast<std::size_t>(rows * cols * item_size(dtype))) {}
  void set(std::int64_t row, std::int64_t col, float v) {
    const auto bits = std::bit_cast<std::uint32_t>(v);
    const auto i = static_cast<std::size_t>(row * part.cols + col);
    if (part.dtype == DType::kF32) {
      std::memcpy(bytes.data() + 4 * i, &bits, 4);
    } else {
      const auto half = static_cast<std::uint16_t>(bits >> 16);
      std::memcpy(bytes.data() + 2 * i, &half, 2);
    }
  }
  void fill(float v) {
    for (std::int64_t r = 0; r < part.rows; ++r)
      for (std::int64_t c = 0; c < part.cols; ++c) set(r, c, v);
  }
};

struct Quantised {
  Bytes scales, codes;
  Findings findings;
  friend bool operator==(const Quantised&, const Quantised&) = default;
  std::uint8_t code(std::size_t i) const { return static_cast<std::uint8_t>(codes[i]); }
};

Quantised room_for(const Quant& q, const Part& p) {
  return {Bytes(static_cast<std::size_t>(cells_of(q, p).count() * q.scale_bytes())),
          Bytes(static_cast<std::size_t>(p.elements())),
          {}};
}
Quantised with(const QuantOps& ops, const Quant& q, const Matrix& m) {
  Quantised out = room_for(q, m.part);
  out.findings = ops.quantise(q, m.part, m.bytes.data(), out.scales.data(), out.codes.data());
  return out;
}
float f32_at(const Bytes& b, std::size_t i) {
  float v;
  std::memcpy(&v, b.data() + 4 * i, 4);
  return v;
}

const Quant kFormats[] = {
    fp8_block(), fp8_block(ScaleKind::kPowerOfTwo), fp8_channel(), fp8_tensor(), mxfp8(), mxfp8(1),
    {96, 48},    {64, 64, ScaleKind::kE8M0}};

Matrix random_matrix(Random& random, std::int64_t rows, std::int64_t cols, DType dtype) {
  Matrix m(rows, cols, dtype);
  const int kind = static_cast<int>(random.below(4));
  const double spread = 1 + 20 * random.unit();
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < cols; ++c) {
      auto v = static_cast<float>((random.unit() - 0.5) * std::exp2((random.unit() - 0.5) * spread));
      if (kind == 1) v = std::bit_cast<float>(static_cast<std::uint32_t>(random.engine()));  // any pattern
      if (kind == 2) v *= 0x1p-130F;                                                         // subnormals
      if (kind == 3 && random.below(3) == 0) v = 0;
      m.set(r, c, v);
    }
  return m;
}

TEST(Quantise, CodesAndValuesAgree) {
  for (unsigned c = 0; c < 256; ++c) {
    const auto code = static_cast<std::uint8_t>(c);
    if ((c & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(e4m3_to_float(code)));
    } else {
      EXPECT_EQ(e4m3_from_float(e4m3_to_float(code)), code);
    }
  }
  EXPECT_EQ(e4m3_to_float(0x7e), 448.0F);
  EXPECT_EQ(e4m3_to_float(0x01), 0x1p-9F);
  for (unsigned c = 0; c < 0x7e; ++c) {  // ties go to the even code
    const float low = e4m3_to_float(static_cast<std::uint8_t>(c)),
                high = e4m3_to_float(static_cast<std::uint8_t>(c + 1));
    const float middle = (low + high) / 2;
    EXPECT_EQ(e4m3_from_float(middle), c + (c & 1));
    EXPECT_EQ(e4m3_from_float(std::nextafter(middle, 0.0F)), c);
    EXPECT_EQ(e4m3_from_float(std::nextafter(middle, kInf)), c + 1);
  }
}

// Sees every bf16 pattern under scales of all sizes, among them those that take division.
TEST(Quantise, EverySetEqualsTheReferenceOnAllPatterns) {
  Matrix all(256, 256);
  for (std::uint32_t i = 0; i < 65536; ++i) all.set(i / 256, i % 256, std::bit_cast<float>(i << 16));
  Random random(test_seed(41));
  std::vector<float> scales = {1, 0x1p-149F, 0x1p-127F, 0x1p-126F, 0x1p126F, 0x1p127F, 3.4e38F, 1 / 448.0F, 1.1F};
  for (std::uint32_t m = 1; m < 128; m += 14)  // quotients that lie on ties
    scales.push_back(std::bit_cast<float>((0x3f800000U | m << 16) - static_cast<std::uint32_t>(random.below(3)) + 1));
  for (int i = 0; i < 12; ++i) scales.push_back(static_cast<float>(std::exp2(40 * random.unit() - 30)));
  for (const float scale : scales) {
    Bytes want(65536), have(65536), bytes(4);
    std::memcpy(bytes.data(), &scale, 4);
    quant_reference().encode(fp8_tensor(), all.part, all.bytes.data(), bytes.data(), want.data());
    for (const QuantOps* ops : all_quant_for_this_machine()) {
      ops->encode(fp8_tensor(), all.part, all.bytes.data(), bytes.data(), have.data());
      ASSERT_TRUE(have == want) << ops->name << " with scale " << scale;
    }
  }
}

TEST(Quantise, EverySetEqualsTheReferenceOnRandomShapes) {
  const std::uint64_t seed = test_seed(42);
  SCOPED_TRACE("REFIT_TEST_SEED=" + std::to_string(seed));
  Random random(seed);
  for (int i = 0; i < 120; ++i) {
    const auto rows = static_cast<std::int64_t>(random.below(150)), cols = static_cast<std::int64_t>(random.below(700));
    const Matrix m = random_matrix(random, rows, cols, random.below(3) == 0 ? DType::kF32 : DType::kBF16);
    const Quant& q = kFormats[random.below(std::size(kFormats))];
    const Quantised want = with(quant_reference(), q, m);
    for (const QuantOps* ops : all_quant_for_this_machine())
      ASSERT_TRUE(with(*ops, q, m) == want) << ops->name << " run " << i << " " << rows << " x " << cols;
  }
}

struct Shard {
  Part part;
  std::span<const std::byte> values;
};
Shard shard_of(const Matrix& m, Interval rows, Interval cols) {
  Part p = m.part;
  p.row = rows.lo, p.col = cols.lo, p.rows = rows.size(), p.cols = cols.size();
  const auto at = static_cast<std::size_t>((rows.lo * m.part.stride + cols.lo) * item_size(p.dtype));
  return {p, std::span(m.bytes).subspan(std::min(at, m.bytes.size()))};
}

// The two-step way over a grid of shards with cuts anywhere: amax, the largest of each cell, scales, codes.
void expect_shards_equal_whole(Random& random, const Quant& q, const Matrix& m) {
  Quantised whole = room_for(q, m.part);
  const auto found = quantise(q, m.part, m.bytes, whole.scales, whole.codes);
  ASSERT_TRUE(found.ok());
  const auto cut = [&](std::int64_t n) {
    return static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(n) + 1));
  };
  const std::int64_t row = cut(m.part.rows), col = cut(m.part.cols);
  const Shard shards[] = {shard_of(m, {0, row}, {0, col}), shard_of(m, {0, row}, {col, m.part.cols}),
                          shard_of(m, {row, m.part.rows}, {0, col}),
                          shard_of(m, {row, m.part.rows}, {col, m.part.cols})};
  const std::int64_t columns = cells_of(q, m.part).cols;
  std::vector<float> grid(static_cast<std::size_t>(cells_of(q, m.part).count()), 0);
  const auto cell = [&](const Cells& c, std::int64_t i) {
    return static_cast<std::size_t>((c.row + i / c.cols) * columns + c.col + i % c.cols);
  };
  Findings findings;
  for (const Shard& s : shards) {
    const Cells cells = cells_of(q, s.part);
    std::vector<float> amax(static_cast<std::size_t>(cells.count()));
    const auto f = block_amax(q, s.part, s.values, amax);
    ASSERT_TRUE(f.ok()) << f.error().to_string();
    findings.add(*f);
    for (std::int64_t i = 0; i < cells.count(); ++i)
      grid[cell(cells, i)] = std::max(grid[cell(cells, i)], amax[static_cast<std::size_t>(i)]);
  }
  EXPECT_EQ(findings, *found);
  for (const Shard& s : shards) {
    const Cells cells = cells_of(q, s.part);
    std::vector<float> amax;
    for (std::int64_t i = 0; i < cells.count(); ++i) amax.push_back(grid[cell(cells, i)]);
    Quantised part = room_for(q, s.part);
    ASSERT_TRUE(scales_of(q, amax, part.scales).ok());
    const Status done = quantise_with(q, s.part, s.values, part.scales, part.codes);
    ASSERT_TRUE(done.ok()) << done.error().to_string();
    const auto cols = static_cast<std::ptrdiff_t>(s.part.cols);
    for (std::int64_t r = 0; r < s.part.rows && cols > 0; ++r) {
      const auto here = part.codes.begin() + r * cols;
      ASSERT_TRUE(std::equal(here, here + cols, whole.codes.begin() + (s.part.row + r) * m.part.cols + s.part.col));
    }
  }
}

TEST(Quantise, ShardsEqualTheWhole) {
  const std::uint64_t seed = test_seed(43);
  SCOPED_TRACE("REFIT_TEST_SEED=" + std::to_string(seed));
  Random random(seed);
  for (int i = 0; i < 60; ++i) {
    const auto rows = 1 + static_cast<std::int64_t>(random.below(400)),
               cols = 1 + static_cast<std::int64_t>(random.below(400));
    const Matrix m = random_matrix(random, rows, cols, random.below(3) == 0 ? DType::kF32 : DType::kBF16);
    expect_shards_equal_whole(random, kFormats[random.below(std::size(kFormats))], m);
    if (HasFatalFailure()) FAIL() << "run " << i << " " << rows << " x " << cols;
  }
}

// ---- F08

TEST(Quantise, F08ZeroBlocksHaveAScaleAndZeroCodes) {
  const Matrix zero(130, 200);
  for (const Quant& q : kFormats)
    for (const QuantOps* ops : all_quant_for_this_machine()) {
      const Quantised z = with(*ops, q, zero);
      EXPECT_TRUE(std::all_of(z.codes.begin(), z.codes.end(), [](std::byte b) { return b == std::byte{0}; }));
      if (q.scale == ScaleKind::kE8M0) {
        EXPECT_EQ(static_cast<std::uint8_t>(z.scales[0]), q.least_byte);
      } else {
        EXPECT_EQ(f32_at(z.scales, 0), 1.0F);
      }
    }
}

TEST(Quantise, F08KindsOfValues) {
  struct Kind {
    const char* name;
    float special;
    std::uint8_t code;  // under fp8_block, where the other values are 1
    Findings findings;
  };
  const Kind kinds[] = {{"huge", 3.3895314e38F, 0x7e, {}},  {"limit", 448, 0x7e, {}},
                        {"above the limit", 450, 0x7e, {}}, {"subnormal", 0x1p-133F, 0, {}},
                        {"nan", kNan, 0x7f, {1, 0, 3, 5}},  {"inf", kInf, 0x7e, {0, 1}},
                        {"-inf", -kInf, 0xfe, {0, 1}}};
  for (const Kind& kind : kinds)
    for (const QuantOps* ops : all_quant_for_this_machine()) {
      SCOPED_TRACE(std::string(kind.name) + " with " + ops->name);
      Matrix m(128, 128);
      m.fill(1);
      m.set(3, 5, kind.special);
      const Quantised out = with(*ops, fp8_block(), m);
      EXPECT_EQ(out.code(3 * 128 + 5), kind.code);
      EXPECT_TRUE(out.findings == kind.findings);
      const float scale = f32_at(out.scales, 0);
      EXPECT_TRUE(std::isfinite(scale) && scale > 0);
      EXPECT_EQ(scale, (std::isfinite(kind.special) && kind.special > 1 ? kind.special : 1) / 448);
      for (std::size_t i = 0; i < out.codes.size(); ++i)
        ASSERT_TRUE(i == 3 * 128 + 5 || (out.code(i) & 0x7f) != 0x7f) << i;
    }
}

TEST(Quantise, F08OnlyInfinitiesOrOnlySubnormals) {
  Matrix m(2, 32);
  m.fill(-kInf);
  const Quantised inf = with(quant_ops(), mxfp8(), m);
  EXPECT_EQ(inf.code(0), 0xfe);
  EXPECT_EQ(inf.findings.infinities, 64);
  m.fill(0x1p-133F);
  const Quantised tiny = with(quant_ops(), fp8_tensor(), m);
  EXPECT_EQ(f32_at(tiny.scales, 0), std::numeric_limits<float>::min());
  EXPECT_EQ(tiny.code(0), e4m3_from_float(0x1p-7F));
}

TEST(Quantise, F08AgainAndBackAgain) {
  Random random(test_seed(44));
  const Matrix a = random_matrix(random, 200, 300, DType::kBF16), b = random_matrix(random, 200, 300, DType::kBF16);
  for (const Quant& q : kFormats) {
    const Quantised first = with(quant_ops(), q, a);
    EXPECT_TRUE(with(quant_ops(), q, a) == first);
    with(quant_ops(), q, b);
    EXPECT_TRUE(with(quant_ops(), q, a) == first);
  }
}

TEST(Quantise, ErrorIsAtMostHalfAStepOfTheLargest) {
  Random random(test_seed(45));
  Matrix m(256, 256, DType::kF32);
  for (std::int64_t r = 0; r < 256; ++r)
    for (std::int64_t c = 0; c < 256; ++c) m.set(r, c, static_cast<float>(random.unit() - 0.5));
  const Quantised out = with(quant_ops(), fp8_block(), m);
  Bytes back(m.bytes.size());
  ASSERT_TRUE(dequantise(fp8_block(), m.part, out.codes, out.scales, back).ok());
  for (std::size_t i = 0; i < 65536; ++i) {
    const float amax = 448 * f32_at(out.scales, i / 256 / 128 * 2 + i % 256 / 128);
    ASSERT_LE(std::fabs(f32_at(back, i) - f32_at(m.bytes, i)), amax / 28 * 1.000001F);
  }
}

TEST(Quantise, RefusesBadScalesAndSizes) {
  const Matrix m(130, 130);
  Quantised out = room_for(fp8_block(), m.part);
  for (const float bad : {0.0F, -1.0F, kInf, kNan}) {
    std::vector<float> scales = {1, 1, bad, 1};
    const Status s = quantise_with(fp8_block(), m.part, m.bytes, std::as_bytes(std::span(scales)), out.codes);
    ASSERT_FALSE(s.ok());
    EXPECT_NE(s.error().message.find("block (1, 0)"), std::string::npos) << s.error().message;
  }
  const Status shy = quantise_with(fp8_block(), m.part, m.bytes, std::span(out.scales).first(15), out.codes);
  ASSERT_FALSE(shy.ok());
  EXPECT_EQ(shy.error().need, 16);
  const float amax[] = {1, kNan};
  EXPECT_FALSE(scales_of(fp8_block(), amax, out.scales).ok());
  Part huge = m.part;
  huge.rows = std::int64_t{1} << 62;
  EXPECT_FALSE(quantise(fp8_block(), huge, m.bytes, out.scales, out.codes).ok());
  Part half = m.part;
  half.dtype = DType::kF16;
  EXPECT_FALSE(quantise(fp8_block(), half, m.bytes, out.scales, out.codes).ok());
}

}  // namespace
}  // namespace refit::codec::testing
