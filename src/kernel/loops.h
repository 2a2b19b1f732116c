// A job brought into the form that the kernels want: loops ordered for memory, flipped, merged, the fast one last.
#pragma once
#include <array>
#include <cstdint>

#include "kernel/keys.h"

namespace refit::kernel {

inline constexpr int kMaxLoops = 32;

struct Loop {
  std::int64_t extent = 1, src = 0, dst = 0;  // byte strides
  int axis = -1;                              // index into Loops::axes, -1: no key
  std::int64_t step = 0;                      // indices of that axis per iteration
};

struct Axis {
  int key_axis = 0;       // in DigestKeys::Impl
  std::int64_t base = 0;  // index where all loops are at 0
};

// How the two innermost loops move bytes.
enum class Shape : std::uint8_t {
  kEmpty,
  kRuns,       // innermost loop contiguous on both sides (or on the only side), no cast
  kTranspose,  // innermost contiguous in dst, the one before it contiguous in src, no cast
  kItems,      // anything else: gather, cast, scatter
};

struct Loops {
  Shape shape = Shape::kEmpty;
  const char* src = nullptr;
  char* dst = nullptr;
  int count = 0;  // ≥ 1 unless empty
  std::array<Loop, kMaxLoops> loop;
  int axis_count = 0;
  std::array<Axis, kMaxLoops> axes;
  Words constant{1, 1, 1, 1};  // keys of axes without a loop
  const DigestKeys::Impl* keys = nullptr;
  std::int64_t src_item = 0, wire_item = 0, dst_item = 0;
  DType src_dtype{}, wire_dtype{}, dst_dtype{};

  const Loop& inner() const { return loop[static_cast<std::size_t>(count - 1)]; }
  bool casts() const { return src_dtype != wire_dtype || (dst != nullptr && wire_dtype != dst_dtype); }
  // Product of the extents of the loops [0, end).
  std::int64_t product(int end) const;
};

// With `digest` the loops keep the structure of the axes that keys need; without it they merge freely.
Loops normalise(const Job& job, bool digest);
// Only neighbours merged, nothing turned or reordered: the flat counter is the row-major position in the piece.
Loops in_order(const Job& job, bool digest);

// Elements of a job: product of its extents.
std::int64_t job_elements(const Job& job);

// Walks the loops [0, end) as one flat counter, keeping addresses and axis indices.
class Odometer {
 public:
  Odometer(const Loops& loops, int end, std::int64_t start);
  const char* src() const { return src_; }
  char* dst() const { return dst_; }
  // Iterations left of the last of these loops before an outer one moves, this one included.
  std::int64_t left() const;
  void advance(std::int64_t n);  // n ≤ left()
  std::int64_t index(int axis) const { return index_[static_cast<std::size_t>(axis)]; }

 private:
  void move(int loop, std::int64_t by);
  const Loops& loops_;
  int end_;
  const char* src_;
  char* dst_;
  std::array<std::int64_t, kMaxLoops> at_{};
  std::array<std::int64_t, kMaxLoops> index_{};
};

}  // namespace refit::kernel
