// The scalar reference of every inner loop: short, obviously right, the specification of the planes.
#include <algorithm>
#include <type_traits>

#include "codec/body.h"
#include "codec/change_body.h"

namespace refit::codec {
namespace {

// ---- bits, low first in each byte

struct BitWriter {
  Byte* out;
  std::size_t at = 0;  // bits
  void put(std::uint64_t v, int bits) {
    while (bits > 0) {
      const int used = static_cast<int>(at % 8), take = std::min(bits, 8 - used);
      const auto part = static_cast<Byte>((v & ((1U << take) - 1)) << used);
      out[at / 8] = used == 0 ? part : static_cast<Byte>(out[at / 8] | part);
      at += static_cast<std::size_t>(take);
      v >>= take;
      bits -= take;
    }
  }
  void put_unary(std::uint32_t zeros) {
    for (; zeros > 32; zeros -= 32) put(0, 32);
    put(std::uint64_t{1} << zeros, static_cast<int>(zeros) + 1);
  }
};

// Bits [at, at + count) of a plane of `bytes` bytes; what lies behind its end is zero.
std::uint64_t get_bits(const Byte* in, std::size_t bytes, std::size_t at, int count) {
  if (count == 0) return 0;
  const std::size_t first = at / 8;
  const int shift = static_cast<int>(at % 8);
  std::uint64_t v = load_word(in + first, bytes - first) >> shift;
  if (shift + count > 64) v |= static_cast<std::uint64_t>(in[first + 8]) << (64 - shift);
  return count == 64 ? v : v & ((std::uint64_t{1} << count) - 1);
}

// ---- scan

template <typename E, typename V>
std::size_t scan_as(const Byte* base, const Byte* next, std::size_t n, Form form, Pos* positions, V* values) {
  std::size_t found = 0;
  for (std::size_t i = 0; i < n; ++i) {
    E a, b;
    std::memcpy(&a, base + i * sizeof(E), sizeof(E));
    std::memcpy(&b, next + i * sizeof(E), sizeof(E));
    if (a == b) continue;
    positions[found] = static_cast<Pos>(i);
    values[found++] = change_value<E, V>(form, a, b);
  }
  return found;
}

std::size_t scan(const Byte* base, const Byte* next, std::size_t n, int width, Form form, Pos* positions,
                 void* values) {
  if (width == 1) return scan_as<std::uint8_t>(base, next, n, form, positions, static_cast<std::uint16_t*>(values));
  if (width == 2) return scan_as<std::uint16_t>(base, next, n, form, positions, static_cast<std::uint16_t*>(values));
  if (width == 4) return scan_as<std::uint32_t>(base, next, n, form, positions, static_cast<std::uint32_t*>(values));
  return scan_as<std::uint64_t>(base, next, n, form, positions, static_cast<std::uint64_t*>(values));
}

std::size_t runs(const Pos* positions, std::size_t n) {
  std::size_t r = n > 0 ? 1 : 0;
  for (std::size_t i = 1; i < n; ++i) r += positions[i] != positions[i - 1] + 1 ? 1 : 0;
  return r;
}

// ---- sets

std::size_t put_bitmap(const Pos* positions, std::size_t n, std::size_t universe, Byte* out) {
  const std::size_t bytes = bytes_of_bits(universe);
  std::memset(out, 0, bytes);
  for (std::size_t i = 0; i < n; ++i)
    out[positions[i] / 8] = static_cast<Byte>(out[positions[i] / 8] | 1 << (positions[i] % 8));
  return bytes;
}

std::size_t put_set(Pos* positions, std::size_t n, std::size_t universe, Byte* out, Ahead&) {
  const int k = rice_k(n, universe);
  if (k == 0) return put_bitmap(positions, n, universe, out);
  BitWriter low{out}, high{out + bytes_of_bits(n * static_cast<std::size_t>(k))};
  std::uint32_t next = 0;  // least position that may come
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint32_t gap = positions[i] - next;
    low.put(gap, k);
    high.put_unary(gap >> k);
    next = positions[i] + 1U;
  }
  return static_cast<std::size_t>(high.out - out) + bytes_of_bits(high.at);
}

// Ones of `in`, in order, until there are n of them. False when the bytes end first or a one lies past 2^16.
bool ones(const Byte* in, std::size_t have, std::size_t n, Pos* at) {
  std::size_t found = 0;
  for (std::size_t byte = 0; found < n; byte += 8) {
    if (byte >= have || byte >= kBlock / 8) return false;
    for (std::uint64_t w = load_word(in + byte, have - byte); w != 0 && found < n; w &= w - 1)
      at[found++] = static_cast<Pos>(byte * 8 + static_cast<std::size_t>(std::countr_zero(w)));
  }
  return true;
}

Taken get_bitmap(const Byte* in, std::size_t have, std::size_t n, std::size_t universe, Pos* positions) {
  const std::size_t bytes = bytes_of_bits(universe);
  if (bytes > have) return {0, Fault::kTruncated};
  std::size_t count = 0;
  for (std::size_t b = 0; b < bytes; b += 8)
    count += static_cast<std::size_t>(std::popcount(load_word(in + b, bytes - b)));
  if (count != n) return {0, Fault::kCount};
  ones(in, bytes, n, positions);
  return {bytes, positions[n - 1] < universe ? Fault::kNone : Fault::kPadding};
}

Taken get_set(const Byte* in, std::size_t have, std::size_t n, std::size_t universe, Pos* positions, Ahead&) {
  const int k = rice_k(n, universe);
  if (k == 0) return get_bitmap(in, have, n, universe, positions);
  const std::size_t lows = bytes_of_bits(n * static_cast<std::size_t>(k));
  if (lows > have) return {0, Fault::kTruncated};
  if (lows * 8 != n * static_cast<std::size_t>(k) && in[lows - 1] >> (n * static_cast<std::size_t>(k) % 8) != 0)
    return {0, Fault::kPadding};
  if (!ones(in + lows, have - lows, n, positions)) return {0, Fault::kTruncated};
  const std::size_t last = positions[n - 1], highs = last / 8 + 1;
  if (in[lows + last / 8] >> (last % 8) != 1) return {0, Fault::kPadding};
  std::size_t sum = 0;  // of low parts
  for (std::size_t i = 0; i < n; ++i) {
    sum += get_bits(in, lows, i * static_cast<std::size_t>(k), k);
    const std::size_t p = ((positions[i] - i) << k) + sum + i;
    if (p >= universe) return {0, Fault::kPosition};
    positions[i] = static_cast<Pos>(p);
  }
  return {lows + highs, Fault::kNone};
}

std::size_t bit_positions(const std::uint64_t* bits, std::size_t count, bool set, Pos* positions) {
  std::size_t found = 0;
  for (std::size_t i = 0; i < count; ++i)
    if (((bits[i / 64] >> (i % 64) & 1) != 0) == set) positions[found++] = static_cast<Pos>(i);
  return found;
}

// ---- values

void clear_bits(std::uint64_t* bits, std::size_t n) { std::fill_n(bits, words_of_bits(n), 0); }
void set_bit(std::uint64_t* bits, std::size_t i) { bits[i / 64] |= std::uint64_t{1} << (i % 64); }
bool bit(const std::uint64_t* bits, std::size_t i) { return (bits[i / 64] >> (i % 64) & 1) != 0; }

template <typename V>
std::size_t signs(V* values, std::size_t n, std::uint64_t* bits, Ahead&) {
  clear_bits(bits, n);
  std::size_t found = 0;
  for (std::size_t i = 0; i < n; ++i) {
    if (static_cast<std::make_signed_t<V>>(values[i]) >= 0) continue;
    set_bit(bits, i);
    values[i] = static_cast<V>(0 - values[i]);
    ++found;
  }
  return found;
}

template <typename V>
std::size_t split(const V* in, std::size_t n, int c, std::uint64_t* bits, V* above, V* here, Ahead&) {
  clear_bits(bits, n);
  std::size_t up = 0, stay = 0;
  for (std::size_t i = 0; i < n; ++i) {
    if (in[i] >> c >> 1 != 0) {
      set_bit(bits, i);
      above[up++] = in[i];
    } else {
      here[stay++] = static_cast<V>(in[i] - (V{1} << c));
    }
  }
  return up;
}

template <typename V>
void merge(const std::uint64_t* bits, std::size_t n, const V* above, const V* here, V* out, Ahead&) {
  for (std::size_t i = 0; i < n; ++i) out[i] = bit(bits, i) ? *above++ : *here++;
}

template <typename V>
void negate(const std::uint64_t* bits, std::size_t n, V* values) {
  for (std::size_t i = 0; i < n; ++i)
    if (bit(bits, i)) values[i] = static_cast<V>(0 - values[i]);
}

template <typename V>
void pack(const V* in, std::size_t n, int c, Byte* out, Ahead&) {
  BitWriter to{out};
  for (std::size_t i = 0; i < n; ++i) to.put(in[i], c);
}

template <typename V>
void unpack(const Byte* in, std::size_t n, int c, V* out, Ahead&) {
  const auto step = static_cast<std::size_t>(c);
  const std::size_t bytes = bytes_of_bits(n * step);
  for (std::size_t i = 0; i < n; ++i)
    out[i] = static_cast<V>(get_bits(in, bytes, i * step, c) + (std::uint64_t{1} << c));
}

template <typename V>
constexpr ValueOps<V> value_ops() {
  return {signs<V>, split<V>, merge<V>, negate<V>, pack<V>, unpack<V>};
}

}  // namespace

constinit const Body kScalarBody = {scan,
                                    runs,
                                    put_set,
                                    get_set,
                                    bit_positions,
                                    value_ops<std::uint16_t>(),
                                    value_ops<std::uint32_t>(),
                                    value_ops<std::uint64_t>()};

}  // namespace refit::codec
