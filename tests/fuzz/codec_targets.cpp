// Delta messages: what passes check() applies without a fault, alike on every instruction set, and can be taken back.
#include <cstring>

#include "codec/codec.h"
#include "fuzz/fuzz.h"

namespace refit::fuzz {
namespace {

constexpr std::int64_t kMostBytes = 1 << 20;  // of a target that is made for a message

bool frames_alike(const codec::Delta& delta) {
  const codec::Header& h = delta.header();
  codec::Scratch scratch;
  for (std::int64_t i = 0; i < h.frames; ++i) {
    const View frame = delta.frame(i);
    const codec::Shape shape = delta.frame_shape(i);
    if (frame.empty() || std::ssize(frame) == shape.bytes()) continue;  // unchanged, raw
    Bytes want;
    for (const codec::Ops* ops : codec::all_for_this_machine()) {
      if (ops->check(shape, h.form, frame, scratch) != codec::Fault::kNone) return false;
      Bytes got(static_cast<std::size_t>(shape.bytes()), std::byte{0x5a});
      ops->apply(shape, h.form, frame, got, scratch);
      if (want.empty()) want = got;
      if (got != want) return false;
    }
  }
  return true;
}

// A frame alone, on every instruction set: they refuse alike.
bool frame(View in) {
  if (in.size() < 4) return false;
  constexpr int kWidths[] = {1, 2, 4, 8};
  const int width = kWidths[std::to_integer<unsigned>(in[0]) & 3u];
  const auto form = static_cast<codec::Form>(std::to_integer<unsigned>(in[0]) >> 2 & 1u);
  const std::int64_t elements = 1 + (std::to_integer<std::int64_t>(in[1]) | std::to_integer<std::int64_t>(in[2]) << 8 |
                                     (std::to_integer<std::int64_t>(in[3]) & 1) << 16);
  const codec::Shape shape{width, elements};
  const View bytes = in.subspan(4);
  codec::Scratch scratch;
  const codec::Fault fault = codec::reference().check(shape, form, bytes, scratch);
  Bytes want;
  for (const codec::Ops* ops : codec::all_for_this_machine()) {
    REFIT_FUZZ_CHECK((ops->check(shape, form, bytes, scratch) == codec::Fault::kNone) ==
                     (fault == codec::Fault::kNone));
    if (fault != codec::Fault::kNone) continue;
    Bytes target(static_cast<std::size_t>(shape.bytes()), std::byte{0x5a});
    const Bytes before = target;
    ops->apply(shape, form, bytes, target, scratch);
    if (want.empty()) want = target;
    REFIT_FUZZ_CHECK(target == want);
    if (form != codec::Form::kUndoable) continue;
    ops->undo(shape, bytes, target, scratch);
    REFIT_FUZZ_CHECK(target == before);
  }
  return fault == codec::Fault::kNone;
}

bool delta(View in) {
  constexpr std::size_t kSealAt = static_cast<std::size_t>(codec::kHeaderBytes) - 16;
  Bytes bytes(in.begin(), in.end());
  if (std::ssize(bytes) >= codec::kHeaderBytes) {
    Hasher hasher;
    hasher.add(View(bytes).first(kSealAt)).add(View(bytes).subspan(kSealAt + 16));
    put_canonical(bytes, kSealAt, hasher.finish());
  }
  codec::Workspace work;
  const auto read = codec::check(work, bytes);
  if (!read.ok()) return false;
  const codec::Header& h = read->header();
  if (h.shape.bytes() > kMostBytes) return true;
  REFIT_FUZZ_CHECK(frames_alike(*read));
  Bytes target(static_cast<std::size_t>(h.shape.bytes()), std::byte{0x21});
  const Bytes before = target;
  codec::apply(work, *read, target);
  if (h.form != codec::Form::kUndoable) {
    const Bytes once = target;
    codec::apply(work, *read, target);
    REFIT_FUZZ_CHECK(target == once);
    return true;
  }
  const auto census = codec::census(*read);
  REFIT_FUZZ_CHECK(census.unchanged_frames + census.coded_frames + census.raw_frames == h.frames);
  if (census.raw_frames > 0) return true;  // a raw frame of this form was not made against these bytes
  codec::undo(work, *read, target);
  REFIT_FUZZ_CHECK(target == before);
  return true;
}

std::vector<Bytes> deltas() { return files(REFIT_GOLDEN "/delta", ".delta"); }

std::vector<Bytes> frames() {
  std::vector<Bytes> out;
  for (unsigned head = 0; head < 8; ++head)
    for (const std::size_t every : {7u, 300u}) {
      const int width = 1 << (head & 3u);
      const codec::Shape shape{width, 5000};
      const auto form = static_cast<codec::Form>(head >> 2);
      Bytes base(static_cast<std::size_t>(shape.bytes())), next = base;
      for (std::size_t i = 0; i < next.size(); i += every * static_cast<std::size_t>(width))
        next[i] = static_cast<std::byte>(1 + i % 5);
      Bytes coded(static_cast<std::size_t>(codec::reference().bound(shape)));
      codec::Scratch scratch;
      const std::int64_t n = codec::reference().encode(shape, form, base, next, coded, scratch);
      if (n <= 0 || n == shape.bytes()) continue;
      Bytes seed{static_cast<std::byte>(head), static_cast<std::byte>(4999 & 0xff), static_cast<std::byte>(4999 >> 8),
                 std::byte{0}};
      seed.insert(seed.end(), coded.begin(), coded.begin() + n);
      out.push_back(std::move(seed));
    }
  return out;
}

}  // namespace

std::vector<Target> codec_targets() { return {{"delta", delta, deltas}, {"frame", frame, frames}}; }

}  // namespace refit::fuzz
