// Messages: header, table of frame sizes, frames. Frames are coded and read by all threads of an Exec.
#include <algorithm>
#include <array>
#include <atomic>

#include "codec/format.h"

namespace refit::codec {
namespace {

constexpr char kMagic[4] = {'R', 'T', 'D', 'L'};
constexpr std::uint16_t kFormat = 1;
constexpr std::size_t kSealed = 64;  // bytes of the header that its hash covers
constexpr std::size_t kEntry = 4;    // bytes of the table per frame
// Counts up to here keep every sum of sizes far below 2^63, and frames in 32 bits.
constexpr std::int64_t kMaxBytes = std::int64_t{1} << 51;

template <typename T>
void put(std::byte* at, T v) {
  for (std::size_t i = 0; i < sizeof(T); ++i) at[i] = static_cast<std::byte>(static_cast<std::uint64_t>(v) >> (8 * i));
}
template <typename T>
T get(const std::byte* at) {
  std::uint64_t v = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i) v |= static_cast<std::uint64_t>(at[i]) << (8 * i);
  return static_cast<T>(v);
}
// Canonical order: high half first, big-endian.
void put_hash(std::byte* at, const Hash128& h) {
  for (std::size_t i = 0; i < 8; ++i) {
    at[i] = static_cast<std::byte>(h.hi >> (56 - 8 * i));
    at[8 + i] = static_cast<std::byte>(h.lo >> (56 - 8 * i));
  }
}
Hash128 get_hash(const std::byte* at) {
  Hash128 h;
  for (std::size_t i = 0; i < 8; ++i) {
    h.hi = h.hi << 8 | static_cast<std::uint64_t>(at[i]);
    h.lo = h.lo << 8 | static_cast<std::uint64_t>(at[8 + i]);
  }
  return h;
}

Hash128 seal_of(std::span<const std::byte> message) {
  Hasher hasher;
  hasher.add(message.first(kSealed));
  hasher.add(message.subspan(static_cast<std::size_t>(kHeaderBytes)));
  return hasher.finish();
}

bool known_width(int w) { return w == 1 || w == 2 || w == 4 || w == 8; }
bool possible(const Shape& s) { return known_width(s.width) && s.elements >= 0 && s.elements <= kMaxBytes / s.width; }
std::int64_t frames_of(const Shape& s) { return ceil_div(s.elements, kFrameElements); }
Shape frame_of(const Shape& s, std::int64_t i) {
  return {s.width, std::min(kFrameElements, s.elements - i * kFrameElements)};
}
std::size_t frame_at(const Shape& s, std::int64_t i) { return static_cast<std::size_t>(i * kFrameElements * s.width); }

template <typename Bytes>
Bytes slice(Bytes bytes, const Shape& shape, std::int64_t i) {
  return bytes.subspan(frame_at(shape, i), static_cast<std::size_t>(frame_of(shape, i).bytes()));
}

void write_header(std::byte* to, const Header& h) {
  std::memcpy(to, kMagic, sizeof(kMagic));
  put(to + 4, kFormat);
  put(to + 6, static_cast<std::uint8_t>(h.form));
  put(to + 7, static_cast<std::uint8_t>(h.shape.width));
  put(to + 8, static_cast<std::uint64_t>(h.shape.elements));
  put_hash(to + 16, h.identity.base);
  put_hash(to + 32, h.identity.next);
  put(to + 48, static_cast<std::uint32_t>(h.frames));
  put(to + 52, std::uint32_t{0});
  put(to + 56, static_cast<std::uint64_t>(h.payload_bytes));
}

// Runs task(frame, scratch) for frames [first, end), each thread with a scratch of its own.
template <typename Task>
void each_frame(Workspace& work, std::int64_t first, std::int64_t end, const Task& task) {
  ThreadPool* pool = work.exec().pool;
  if (pool == nullptr || end - first <= 1) {
    for (std::int64_t i = first; i < end; ++i) task(i, work.scratch()[0]);
    return;
  }
  std::atomic<std::int64_t> next{first};
  const std::int64_t threads = std::min<std::int64_t>(end - first, static_cast<std::int64_t>(work.scratch().size()));
  pool->parallel_for(threads, [&](std::int64_t t) {
    for (std::int64_t i; (i = next.fetch_add(1)) < end;) task(i, work.scratch()[static_cast<std::size_t>(t)]);
  });
}

}  // namespace

std::string_view to_string(Form form) { return form == Form::kUndoable ? "undoable" : "overwrite"; }

std::string_view to_string(Fault fault) {
  static constexpr std::string_view kText[] = {"well-formed",
                                               "a part is longer than the frame",
                                               "bytes behind the last part",
                                               "a number is out of range or longer than needed",
                                               "counts contradict each other",
                                               "a position lies beyond its block",
                                               "padding is not zero"};
  return kText[static_cast<std::size_t>(fault)];
}

Workspace::Workspace(const kernel::Exec& exec) : exec_(exec) {
  scratch_.resize(exec.pool == nullptr ? 1 : static_cast<std::size_t>(exec.pool->threads()));
}

Result<std::int64_t> message_bound(const Shape& shape) {
  if (!known_width(shape.width))
    return Error(Code::kInvalid,
                 "delta: elements of " + std::to_string(shape.width) + " bytes; 1, 2, 4 or 8 can be coded");
  if (!possible(shape))
    return Error(Code::kInvalid,
                 "delta: " + std::to_string(shape.elements) + " elements; 0 to 2^51 bytes can be coded");
  return kHeaderBytes + static_cast<std::int64_t>(kEntry) * frames_of(shape) + shape.bytes();
}

Result<std::int64_t> encode(Workspace& work, const Shape& shape, Form form, const Identity& identity,
                            std::span<const std::byte> base, std::span<const std::byte> next,
                            std::span<std::byte> out) {
  REFIT_ASSIGN(const std::int64_t bound, message_bound(shape));
  const auto bytes = static_cast<std::size_t>(shape.bytes());
  if (base.size() != bytes || next.size() != bytes)
    return Error(Code::kInvalid, "delta: base of " + std::to_string(base.size()) + " and new of " +
                                     std::to_string(next.size()) + " bytes; the shape says " + std::to_string(bytes));
  if (out.size() < static_cast<std::size_t>(bound))
    return Error(Code::kExhausted, "delta: no room for the message")
        .amounts(bound, static_cast<std::int64_t>(out.size()));
  const Ops& table = ops();
  Header header{form, shape, identity, frames_of(shape), 0};
  const auto frames = static_cast<std::size_t>(header.frames);
  std::byte* const sizes = out.data() + kHeaderBytes;
  std::byte* const payload = sizes + kEntry * frames;
  // Frames of one wave are coded where the largest ones would lie, then moved together.
  const std::int64_t wave = static_cast<std::int64_t>(work.scratch().size()) * (work.scratch().size() == 1 ? 1 : 4);
  const std::size_t room = frame_at(shape, 1);
  for (std::int64_t first = 0; first < header.frames; first += wave) {
    const std::int64_t end = std::min(header.frames, first + wave);
    std::byte* const to = payload + header.payload_bytes;
    each_frame(work, first, end, [&](std::int64_t i, Scratch& scratch) {
      std::byte* const slot = to + static_cast<std::size_t>(i - first) * room;
      const Shape part = frame_of(shape, i);
      const std::int64_t n = table.encode(part, form, slice(base, shape, i), slice(next, shape, i),
                                          {slot, static_cast<std::size_t>(part.bytes())}, scratch);
      put(sizes + kEntry * static_cast<std::size_t>(i), static_cast<std::uint32_t>(n));
    });
    for (std::int64_t i = first; i < end; ++i) {
      const std::size_t n = get<std::uint32_t>(sizes + kEntry * static_cast<std::size_t>(i));
      std::memmove(payload + header.payload_bytes, to + static_cast<std::size_t>(i - first) * room, n);
      header.payload_bytes += static_cast<std::int64_t>(n);
    }
  }
  write_header(out.data(), header);
  const std::size_t total =
      static_cast<std::size_t>(kHeaderBytes) + kEntry * frames + static_cast<std::size_t>(header.payload_bytes);
  put_hash(out.data() + kSealed, seal_of(out.first(total)));
  return static_cast<std::int64_t>(total);
}

namespace {
Error corrupt(const std::string& what) { return {Code::kCorrupt, "delta: " + what}; }
}  // namespace

Result<Header> read_header(std::span<const std::byte> message) {
  if (message.size() < static_cast<std::size_t>(kHeaderBytes))
    return corrupt("shorter than its header").amounts(kHeaderBytes, static_cast<std::int64_t>(message.size()));
  const std::byte* at = message.data();
  if (std::memcmp(at, kMagic, sizeof(kMagic)) != 0) return corrupt("no delta message (magic)");
  if (const auto format = get<std::uint16_t>(at + 4); format != kFormat)
    return Error(Code::kUnsupported, "delta: format " + std::to_string(format) + "; this build reads 1");
  Header h;
  const auto form = get<std::uint8_t>(at + 6);
  const auto elements = get<std::uint64_t>(at + 8), payload = get<std::uint64_t>(at + 56);
  if (form > 1) return corrupt("form " + std::to_string(form) + " is unknown");
  h.form = static_cast<Form>(form);
  h.shape.width = get<std::uint8_t>(at + 7);
  if (elements > static_cast<std::uint64_t>(kMaxBytes)) return corrupt("an impossible count of elements");
  h.shape.elements = static_cast<std::int64_t>(elements);
  if (!possible(h.shape)) return corrupt("an impossible element width or count");
  h.identity = {get_hash(at + 16), get_hash(at + 32)};
  h.frames = get<std::uint32_t>(at + 48);
  if (h.frames != frames_of(h.shape)) return corrupt("the number of frames contradicts the count of elements");
  if (get<std::uint32_t>(at + 52) != 0) return corrupt("a reserved field is set");
  if (payload > static_cast<std::uint64_t>(h.shape.bytes())) return corrupt("frames larger than what they describe");
  h.payload_bytes = static_cast<std::int64_t>(payload);
  return h;
}

Result<Delta> check(Workspace& work, std::span<const std::byte> message) {
  REFIT_ASSIGN(const Header header, read_header(message));
  const auto table_bytes = kEntry * static_cast<std::size_t>(header.frames);
  const std::size_t whole =
      static_cast<std::size_t>(kHeaderBytes) + table_bytes + static_cast<std::size_t>(header.payload_bytes);
  if (message.size() != whole)
    return corrupt("its length is not what its header says")
        .amounts(static_cast<std::int64_t>(whole), static_cast<std::int64_t>(message.size()));
  if (get_hash(message.data() + kSealed) != seal_of(message)) return corrupt("its bytes do not match their hash");
  Delta out;
  out.header_ = header;
  const auto sizes = message.subspan(static_cast<std::size_t>(kHeaderBytes), table_bytes);
  out.payload_ = message.subspan(static_cast<std::size_t>(kHeaderBytes) + table_bytes);
  out.ends_.reserve(static_cast<std::size_t>(header.frames));
  std::int64_t end = 0;
  for (std::int64_t i = 0; i < header.frames; ++i) {
    const std::int64_t n = get<std::uint32_t>(sizes.data() + kEntry * static_cast<std::size_t>(i));
    if (n > out.frame_shape(i).bytes()) return corrupt("frame " + std::to_string(i) + " is larger than its elements");
    out.ends_.push_back(end += n);
  }
  if (end != header.payload_bytes) return corrupt("the frames' sizes do not add up to the payload");
  const Ops& table = ops();
  // The lowest bad frame and its fault, packed, so that the same bytes give the same error with any number of threads.
  std::atomic<std::int64_t> first_bad{header.frames << 8};
  each_frame(work, 0, header.frames, [&](std::int64_t i, Scratch& scratch) {
    const Fault fault = table.check(out.frame_shape(i), header.form, out.frame(i), scratch);
    if (fault == Fault::kNone) return;
    const std::int64_t bad = i << 8 | static_cast<std::int64_t>(fault);
    for (std::int64_t seen = first_bad; bad < seen && !first_bad.compare_exchange_weak(seen, bad);) {
    }
  });
  if (const std::int64_t bad = first_bad; bad >> 8 < header.frames)
    return corrupt("frame " + std::to_string(bad >> 8) + ": " + std::string(to_string(static_cast<Fault>(bad & 0xff))));
  return out;
}

std::span<const std::byte> Delta::frame(std::int64_t i) const {
  const auto at = static_cast<std::size_t>(i);
  const std::int64_t begin = at == 0 ? 0 : ends_[at - 1];
  return payload_.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(ends_[at] - begin));
}
Shape Delta::frame_shape(std::int64_t i) const { return frame_of(header_.shape, i); }

namespace {
void count(std::span<const std::byte> frame, const Shape& shape, Census& out) {
  if (frame.empty()) {
    ++out.unchanged_frames;
  } else if (frame.size() == static_cast<std::size_t>(shape.bytes())) {
    ++out.raw_frames;
    out.changed += shape.elements;
  } else {
    ++out.coded_frames;
    const auto* at = reinterpret_cast<const Byte*>(frame.data());
    Reader reader{at, at + frame.size()};
    std::size_t changed = 0;
    reader.number(static_cast<std::size_t>(shape.elements), changed);
    out.changed += static_cast<std::int64_t>(changed);
  }
}
}  // namespace

Census census(const Delta& delta) {
  Census out;
  for (std::int64_t i = 0; i < delta.header().frames; ++i) count(delta.frame(i), delta.frame_shape(i), out);
  return out;
}

Census census_of_own(std::span<const std::byte> message) {
  Census out;
  const Result<Header> header = read_header(message);
  REFIT_CHECK(header.ok());
  const auto table_bytes = kEntry * static_cast<std::size_t>(header->frames);
  auto payload = message.subspan(static_cast<std::size_t>(kHeaderBytes) + table_bytes);
  for (std::int64_t i = 0; i < header->frames; ++i) {
    const std::size_t n = get<std::uint32_t>(message.data() + kHeaderBytes + kEntry * static_cast<std::size_t>(i));
    count(payload.first(n), frame_of(header->shape, i), out);
    payload = payload.subspan(n);
  }
  return out;
}

namespace {
Error wrong_base(std::string_view what, const Hash128& need, const Hash128& held) {
  return {Code::kMismatch,
          "delta: " + std::string(what) + " needs bytes with digest " + need.hex() + "; these have " + held.hex()};
}
}  // namespace

Status admit(const Delta& delta, const Hash128& held) {
  const Header& h = delta.header();
  if (held == h.identity.base || (h.form == Form::kOverwrite && held == h.identity.next)) return {};
  return wrong_base("apply", h.identity.base, held);
}

Status admit_undo(const Delta& delta, const Hash128& held) {
  const Header& h = delta.header();
  if (h.form != Form::kUndoable)
    return Error(Code::kUnsupported, "delta: the overwrite form holds no old values and cannot be taken back");
  if (held == h.identity.next) return {};
  return wrong_base("undo", h.identity.next, held);
}

void apply(Workspace& work, const Delta& delta, std::span<std::byte> target) {
  const Header& h = delta.header();
  REFIT_CHECK(target.size() == static_cast<std::size_t>(h.shape.bytes()));
  const Ops& table = ops();
  each_frame(work, 0, h.frames, [&](std::int64_t i, Scratch& scratch) {
    table.apply(delta.frame_shape(i), h.form, delta.frame(i), slice(target, h.shape, i), scratch);
  });
}

void undo(Workspace& work, const Delta& delta, std::span<std::byte> target) {
  const Header& h = delta.header();
  REFIT_CHECK(target.size() == static_cast<std::size_t>(h.shape.bytes()) && h.form == Form::kUndoable);
  const Ops& table = ops();
  each_frame(work, 0, h.frames, [&](std::int64_t i, Scratch& scratch) {
    table.undo(delta.frame_shape(i), delta.frame(i), slice(target, h.shape, i), scratch);
  });
}

}  // namespace refit::codec
