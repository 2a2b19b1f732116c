// Messages of this and every earlier release: today's reader applies them, today's writer writes the same bytes.
// REFIT_WRITE_GOLDEN=1 writes files that are missing. tests/golden/decode_delta.py makes the same versions on its own.
#include "support/golden.h"
#include "unit/codec/helpers.h"

namespace refit::codec::testing {
namespace {

// Name parts: width, elements, one change in so many, largest difference, length of runs, form.
struct Sample {
  int width;
  std::int64_t elements;
  std::uint64_t one_in, most, run;
  Form form;
};
constexpr Sample kSamples[] = {{2, 70'001, 100, 3, 1, Form::kUndoable},    {2, 70'001, 100, 3, 1, Form::kOverwrite},
                               {2, 66'000, 3, 1000, 1, Form::kUndoable},   {2, 50'000, 900, 2, 40, Form::kUndoable},
                               {1, 1'048'700, 500, 5, 1, Form::kUndoable}, {4, 5'000, 10, 70'000, 1, Form::kUndoable},
                               {8, 3'000, 4, 1 << 20, 1, Form::kUndoable}, {8, 3'000, 40, 9, 1, Form::kOverwrite},
                               {2, 1'000, 1, 30'000, 1, Form::kUndoable},  {2, 0, 1, 1, 1, Form::kUndoable},
                               {2, 300, 1, 9, 1, Form::kOverwrite}};

// A linear congruential generator, whose upper half counts.
struct Lcg {
  std::uint64_t x = 1;
  std::uint64_t next() { return (x = x * 6364136223846793005U + 1442695040888963407U) >> 32; }
};

Pair versions(const Sample& s) {
  Pair p;
  p.shape = {s.width, s.elements};
  p.base.resize(static_cast<std::size_t>(p.shape.bytes()));
  Lcg lcg;
  for (std::byte& b : p.base) b = static_cast<std::byte>(lcg.next() & 0xff);
  p.next = p.base;
  for (std::int64_t i = 0; i < s.elements; ++i) {
    if (lcg.next() % s.one_in != 0) continue;
    for (std::int64_t end = std::min(s.elements, i + static_cast<std::int64_t>(s.run)); i < end; ++i) {
      const std::uint64_t r = lcg.next(), m = 1 + (r >> 1) % s.most;
      p.change(i, r % 2 != 0 ? 0 - m : m);
    }
  }
  return p;
}

std::string name_of(const Sample& s) {
  return "v1_w" + std::to_string(s.width) + "_n" + std::to_string(s.elements) + "_one" + std::to_string(s.one_in) +
         "_most" + std::to_string(s.most) + "_run" + std::to_string(s.run) + "_" + std::string(to_string(s.form)) +
         ".delta";
}

TEST(Golden, WritesAndReadsTheSameBytes) {
  Workspace work;
  for (const Sample& s : kSamples) {
    SCOPED_TRACE(name_of(s));
    const Pair p = versions(s);
    const Bytes fresh = encode_message(work, p, s.form), kept = support::golden(name_of(s), fresh);
    EXPECT_TRUE(kept == fresh);
    const Result<Delta> delta = check(work, kept);
    ASSERT_TRUE(delta.ok()) << delta.error().to_string();
    Bytes live = p.base;
    apply(work, *delta, live);
    EXPECT_TRUE(live == p.next);
  }
}

}  // namespace
}  // namespace refit::codec::testing
