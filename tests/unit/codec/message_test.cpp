// Messages: identity, both forms, threads; and the delta cases of F11 as far as the codec decides them.
#include "unit/codec/helpers.h"

namespace refit::codec::testing {
namespace {

constexpr std::int64_t kElements = 2 * kFrameElements + 777;  // three frames

Pair three_frames(std::uint64_t seed, double density = 0.01) {
  Random random(seed);
  return random_pair(random, 2, kElements, density, Spread::kUlp3);
}
// The version after p.
Pair after(const Pair& p, std::uint64_t seed) {
  Random random(seed);
  Pair q = random_pair(random, p.shape.width, p.shape.elements, 0.02, Spread::kGeometric);
  for (std::size_t i = 0; i + 2 <= q.base.size(); i += 2) {
    std::uint16_t a, b, c;
    std::memcpy(&a, q.base.data() + i, 2);
    std::memcpy(&b, q.next.data() + i, 2);
    std::memcpy(&c, p.next.data() + i, 2);
    c = static_cast<std::uint16_t>(c + b - a);
    std::memcpy(q.next.data() + i, &c, 2);
  }
  q.base = p.next;
  return q;
}
Hash128 digest(const Bytes& b) { return hash128(std::span(b)); }

TEST(Message, AppliesAndUndoes) {
  Workspace work;
  const Pair p = three_frames(1);
  const Bytes message = encode_message(work, p, Form::kUndoable);
  const Result<Delta> delta = check(work, message);
  ASSERT_TRUE(delta.ok()) << delta.error().to_string();
  EXPECT_EQ(delta->header().frames, 3);
  EXPECT_EQ(delta->header().identity.next, digest(p.next));
  Bytes live = p.base;
  ASSERT_TRUE(admit(*delta, digest(live)).ok());
  apply(work, *delta, live);
  EXPECT_EQ(digest(live), delta->header().identity.next);
  ASSERT_TRUE(admit_undo(*delta, digest(live)).ok());
  undo(work, *delta, live);
  EXPECT_TRUE(live == p.base);
}

TEST(Message, ThreadsGiveTheSameBytes) {
  ThreadPool pool(3);
  Workspace one, many(kernel::Exec{&pool});
  const Pair p = three_frames(2, 0.3);
  for (const Form form : {Form::kUndoable, Form::kOverwrite}) {
    const Bytes message = encode_message(one, p, form);
    ASSERT_TRUE(encode_message(many, p, form) == message);
    const Result<Delta> delta = check(many, message);
    ASSERT_TRUE(delta.ok());
    Bytes live = p.base;
    apply(many, *delta, live);
    EXPECT_TRUE(live == p.next);
  }
}

TEST(Message, UnchangedAndEmptyCostNextToNothing) {
  Workspace work;
  Pair p = three_frames(3, 0);
  EXPECT_EQ(encode_message(work, p, Form::kUndoable).size(), static_cast<std::size_t>(kHeaderBytes) + 12);
  p.shape.elements = 0;
  p.base.clear();
  p.next.clear();
  const Bytes empty = encode_message(work, p, Form::kOverwrite);
  EXPECT_EQ(empty.size(), static_cast<std::size_t>(kHeaderBytes));
  EXPECT_TRUE(check(work, empty).ok());
}

TEST(Message, RandomChangeStaysWithinAThousandthOfRaw) {
  Workspace work;
  Random random(6);
  for (const int width : {1, 2, 4, 8}) {
    const Pair p = random_pair(random, width, 1 << 18, 1.0, Spread::kAny);
    EXPECT_LE(static_cast<double>(encode_message(work, p, Form::kUndoable).size()),
              1.001 * static_cast<double>(p.next.size()));
  }
}

TEST(Message, RefusesWrongSizes) {
  Workspace work;
  const Pair p = three_frames(4);
  Bytes out(static_cast<std::size_t>(*message_bound(p.shape)));
  const Identity id = identity_of(p);
  const auto code = [&](const Shape& shape, std::span<const std::byte> base, std::span<std::byte> to) {
    const auto r = encode(work, shape, Form::kUndoable, id, base, p.next, to);
    return r.ok() ? Code::kInternal : r.error().code;
  };
  EXPECT_EQ(code(p.shape, std::span(p.base).first(10), out), Code::kInvalid);
  EXPECT_EQ(code({3, 10}, p.base, out), Code::kInvalid);
  EXPECT_EQ(code({2, -1}, p.base, out), Code::kInvalid);
  EXPECT_EQ(code({8, std::int64_t{1} << 62}, p.base, out), Code::kInvalid);
  EXPECT_EQ(code(p.shape, p.base, std::span(out).first(out.size() - 1)), Code::kExhausted);
}

// F11: wrong base; d1 twice; d2 without d1; retry over a half-applied copy.
TEST(F11, UndoableNeedsExactlyItsBase) {
  Workspace work;
  const Pair first = three_frames(8), second = after(first, 9);
  const Bytes m1 = encode_message(work, first, Form::kUndoable), m2 = encode_message(work, second, Form::kUndoable);
  const Result<Delta> d1 = check(work, m1), d2 = check(work, m2);
  ASSERT_TRUE(d1.ok() && d2.ok());
  Bytes live = first.base;
  EXPECT_EQ(admit(*d2, digest(live)).error().code, Code::kMismatch) << "d2 without d1";
  apply(work, *d1, live);
  const Status again = admit(*d1, digest(live));
  ASSERT_FALSE(again.ok()) << "d1 twice";
  EXPECT_NE(again.error().message.find(digest(live).hex()), std::string::npos);
  ASSERT_TRUE(admit(*d2, digest(live)).ok());
  apply(work, *d2, live);
  EXPECT_TRUE(live == second.next);
  Bytes other = first.base;
  other[5] ^= std::byte{1};
  EXPECT_FALSE(admit(*d1, digest(other)).ok()) << "wrong base";
  EXPECT_FALSE(admit_undo(*d1, digest(live)).ok());
}

TEST(F11, OverwriteMayBeRetried) {
  Workspace work;
  const Pair p = three_frames(10);
  const Bytes message = encode_message(work, p, Form::kOverwrite);
  const Result<Delta> delta = check(work, message);
  ASSERT_TRUE(delta.ok());
  // A crash in the middle: some elements are new, the others old.
  Bytes live = p.base;
  std::copy(p.next.begin(), p.next.begin() + 1'000'002, live.begin());
  apply(work, *delta, live);
  EXPECT_EQ(digest(live), delta->header().identity.next);
  EXPECT_TRUE(admit(*delta, digest(live)).ok()) << "its result is admitted too";
  apply(work, *delta, live);
  EXPECT_TRUE(live == p.next);
  EXPECT_EQ(admit_undo(*delta, digest(live)).error().code, Code::kUnsupported);
}

TEST(F11, ManyVersionsWithoutDrift) {
  Workspace work;
  Random random(12);
  Pair p = random_pair(random, 2, 20'000, 0.05, Spread::kGeometric);
  Bytes live = p.base;
  for (int v = 0; v < 50; ++v) {
    const Bytes message = encode_message(work, p, Form::kUndoable);
    const Result<Delta> delta = check(work, message);
    ASSERT_TRUE(delta.ok());
    ASSERT_TRUE(admit(*delta, digest(live)).ok());
    apply(work, *delta, live);
    ASSERT_TRUE(live == p.next);
    p = after(p, static_cast<std::uint64_t>(v));
  }
}

}  // namespace
}  // namespace refit::codec::testing
