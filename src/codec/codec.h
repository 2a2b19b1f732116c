// Front header of codec: how a bucket's bytes are written. The delta codec: what changed between two versions of the
// same bytes, near the entropy of positions and values. Format, byte by byte: schema/delta.md; reasons:
// docs/design/delta.md.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "codec/quantise.h"
#include "core/core.h"
#include "kernel/kernel.h"
#include "memory/memory.h"

namespace refit::codec {

enum class Form : std::uint8_t {
  kUndoable = 0,   // differences mod 2^w: needs exactly its base, and can be taken back
  kOverwrite = 1,  // new values: may be applied again, and over a copy that an earlier apply left half done
};
std::string_view to_string(Form form);

struct Shape {
  int width = 2;              // bytes of one element: 1, 2, 4 or 8
  std::int64_t elements = 0;  // ≥ 0
  std::int64_t bytes() const { return elements * width; }
};

inline constexpr std::int64_t kFrameElements = std::int64_t{1} << 20;  // a frame decodes alone

// Why a frame is refused.
enum class Fault : std::uint8_t {
  kNone,
  kTruncated,  // a part is longer than what is left
  kTrailing,   // bytes behind the last part
  kNumber,     // a number longer than it needs to be, or beyond its range
  kCount,      // counts that contradict each other
  kPosition,   // a position beyond the block
  kPadding,    // a padding bit that is not zero
};
std::string_view to_string(Fault fault);

// Working memory of one thread, allocated once. Pages that are never used cost nothing.
class Scratch {
 public:
  struct Impl;
  Scratch();
  ~Scratch();
  Scratch(Scratch&&) noexcept;
  Scratch& operator=(Scratch&&) noexcept;
  Impl& impl() const { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

// One table per instruction set, all with the same bytes. The unit is a frame: shape.elements ≤ kFrameElements. Nothing
// here allocates or throws. *pure* but for the scratch.
struct Ops {
  const char* name;   // a name of kernel::available_isas()
  const char* needs;  // what the processor must have
  // Room that encode wants in `out`.
  std::int64_t (*bound)(const Shape&) noexcept;
  // Bytes written: 0 where nothing changed, shape.bytes() where the frame is stored raw. base and next have
  // shape.bytes().
  std::int64_t (*encode)(const Shape&, Form, std::span<const std::byte> base, std::span<const std::byte> next,
                         std::span<std::byte> out, Scratch&) noexcept;
  // Reads hostile bytes and writes nothing but scratch. The bytes are private to the caller from here to apply.
  Fault (*check)(const Shape&, Form, std::span<const std::byte> frame, Scratch&) noexcept;
  // Only for what passed check: then it cannot fail.
  void (*apply)(const Shape&, Form, std::span<const std::byte> frame, std::span<std::byte> target, Scratch&) noexcept;
  // Takes an undoable frame back.
  void (*undo)(const Shape&, std::span<const std::byte> frame, std::span<std::byte> target, Scratch&) noexcept;
};

const Ops& reference();                              // scalar, the specification
std::span<const Ops* const> all_for_this_machine();  // best first, the reference last
const Ops& ops();                                    // follows kernel::chosen_isa(), and so REFIT_FORCE_ISA

// ---- messages: a header, a table of frame sizes, the frames

struct Identity {
  Hash128 base, next;  // hash128 of all bytes before and after
};

struct Header {
  Form form = Form::kUndoable;
  Shape shape;
  Identity identity;
  std::int64_t frames = 0;
  std::int64_t payload_bytes = 0;  // of all frames
};

// Scratch for as many threads as an Exec has. *thread-compatible*: one call at a time.
class Workspace {
 public:
  explicit Workspace(const kernel::Exec& exec = {});
  const kernel::Exec& exec() const { return exec_; }
  std::span<Scratch> scratch() { return scratch_; }

 private:
  kernel::Exec exec_;
  std::vector<Scratch> scratch_;
};

inline constexpr std::int64_t kHeaderBytes = 80;

// Largest message of this shape, which is also the room that encode wants. Errors: kInvalid for a width or a count
// that no message can have.
Result<std::int64_t> message_bound(const Shape& shape);

// Writes the message into `out` and returns its bytes. The digests are the caller's: whoever keeps a base knows its
// digest already. Errors: kInvalid where sizes and shape disagree, kExhausted where `out` is below message_bound.
Result<std::int64_t> encode(Workspace& work, const Shape& shape, Form form, const Identity& identity,
                            std::span<const std::byte> base, std::span<const std::byte> next, std::span<std::byte> out);

// A message that was found whole and well-formed. Refers to the caller's bytes, which must stay as they are.
class Delta {
 public:
  const Header& header() const { return header_; }
  // Frame sizes as stored; 0: unchanged, as large as its elements: raw.
  std::span<const std::byte> frame(std::int64_t i) const;
  Shape frame_shape(std::int64_t i) const;

 private:
  friend Result<Delta> check(Workspace& work, std::span<const std::byte> message);
  Header header_;
  std::span<const std::byte> payload_;
  std::vector<std::int64_t> ends_;  // of each frame in the payload
};

// The header alone, checked as far as it goes. Errors: kCorrupt, kUnsupported (another format version).
Result<Header> read_header(std::span<const std::byte> message);
// Checks a private copy of hostile bytes, all of it. Errors: kCorrupt, naming frame and reason.
Result<Delta> check(Workspace& work, std::span<const std::byte> message);

// What a delta holds. A raw frame counts all its elements as changed: it is shorter than to list them.
struct Census {
  std::int64_t unchanged_frames = 0, coded_frames = 0, raw_frames = 0, changed = 0;
};
Census census(const Delta& delta);
// The same of a message that this side has just encoded: it is not checked again.
Census census_of_own(std::span<const std::byte> message);

// May the delta be applied to bytes with this digest? Undoable: to its base only. Overwrite: also to its result, and
// then it changes nothing. Errors: kMismatch naming the digests.
Status admit(const Delta& delta, const Hash128& held);
// May it be taken back from bytes with this digest? Errors: kMismatch, kUnsupported for the overwrite form.
Status admit_undo(const Delta& delta, const Hash128& held);

// target has header().shape.bytes() (our own mistake otherwise) and was admitted. The caller compares the new digest
// where it needs proof.
void apply(Workspace& work, const Delta& delta, std::span<std::byte> target);
void undo(Workspace& work, const Delta& delta, std::span<std::byte> target);

// ---- on a GPU: the caller's memory and stream, the same results as the scalar reference, nothing allocated, nothing
// waited for. Addresses are the device's.

const memory::KernelImage& device_image();

struct DeviceQuant {
  const void* in = nullptr;
  void* scales = nullptr;
  void* codes = nullptr;  // dense, as on the CPU
  void* work = nullptr;   // device_quant_work_bytes: findings, behind them amax of each cell as f32
};
std::int64_t device_quant_work_bytes(const Quant&, const Part&);
// The first bytes of `work`, copied to the host by the caller, as findings.
std::int64_t device_findings_bytes();
Findings findings_from(const Part&, const std::byte* host);
// As block_amax; the grid of amax is behind the findings in `work`, so that sharers of a block can take the largest.
Status device_amax(const memory::Module&, memory::Stream&, const Quant&, const Part&, const DeviceQuant&);
// As quantise_with, under scales that are there (the caller has checked them) or that follow from amax in `work`.
enum class ScalesFrom : std::uint8_t { kScales, kAmax };
Status device_quantise_with(const memory::Module&, memory::Stream&, const Quant&, const Part&, const DeviceQuant&,
                            ScalesFrom);
// As quantise: cells lie wholly in the part.
Status device_quantise(const memory::Module&, memory::Stream&, const Quant&, const Part&, const DeviceQuant&);

// Positions (ascending, in blocks of 2^16 elements) and values of what changed: what the CPU's scan finds and its codec
// packs into frames. Room for `room` changes a block; a count above it means that the rest of the block is missing.
struct DeviceChanges {
  std::uint32_t* counts = nullptr;     // change_blocks
  std::uint16_t* positions = nullptr;  // change_blocks * room
  void* values = nullptr;              // likewise, of 2, 2, 4 or 8 bytes for widths 1, 2, 4, 8
  std::int64_t room = 0;
};
std::int64_t change_blocks(const Shape&);
Status device_scan(const memory::Module&, memory::Stream&, const Shape&, Form, const void* base, const void* next,
                   const DeviceChanges&);
enum class Change : std::uint8_t { kAdd, kSubtract, kStore };  // apply, undo, overwrite
// No count may be above the room: the caller has checked them, as it checks a frame before it applies it. Positions behind
// the last element are passed over.
Status device_apply(const memory::Module&, memory::Stream&, const Shape&, Change, const DeviceChanges&, void* target);

}  // namespace refit::codec
