// One frame: blocks of positions, then groups of values; raw where that is shorter; nothing where nothing changed.
#include "codec/frame.h"

#include <algorithm>

#include "codec/values.h"

namespace refit::codec {
namespace {

// From this share of changed elements on (1 / 32) nearly every line of a target is touched: lines are then fetched in
// order, below it only those that will be written.
constexpr std::size_t kDenseShare = 32;
constexpr std::size_t kLine = 64;
constexpr std::size_t kAheadBytes = std::size_t{256} << 10;  // of one stream; both stay well within L2

std::size_t block_elements(const Shape& shape, std::size_t b) {
  return std::min(kBlock, static_cast<std::size_t>(shape.elements) - b * kBlock);
}
std::size_t block_count(const Shape& shape) { return (static_cast<std::size_t>(shape.elements) + kBlock - 1) / kBlock; }

// ---- encode

// Where changed and unchanged elements alternate: ends of runs, but for one at the end of the block.
std::size_t toggles_of(const Pos* p, std::size_t n, std::size_t universe, Pos* out) {
  std::size_t t = 0;
  for (std::size_t i = 0; i < n; ++i) {
    if (i == 0 || p[i] != p[i - 1] + 1) out[t++] = p[i];
    const bool ends = i + 1 == n ? p[i] + 1U < universe : p[i + 1] != p[i] + 1;
    if (ends) out[t++] = static_cast<Pos>(p[i] + 1);
  }
  return t;
}

struct Planes {
  std::size_t changed = 0;
  std::uint32_t toggled = 0;       // bit per block
  std::uint32_t count[kBlocks]{};  // of positions or toggles
  std::size_t set_bytes = 0, value_bytes = 0;
};

void put_positions(const Body& body, std::size_t b, std::size_t n, std::size_t universe, Scratch::Impl& work,
                   Planes& out) {
  Pos* p = work.changed[0].data();
  const std::size_t toggles = 2 * body.runs(p, n) - (n > 0 && p[n - 1] + 1U == universe ? 1 : 0);
  if (toggles < n) {
    toggles_of(p, n, universe, work.toggles.data());
    p = work.toggles.data();
    out.toggled |= 1U << b;
    n = toggles;
  }
  out.count[b] = static_cast<std::uint32_t>(n);
  if (n > 0) out.set_bytes += body.put_set(p, n, universe, work.sets + out.set_bytes, work.ahead);
}

template <typename V>
void put_group(const Body& body, const Shape& shape, Form form, V* values, std::size_t n, Scratch::Impl& work,
               Planes& planes) {
  Byte* out = work.coded + planes.value_bytes;
  if (form == Form::kUndoable) {
    planes.value_bytes += static_cast<std::size_t>(put_values(body, values, n, shape.width, work, out) - out);
  } else {
    const auto width = static_cast<std::size_t>(shape.width);
    for (std::size_t i = 0; i < n; ++i) std::memcpy(out + i * width, values + i, width);
    planes.value_bytes += n * width;
  }
}

// False as soon as the frame is certain to pass its raw size.
template <typename V>
bool put_blocks(const Body& body, const Shape& shape, Form form, const Byte* base, const Byte* next,
                Scratch::Impl& work, Planes& planes) {
  V* values = work.values.template as<V>();
  std::size_t pending = 0;
  for (std::size_t b = 0; b < block_count(shape); ++b) {
    const std::size_t universe = block_elements(shape, b), at = b * kBlock * static_cast<std::size_t>(shape.width);
    const std::size_t n =
        body.scan(base + at, next + at, universe, shape.width, form, work.changed[0].data(), values + pending);
    work.ahead.aim(base + at + universe * static_cast<std::size_t>(shape.width), next - base, kLine, kAheadBytes);
    put_positions(body, b, n, universe, work, planes);
    planes.changed += n;
    pending += n;
    std::size_t done = 0;
    for (; pending - done >= kGroup; done += kGroup) {
      put_group(body, shape, form, values + done, kGroup, work, planes);
      if (planes.value_bytes >= static_cast<std::size_t>(shape.bytes())) return false;
    }
    if (done > 0) std::memmove(values, values + done, (pending - done) * sizeof(V));
    pending -= done;
  }
  if (pending > 0) put_group(body, shape, form, values, pending, work, planes);
  return true;
}

Byte* put_head(const Shape& shape, const Planes& planes, Byte* out) {
  out = put_number(out, static_cast<std::uint32_t>(planes.changed));
  *out++ = static_cast<Byte>(planes.toggled);
  *out++ = static_cast<Byte>(planes.toggled >> 8);
  for (std::size_t b = 0; b < block_count(shape); ++b) out = put_number(out, planes.count[b]);
  return put_number(out, static_cast<std::uint32_t>(planes.set_bytes));
}
constexpr std::size_t kMostHead = kMaxNumber * (kBlocks + 2) + 2;

template <typename E>
void put_raw(const Shape& shape, Form form, const Byte* base, const Byte* next, Byte* out) {
  if (form == Form::kOverwrite) {
    std::memcpy(out, next, static_cast<std::size_t>(shape.bytes()));
    return;
  }
  for (std::size_t i = 0; i < static_cast<std::size_t>(shape.elements); ++i) {
    E a, b;
    std::memcpy(&a, base + i * sizeof(E), sizeof(E));
    std::memcpy(&b, next + i * sizeof(E), sizeof(E));
    b = static_cast<E>(b - a);
    std::memcpy(out + i * sizeof(E), &b, sizeof(E));
  }
}

template <typename E, typename V>
std::size_t encode_as(const Body& body, const Shape& shape, Form form, const Byte* base, const Byte* next, Byte* out,
                      Scratch::Impl& work) {
  Planes planes;
  const bool fits = put_blocks<V>(body, shape, form, base, next, work, planes);
  if (fits && planes.changed == 0) return 0;
  Byte head[kMostHead];
  const auto head_bytes = static_cast<std::size_t>(put_head(shape, planes, head) - head);
  const std::size_t total = head_bytes + planes.set_bytes + planes.value_bytes;
  const auto raw = static_cast<std::size_t>(shape.bytes());
  if (!fits || total >= raw) {
    put_raw<E>(shape, form, base, next, out);
    return raw;
  }
  std::memcpy(out, head, head_bytes);
  std::memcpy(out + head_bytes, work.sets, planes.set_bytes);
  std::memcpy(out + head_bytes + planes.set_bytes, work.coded, planes.value_bytes);
  return total;
}

// ---- decode

template <typename E>
void put_element(Sink sink, Byte* at, E value) {
  E old;
  std::memcpy(&old, at, sizeof(E));
  const E now = changed_element(sink, old, value);
  std::memcpy(at, &now, sizeof(E));
}

template <typename E, Sink kSink>
void put_raw_elements(Byte* target, const Byte* values, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    E v;
    std::memcpy(&v, values + i * sizeof(E), sizeof(E));
    put_element<E>(kSink, target + i * sizeof(E), v);
  }
}

// Changed positions of a block, and where its elements lie.
struct Changes {
  const Pos* at = nullptr;
  std::size_t count = 0;
  Byte* target = nullptr;
};

// Applies changes[from, from + n) and fetches on the way what the next block will write: the lines of its positions,
// or its share of `ahead`.
template <typename E, typename V, Sink kSink>
void scatter(const Changes& changes, std::size_t from, std::size_t n, const V* values, const Changes& next) {
  // Copies: what is written through `target` could else be any of them.
  const Pos *const at = changes.at + from, *const next_at = next.at == nullptr ? nullptr : next.at + from;
  Byte *const target = changes.target, *const next_target = next.target;
  const std::size_t fetched = std::clamp(next.count, from, from + n) - from;
  std::size_t i = 0;
  for (; i < fetched; ++i) {
    __builtin_prefetch(next_target + next_at[i] * sizeof(E), 0, 2);
    put_element<E>(kSink, target + at[i] * sizeof(E), static_cast<E>(values[i]));
  }
  for (; i < n; ++i) put_element<E>(kSink, target + at[i] * sizeof(E), static_cast<E>(values[i]));
}

template <typename E, typename V, Sink kSink>
void scatter_dense(const Changes& changes, std::size_t from, std::size_t n, const V* values, Ahead& ahead) {
  constexpr std::size_t kStep = 16;
  const Byte* const next_end = changes.target + 2 * kBlock * sizeof(E);
  const std::size_t per_step = ahead.touches_before(next_end) * kStep / (changes.count - from) + 1;
  for (std::size_t i = 0; i < n; i += kStep) {
    for (std::size_t l = 0; l < per_step; ++l) ahead.touch();
    scatter<E, V, kSink>(changes, from + i, std::min(kStep, n - i), values + i, {});
  }
}

std::size_t expand_toggles(const Pos* toggles, std::size_t t, std::size_t universe, Pos* out) {
  std::size_t n = 0;
  for (std::size_t i = 0; i < t; i += 2) {
    const std::size_t end = i + 1 < t ? toggles[i + 1] : universe;
    for (std::size_t p = toggles[i]; p < end; ++p) out[n++] = static_cast<Pos>(p);
  }
  return n;
}

// One pass over a frame's bytes; check and apply are this pass with different sinks, so they cannot disagree.
template <typename E, typename V, Sink kSink>
class Walk {
 public:
  Walk(const Body& body, const Shape& shape, Form form, Byte* target, Scratch::Impl& work)
      : body_(body), shape_(shape), form_(form), target_(target), work_(work) {}

  Fault run(const Byte* in, std::size_t bytes) {
    if (bytes == 0) return Fault::kNone;
    const auto raw = static_cast<std::size_t>(shape_.bytes());
    if (bytes > raw) return Fault::kTrailing;
    if (bytes == raw) {
      if constexpr (kSink != Sink::kNothing)
        put_raw_elements<E, kSink>(target_, in, static_cast<std::size_t>(shape_.elements));
      return Fault::kNone;
    }
    sets_ = Reader{in, in + bytes};
    return head() && blocks() ? Fault::kNone : values_.ok() ? sets_.fault : values_.fault;
  }

 private:
  bool head() {
    const Byte* flags = nullptr;
    if (!sets_.number(static_cast<std::size_t>(shape_.elements), changed_) || !sets_.take(2, flags)) return false;
    toggled_ = flags[0] | static_cast<std::uint32_t>(flags[1]) << 8;
    if (changed_ == 0) return sets_.fail(Fault::kCount);
    if (toggled_ >> block_count(shape_) != 0) return sets_.fail(Fault::kPadding);
    for (std::size_t b = 0; b < block_count(shape_); ++b)
      if (!sets_.number(block_elements(shape_, b), count_[b])) return false;
    std::size_t set_bytes = 0;
    const Byte* sets = nullptr;
    if (!sets_.number(sets_.left(), set_bytes) || !sets_.take(set_bytes, sets)) return false;
    values_ = Reader{sets_.at, sets_.end};
    sets_ = Reader{sets, sets + set_bytes};
    return true;
  }

  bool positions(std::size_t b, Changes& out) {
    const std::size_t universe = block_elements(shape_, b), n = count_[b];
    const bool toggled = (toggled_ >> b & 1) != 0;
    Pos* at = work_.changed[b % 2].data();
    out = {at, n, target_ == nullptr ? nullptr : target_ + b * kBlock * sizeof(E)};
    if (n == 0) return !toggled || sets_.fail(Fault::kCount);
    Pos* read = toggled ? work_.toggles.data() : at;
    const Taken taken = body_.get_set(sets_.at, sets_.left(), n, universe, read, work_.ahead);
    if (taken.fault != Fault::kNone) return sets_.fail(taken.fault);
    sets_.at += taken.bytes;
    if (toggled) out.count = expand_toggles(read, n, universe, at);
    found_ += out.count;
    return found_ <= changed_ || sets_.fail(Fault::kCount);
  }

  bool next_group() {
    const std::size_t n = std::min(kGroup, changed_ - decoded_);
    decoded_ += n;
    group_left_ = n;
    group_ = work_.values.template as<V>();
    if (form_ == Form::kUndoable) return get_values<V>(body_, values_, n, shape_.width, work_);
    const Byte* part = nullptr;
    if (!values_.take(n * sizeof(E), part)) return false;
    V* to = work_.values.template as<V>();
    for (std::size_t i = 0; i < n; ++i) {
      E v;
      std::memcpy(&v, part + i * sizeof(E), sizeof(E));
      to[i] = v;
    }
    return true;
  }

  bool put(const Changes& changes, const Changes& next) {
    for (std::size_t from = 0; from < changes.count;) {
      if (group_left_ == 0 && !next_group()) return false;
      const std::size_t n = std::min(changes.count - from, group_left_);
      if constexpr (kSink != Sink::kNothing)
        dense_ ? scatter_dense<E, V, kSink>(changes, from, n, group_, work_.ahead)
               : scatter<E, V, kSink>(changes, from, n, group_, next);
      group_ += n;
      group_left_ -= n;
      from += n;
    }
    return true;
  }

  bool blocks() {
    Changes before, now;
    dense_ = target_ != nullptr && changed_ * kDenseShare >= static_cast<std::size_t>(shape_.elements);
    work_.ahead = {};
    for (std::size_t b = 0; b < block_count(shape_); ++b) {
      if (dense_) work_.ahead.aim(target_ + b * kBlock * sizeof(E), 0, kLine, kAheadBytes);
      if (!positions(b, now) || !put(before, now)) return false;
      before = now;
    }
    if (!put(before, {})) return false;
    if (sets_.left() != 0) return sets_.fail(Fault::kTrailing);
    if (found_ != changed_) return sets_.fail(Fault::kCount);
    return values_.left() == 0 || values_.fail(Fault::kTrailing);
  }

  const Body& body_;
  Shape shape_;
  Form form_;
  Byte* target_;
  Scratch::Impl& work_;
  Reader sets_{}, values_{};
  std::size_t changed_ = 0, found_ = 0, decoded_ = 0;
  std::uint32_t toggled_ = 0;
  std::size_t count_[kBlocks]{};
  bool dense_ = false;
  const V* group_ = nullptr;
  std::size_t group_left_ = 0;
};

template <typename E, typename V>
Fault walk_as(const Body& body, const Shape& shape, Form form, Sink sink, const Byte* in, std::size_t bytes,
              Byte* target, Scratch::Impl& work) {
  switch (sink) {
    case Sink::kNothing:
      return Walk<E, V, Sink::kNothing>(body, shape, form, nullptr, work).run(in, bytes);
    case Sink::kAdd:
      return Walk<E, V, Sink::kAdd>(body, shape, form, target, work).run(in, bytes);
    case Sink::kSubtract:
      return Walk<E, V, Sink::kSubtract>(body, shape, form, target, work).run(in, bytes);
    case Sink::kStore:
      break;
  }
  return Walk<E, V, Sink::kStore>(body, shape, form, target, work).run(in, bytes);
}

}  // namespace

std::size_t encode_frame(const Body& body, const Shape& shape, Form form, const Byte* base, const Byte* next, Byte* out,
                         Scratch::Impl& work) noexcept {
  switch (shape.width) {
    case 1:
      return encode_as<std::uint8_t, std::uint16_t>(body, shape, form, base, next, out, work);
    case 2:
      return encode_as<std::uint16_t, std::uint16_t>(body, shape, form, base, next, out, work);
    case 4:
      return encode_as<std::uint32_t, std::uint32_t>(body, shape, form, base, next, out, work);
    default:
      return encode_as<std::uint64_t, std::uint64_t>(body, shape, form, base, next, out, work);
  }
}

Fault walk_frame(const Body& body, const Shape& shape, Form form, Sink sink, const Byte* in, std::size_t bytes,
                 Byte* target, Scratch::Impl& work) noexcept {
  switch (shape.width) {
    case 1:
      return walk_as<std::uint8_t, std::uint16_t>(body, shape, form, sink, in, bytes, target, work);
    case 2:
      return walk_as<std::uint16_t, std::uint16_t>(body, shape, form, sink, in, bytes, target, work);
    case 4:
      return walk_as<std::uint32_t, std::uint32_t>(body, shape, form, sink, in, bytes, target, work);
    default:
      return walk_as<std::uint64_t, std::uint64_t>(body, shape, form, sink, in, bytes, target, work);
  }
}

}  // namespace refit::codec
