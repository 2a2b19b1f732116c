// The bodies that exist once per instruction set, behind one table of functions.
#pragma once
#include <cstdint>

#include "kernel/keys.h"

namespace refit::kernel {

// Bytes from the address being read to the one to fetch; 0: none. Near (into L1) suits long runs; far (into L2) all
// else, because near fetches compete with plain loads for the few L1 miss buffers.
struct Prefetch {
  std::int64_t delta = 0;
  bool near = true;
};

struct CopyRows {
  char* dst;
  std::int64_t dst_pitch;
  const char* src;
  std::int64_t src_pitch;
  std::int64_t rows, bytes;
  bool stream;  // bypass the caches where the destination has whole lines
  Prefetch prefetch;
};

// Partial sums of the four words, one lane per vector lane; kept across calls, folded once at the end.
struct Acc {
  alignas(64) std::uint32_t lane[kWords][16] = {};
  Words fold() const;
};

// Rows of `n` packed items that lie `pitch` bytes apart and start at `index` of the vector axis.
struct DigestRows {
  const char* data;
  std::int64_t pitch, rows, n, index;
  std::int64_t item;
  const AxisTables* tables;
  const Words* block_key;  // U of the vector axis, [0] for the block of `index`
  const Words* row_key;    // product of all other keys, per row
  const HalfKeys* halves;
  Prefetch prefetch;
  // Where given, the rows are also copied there with streaming stores, from the same registers. Then items have 2 bytes
  // or more, and each row's address and its index in bytes are multiples of 64.
  char* store = nullptr;
  std::int64_t store_pitch = 0;
};

// `n` packed items whose keys on the vector axis are spelled out: for steps other than 1.
struct DigestItems {
  const char* data;
  std::int64_t n, item;
  const std::int32_t* key[kWords];
  const Words* row_key;
  const HalfKeys* halves;
};

// dst[j][i] = src[i][j] for i < rows, j < columns.
struct Tile {
  char* dst;
  std::int64_t dst_pitch;
  const char* src;
  std::int64_t src_pitch;
  std::int64_t rows, columns, item;
  // Destination lines go past the caches; only where the table has transpose_strip, and dst and dst_pitch are multiples
  // of 64.
  bool stream = false;
};

// Bytes read from a source row at a time by transpose_strip. Two lines, because the second then comes with the first; one
// line and four are slower.
inline constexpr std::int64_t kStripWide = 128;
inline constexpr std::int64_t kStripPitch = kStripWide + 64;

struct Ops {
  const char* name;
  void (*copy_rows)(const CopyRows&);
  void (*digest_rows)(Acc&, const DigestRows&);
  void (*digest_items)(Acc&, const DigestItems&);
  void (*transpose_tile)(const Tile&);
  // Where one register is a whole line of a destination row, else null: a strip of whole source lines (columns * item
  // a multiple of kStripWide, src at a line's start), block by block through `packed` (rows * kStripPitch bytes).
  void (*transpose_strip)(const Tile&, char* packed);
  // A vector body for this pair, or null. Same contract as cast_scalar.
  bool (*(*fast_cast)(DType from, DType to))(void* dst, const void* src, std::int64_t n);
  void (*fence)();  // after streaming stores, before another thread may look
};

const Ops& ops();  // the table in force

// Scalar bodies: the "scalar" instruction set, and the tails of the others.
void digest_rows_scalar(Acc& acc, const DigestRows& r);
void digest_items_scalar(Acc& acc, const DigestItems& r);
void transpose_scalar(const Tile& t);

}  // namespace refit::kernel
