// The inner loops of the codec, once per instruction set. Outputs may be written kSlack past what counts.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "codec/format.h"

namespace refit::codec {

// Lines that will be needed soon, fetched by loops over planes, which leave memory idle: two a touch. Into L2, and for
// reading: fetches into L1, or for writing, proved slower.
class Ahead {
 public:
  // Two streams, the second `apart` bytes behind the first; both move by `stride`, until the first is `bytes` past
  // `from`. What was fetched before is left out. Addresses may lie past the end of the data: fetching cannot fault.
  void aim(const Byte* from, std::ptrdiff_t apart, std::size_t stride, std::size_t bytes) {
    const auto start = reinterpret_cast<std::uintptr_t>(from), end = start + bytes;
    at_ = std::max(at_, start);
    apart_ = static_cast<std::uintptr_t>(apart);
    stride_ = stride;
    touches_ = at_ < end ? (end - at_) / stride : 0;
  }
  void touch() {
    if (touches_ == 0) return;
    --touches_;
    __builtin_prefetch(reinterpret_cast<const void*>(at_), 0, 2);
    __builtin_prefetch(reinterpret_cast<const void*>(at_ + apart_), 0, 2);
    at_ += stride_;
  }
  // Touches until the first stream reaches `end`.
  std::size_t touches_before(const Byte* end) const {
    const auto stop = reinterpret_cast<std::uintptr_t>(end);
    return at_ < stop ? std::min(touches_, (stop - at_) / stride_ + 1) : 0;
  }

 private:
  std::uintptr_t at_ = 0, apart_ = 0, stride_ = 1;
  std::size_t touches_ = 0;
};

// What a set read from hostile bytes took, or why it is refused.
struct Taken {
  std::size_t bytes = 0;
  Fault fault = Fault::kNone;
};

// Values as unsigned numbers of type V; elements of 1 byte travel as 16-bit numbers.
template <typename V>
struct ValueOps {
  // Differences → magnitudes, in place; bit i set where the difference is negative. Returns the number of those.
  std::size_t (*signs)(V* values, std::size_t n, std::uint64_t* bits, Ahead&);
  // Bit i set where in[i] ≥ 2^(c+1); those go to `above`, the others less 2^c to `here`. Returns the number above.
  std::size_t (*split)(const V* in, std::size_t n, int c, std::uint64_t* bits, V* above, V* here, Ahead&);
  // The inverse: out[i] is the next of `above` where the bit is set, else the next of `here`.
  void (*merge)(const std::uint64_t* bits, std::size_t n, const V* above, const V* here, V* out, Ahead&);
  void (*negate)(const std::uint64_t* bits, std::size_t n, V* values);
  // The low c bits of each, c ≥ 1. unpack adds 2^c and reads no further than bytes_of_bits(n * c).
  void (*pack)(const V* in, std::size_t n, int c, Byte* out, Ahead&);
  void (*unpack)(const Byte* in, std::size_t n, int c, V* out, Ahead&);
};

struct Body {
  // Positions of the n ≤ kBlock elements that differ; `values` gets next - base (or next) of each as its number type.
  // Returns how many.
  std::size_t (*scan)(const Byte* base, const Byte* next, std::size_t n, int width, Form form, Pos* positions,
                      void* values);
  // Runs of neighbours among ascending positions.
  std::size_t (*runs)(const Pos* positions, std::size_t n);
  // Golomb-Rice planes of n ≥ 1 ascending positions below `universe`; positions[-1] is overwritten. Returns bytes.
  std::size_t (*put_set)(Pos* positions, std::size_t n, std::size_t universe, Byte* out, Ahead&);
  // The inverse. Total: n and the bytes may be anything.
  Taken (*get_set)(const Byte* in, std::size_t have, std::size_t n, std::size_t universe, Pos* positions, Ahead&);
  // Positions of the set (or clear) bits among `count`. Returns how many.
  std::size_t (*bit_positions)(const std::uint64_t* bits, std::size_t count, bool set, Pos* positions);
  ValueOps<std::uint16_t> v16;
  ValueOps<std::uint32_t> v32;
  ValueOps<std::uint64_t> v64;
};

extern const Body kScalarBody;

// Positions with room before the first and behind the last.
template <std::size_t kCount>
struct Positions {
  Pos room[kSlack + kCount + kSlack];
  Pos* data() { return room + kSlack; }
};

// Numbers of 2, 4 or 8 bytes.
template <std::size_t kCount>
struct Numbers {
  alignas(64) std::byte room[(kCount + kSlack) * 8];
  template <typename V>
  V* as() {
    return reinterpret_cast<V*>(room);
  }
};

// Working memory of a frame. Everything is sized for the worst frame of width 8.
struct Scratch::Impl {
  Ahead ahead;
  Positions<kBlock> changed[2];  // of this block and of the one before it
  Positions<kBlock> toggles;
  Positions<kGroup> members;
  Numbers<kGroup + kBlock> values;  // of changes not yet coded, or decoded and not yet applied
  Numbers<kGroup> here, ping, pong;
  std::uint64_t planes[65][kGroup / 64 + kSlack / 8];  // bits of the signs and of each class
  Byte sets[kBlocks * kBlock / 8 * 3 / 2 + kSlack];    // position planes of a frame: at most 1.27 bits an element
  Byte coded[(std::size_t{8} << 20) + 4 * kGroup * 8 + kSlack];  // value groups, until they pass the raw size
};

}  // namespace refit::codec
