// Damage: every frame that is not well-formed is refused, whatever it says, and nothing is written.
#include "unit/codec/helpers.h"

namespace refit::codec::testing {
namespace {

Pair sample(int width, std::uint64_t seed) {
  Random random(seed);
  Pair p = random_pair(random, width, 140'000, 0.004, Spread::kLogUniform);
  for (std::int64_t i = 70'000; i < 71'000; ++i) p.change(i, 3);  // a block of toggles
  return p;
}

// Gives damaged bytes a valid seal, as an attacker would.
void seal(Bytes& message) {
  Hasher hasher;
  hasher.add(std::span(message).first(64)).add(std::span(message).subspan(80));
  const Hash128 h = hasher.finish();
  for (std::size_t i = 0; i < 8; ++i) {
    message[64 + i] = static_cast<std::byte>(h.hi >> (56 - 8 * i));
    message[72 + i] = static_cast<std::byte>(h.lo >> (56 - 8 * i));
  }
}

// All tables agree on the verdict; what they let pass stays inside its target.
void expect_same_verdict(const Shape& shape, Form form, const Bytes& frame, Scratch& scratch, int& passed) {
  const Guarded bytes(frame);
  const Fault want = reference().check(shape, form, bytes.bytes(), scratch);
  Bytes result;
  for (const Ops* ops : all_for_this_machine()) {
    const Fault got = ops->check(shape, form, bytes.bytes(), scratch);
    ASSERT_EQ(got == Fault::kNone, want == Fault::kNone)
        << ops->name << ": " << to_string(got) << " / " << to_string(want);
    if (got != Fault::kNone) continue;
    const Guarded target(Bytes(static_cast<std::size_t>(shape.bytes())));
    ops->apply(shape, form, bytes.bytes(), target.bytes(), scratch);
    const Bytes now(target.bytes().begin(), target.bytes().end());
    if (!result.empty()) {
      ASSERT_TRUE(result == now) << ops->name;
    }
    result = now;
  }
  passed += want == Fault::kNone ? 1 : 0;
}

TEST(Hostile, FlippedFrameBits) {
  Scratch scratch;
  const std::uint64_t seed = test_seed(40);
  SCOPED_TRACE("REFIT_TEST_SEED=" + std::to_string(seed));
  Random random(seed);
  for (const int width : {1, 2, 4, 8})
    for (const Form form : {Form::kUndoable, Form::kOverwrite}) {
      const Pair p = sample(width, seed);
      const Bytes frame = encode_frame(reference(), p, form, scratch);
      int passed = 0;
      for (std::size_t i = 0; i < 60; ++i) {
        Bytes bad = frame;
        const std::size_t byte = i < 24 ? i : random.below(bad.size());  // the head, then anywhere
        bad[byte] ^= static_cast<std::byte>(1U << random.below(8));
        expect_same_verdict(p.shape, form, bad, scratch, passed);
      }
      EXPECT_LT(passed, 60);
    }
}

TEST(Hostile, TruncatedAndExtendedFrames) {
  Scratch scratch;
  for (const int width : {1, 2, 8}) {
    const Pair p = sample(width, 41);
    for (const Form form : {Form::kUndoable, Form::kOverwrite}) {
      const Bytes frame = encode_frame(reference(), p, form, scratch);
      for (std::size_t n = 1; n < frame.size(); n += 1 + n / 30) {
        const Guarded cut(Bytes(frame.begin(), frame.begin() + static_cast<std::ptrdiff_t>(n)));
        for (const Ops* ops : all_for_this_machine())
          ASSERT_NE(ops->check(p.shape, form, cut.bytes(), scratch), Fault::kNone) << ops->name << " at " << n;
      }
      Bytes longer = frame;
      longer.push_back(std::byte{0});
      for (const Ops* ops : all_for_this_machine())
        EXPECT_EQ(ops->check(p.shape, form, longer, scratch), Fault::kTrailing) << ops->name;
    }
  }
}

TEST(Hostile, RandomBytes) {
  Scratch scratch;
  const std::uint64_t seed = test_seed(42);
  SCOPED_TRACE("REFIT_TEST_SEED=" + std::to_string(seed));
  Random random(seed);
  int passed = 0;
  for (int i = 0; i < 3000; ++i) {
    const Shape shape{1 << random.below(4), static_cast<std::int64_t>(1 + random.below(i % 20 == 0 ? 200'000 : 500))};
    Bytes frame(1 + random.below(static_cast<std::uint64_t>(std::min<std::int64_t>(shape.bytes(), 400))));
    for (std::byte& b : frame) b = static_cast<std::byte>(random.below(3) != 0 ? random.below(4) : random.engine());
    expect_same_verdict(shape, random.below(2) != 0 ? Form::kUndoable : Form::kOverwrite, frame, scratch, passed);
  }
}

// Frames made by hand, shorter than the raw bytes of their elements.
Fault verdict(std::initializer_list<int> bytes, std::int64_t elements = 40, Form form = Form::kUndoable) {
  static Scratch scratch;
  Bytes frame;
  for (const int b : bytes) frame.push_back(static_cast<std::byte>(b));
  const Fault want = reference().check({2, elements}, form, frame, scratch);
  for (const Ops* ops : all_for_this_machine())
    EXPECT_EQ(ops->check({2, elements}, form, frame, scratch), want) << ops->name;
  return want;
}

TEST(Hostile, EachRefusalHasItsReason) {
  // One change, +1, at position 5 of 40: k = 5; low plane 5, unary plane 1; no negatives, nothing above class 0.
  EXPECT_EQ(verdict({1, 0, 0, 1, 2, 0x05, 0x01, 0, 0}), Fault::kNone);
  EXPECT_EQ(verdict({1, 0, 0, 1, 2, 0x05, 0x01, 0}), Fault::kTruncated);
  EXPECT_EQ(verdict({1, 0, 0, 1, 2, 0x05, 0x01, 0, 0, 0}), Fault::kTrailing);
  EXPECT_EQ(verdict({1, 0, 0, 1, 3, 0x05, 0x01, 0, 0, 0}), Fault::kTrailing) << "behind the positions";
  EXPECT_EQ(verdict({1, 0, 0, 1, 2, 0x08, 0x02, 0, 0}), Fault::kPosition) << "position 40 of 40";
  EXPECT_EQ(verdict({1, 0, 0, 1, 2, 0x07, 0x02, 0, 0}), Fault::kNone) << "position 39";
  EXPECT_EQ(verdict({1, 0, 0, 1, 2, 0x25, 0x01, 0, 0}), Fault::kPadding) << "behind the low plane";
  EXPECT_EQ(verdict({1, 0, 0, 1, 2, 0x05, 0x03, 0, 0}), Fault::kPadding) << "behind the unary plane";
  EXPECT_EQ(verdict({1, 0, 0, 1, 2, 0x05, 0x00, 0, 0}), Fault::kTruncated) << "a unary plane without end";
  EXPECT_EQ(verdict({0x81, 0, 0, 0, 1, 2, 0x05, 0x01, 0, 0}), Fault::kNumber) << "longer than needed";
  EXPECT_EQ(verdict({41, 0, 0, 1, 2, 0x05, 0x01, 0, 0}), Fault::kNumber) << "more changes than elements";
  EXPECT_EQ(verdict({1, 0, 0, 41, 2, 0x05, 0x01, 0, 0}), Fault::kNumber) << "more positions than elements";
  EXPECT_EQ(verdict({2, 0, 0, 1, 2, 0x05, 0x01, 0, 0}), Fault::kCount) << "announces two, has one";
  EXPECT_EQ(verdict({0, 0, 0, 0, 0}), Fault::kCount) << "nothing changed has no bytes";
  EXPECT_EQ(verdict({1, 2, 0, 1, 2, 0x05, 0x01, 0, 0}), Fault::kPadding) << "a flag of a block that is not there";
  EXPECT_EQ(verdict({1, 1, 0, 0, 0, 0, 0}), Fault::kCount) << "toggles without any";
  EXPECT_EQ(verdict({1, 0, 0, 1, 2, 0x05, 0x01, 2, 0}), Fault::kNumber) << "more negatives than values";
  EXPECT_EQ(verdict({1, 0, 0, 1, 0x7f, 0x05, 0x01, 0, 0}), Fault::kNumber) << "positions longer than the frame";
}

class HostileMessage : public ::testing::Test {
 protected:
  HostileMessage() : pair_(sample(2, 50)), message_(encode_message(work_, pair_, Form::kUndoable)) {}
  Code code_of(const Bytes& bad) {
    const Result<Delta> r = check(work_, bad);
    return r.ok() ? Code::kInternal : r.error().code;
  }
  Workspace work_;
  Pair pair_;
  Bytes message_;
};

TEST_F(HostileMessage, EveryFlippedBitIsRefused) {
  Random random(51);
  for (std::size_t i = 0; i < 700; ++i) {
    Bytes bad = message_;
    const std::size_t byte = i < 100 ? i : random.below(bad.size());
    bad[byte] ^= static_cast<std::byte>(1U << random.below(8));
    ASSERT_NE(code_of(bad), Code::kInternal) << "byte " << byte;
  }
  for (std::size_t n = 0; n < message_.size(); n += 1 + n / 20)
    ASSERT_EQ(code_of(Bytes(message_.begin(), message_.begin() + static_cast<std::ptrdiff_t>(n))), Code::kCorrupt);
  Bytes longer = message_;
  longer.push_back(std::byte{0});
  EXPECT_EQ(code_of(longer), Code::kCorrupt);
}

// With a fresh seal the hash does not help: refused by structure, or seen by the digest of the result.
TEST_F(HostileMessage, ResealedDamageIsRefusedOrSeen) {
  Random random(52);
  int refused = 0, seen = 0;
  for (std::size_t i = 0; i < 400; ++i) {
    Bytes bad = message_;
    const std::size_t byte = i < 84 ? i : random.below(bad.size());
    bad[byte] ^= static_cast<std::byte>(1U << random.below(8));
    if (byte >= 64 && byte < 80) continue;
    seal(bad);
    const Result<Delta> delta = check(work_, bad);
    if (!delta.ok() || delta->header().shape.bytes() != pair_.shape.bytes()) {
      ++refused;
      continue;
    }
    Bytes live = pair_.base;
    if (!admit(*delta, hash128(std::span(live))).ok()) {
      ++refused;
      continue;
    }
    apply(work_, *delta, live);
    ASSERT_NE(hash128(std::span(live)), delta->header().identity.next) << "byte " << byte;
    ++seen;
  }
  EXPECT_GT(refused, 50);
  EXPECT_GT(seen, 20);
}

TEST_F(HostileMessage, LyingHeaders) {
  const auto with = [&](std::size_t at, std::uint64_t v, std::size_t bytes) {
    Bytes bad = message_;
    std::memcpy(bad.data() + at, &v, bytes);
    seal(bad);
    return code_of(bad);
  };
  EXPECT_EQ(with(0, 0, 4), Code::kCorrupt);
  EXPECT_EQ(with(4, 2, 2), Code::kUnsupported) << "a later format";
  EXPECT_EQ(with(6, 2, 1), Code::kCorrupt) << "form";
  EXPECT_EQ(with(7, 3, 1), Code::kCorrupt) << "width";
  EXPECT_EQ(with(8, ~std::uint64_t{0}, 8), Code::kCorrupt) << "elements";
  EXPECT_EQ(with(8, std::uint64_t{1} << 50, 8), Code::kCorrupt);
  EXPECT_EQ(with(48, 4000000000U, 4), Code::kCorrupt) << "frames";
  EXPECT_EQ(with(52, 1, 4), Code::kCorrupt) << "reserved";
  EXPECT_EQ(with(56, ~std::uint64_t{0}, 8), Code::kCorrupt) << "payload";
  EXPECT_EQ(with(80, 0xffffffff, 4), Code::kCorrupt) << "frame size";
  EXPECT_EQ(with(80, 0, 4), Code::kCorrupt);
}

}  // namespace
}  // namespace refit::codec::testing
