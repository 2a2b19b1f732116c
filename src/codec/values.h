// Values of up to kGroup changes: a plane of signs, then the classes floor(log2 |d|) as nested sets, each class with
// its mantissa bits. By the chain rule this follows the order-0 entropy of any distribution.
#pragma once
#include <algorithm>

#include "codec/body.h"

namespace refit::codec {

template <typename V>
const ValueOps<V>& value_ops(const Body& body) {
  if constexpr (sizeof(V) == 2) return body.v16;
  if constexpr (sizeof(V) == 4) return body.v32;
  if constexpr (sizeof(V) == 8) return body.v64;
}

// The t set bits among m.
inline Byte* put_members(const Body& body, const std::uint64_t* bits, std::size_t t, std::size_t m, Scratch::Impl& work,
                         Byte* out) {
  switch (set_form(t, m)) {
    case SetForm::kNothing:
      return out;
    case SetForm::kBitmap:
      std::memcpy(out, bits, bytes_of_bits(m));
      return out + bytes_of_bits(m);
    case SetForm::kMembers:
    case SetForm::kOthers:
      break;
  }
  const std::size_t n = body.bit_positions(bits, m, set_form(t, m) == SetForm::kMembers, work.members.data());
  return out + body.put_set(work.members.data(), n, m, out, work.ahead);
}

inline bool get_bitmap(Reader& in, std::size_t t, std::size_t m, std::uint64_t* bits) {
  const Byte* part = nullptr;
  if (!in.take(bytes_of_bits(m), part)) return false;
  bits[words_of_bits(m) - 1] = 0;
  std::memcpy(bits, part, bytes_of_bits(m));
  std::size_t count = 0;
  for (std::size_t w = 0; w < words_of_bits(m); ++w) count += static_cast<std::size_t>(std::popcount(bits[w]));
  if (m % 64 != 0 && bits[m / 64] >> (m % 64) != 0) return in.fail(Fault::kPadding);
  return count == t || in.fail(Fault::kCount);
}

inline bool get_members(const Body& body, Reader& in, std::size_t t, std::size_t m, Scratch::Impl& work,
                        std::uint64_t* bits) {
  const SetForm form = set_form(t, m);
  if (form == SetForm::kBitmap) return get_bitmap(in, t, m, bits);
  const bool most = form == SetForm::kOthers || (form == SetForm::kNothing && t != 0);
  std::fill_n(bits, words_of_bits(m), most ? ~std::uint64_t{0} : 0);
  if (form == SetForm::kNothing) return true;
  const std::size_t n = most ? m - t : t;
  Pos* p = work.members.data();
  const Taken taken = body.get_set(in.at, in.left(), n, m, p, work.ahead);
  if (taken.fault != Fault::kNone) return in.fail(taken.fault);
  in.at += taken.bytes;
  for (std::size_t i = 0; i < n; ++i) bits[p[i] / 64] ^= std::uint64_t{1} << (p[i] % 64);
  return true;
}

// Overwrites `values`.
template <typename V>
Byte* put_values(const Body& body, V* values, std::size_t n, int width, Scratch::Impl& work, Byte* out) {
  const ValueOps<V>& ops = value_ops<V>(body);
  const std::size_t negatives = ops.signs(values, n, work.planes[0], work.ahead);
  out = put_number(out, static_cast<std::uint32_t>(negatives));
  out = put_members(body, work.planes[0], negatives, n, work, out);
  V *in = values, *above = work.ping.template as<V>(), *spare = work.pong.template as<V>();
  V* here = work.here.template as<V>();
  const int top = 8 * width - 1;
  for (int c = 0; n > 0; ++c) {
    const std::size_t up = ops.split(in, n, c, work.planes[0], above, here, work.ahead);
    if (c < top) {
      out = put_number(out, static_cast<std::uint32_t>(up));
      out = put_members(body, work.planes[0], up, n, work, out);
    }
    if (c > 0 && n > up) {
      ops.pack(here, n - up, c, out, work.ahead);
      out += bytes_of_bits((n - up) * static_cast<std::size_t>(c));
    }
    n = up;
    in = above;
    std::swap(above, spare);
  }
  return out;
}

// Reads the planes from the first class up, then rebuilds from the last class down. The values end in `work.values`.
template <typename V>
bool get_values(const Body& body, Reader& in, std::size_t n, int width, Scratch::Impl& work) {
  const ValueOps<V>& ops = value_ops<V>(body);
  std::size_t negatives = 0, members[66] = {n};  // members[c]: values of class c or above
  const Byte* mantissas[65] = {};
  if (!in.number(n, negatives) || !get_members(body, in, negatives, n, work, work.planes[64])) return false;
  const int top = 8 * width - 1;
  int last = 0;
  for (int c = 0; members[c] > 0; last = c++) {
    std::size_t& up = members[c + 1];
    if (c < top && (!in.number(members[c], up) || !get_members(body, in, up, members[c], work, work.planes[c])))
      return false;
    const std::size_t bits = (members[c] - up) * static_cast<std::size_t>(c);
    if (!in.take(bytes_of_bits(bits), mantissas[c])) return false;
    if (bits % 8 != 0 && mantissas[c][bits / 8] >> (bits % 8) != 0) return in.fail(Fault::kPadding);
  }
  V *values = work.values.template as<V>(), *here = work.here.template as<V>();
  V *above = work.ping.template as<V>(), *to = work.pong.template as<V>();
  for (int c = last; c >= 0; --c, std::swap(above, to)) {
    const std::size_t up = members[c + 1], stay = members[c] - up;
    V* out = c == 0 ? values : to;
    V* low = up == 0 ? out : here;  // nothing to merge with
    if (c == 0) {
      std::fill_n(low, stay, V{1});
    } else if (stay > 0) {
      ops.unpack(mantissas[c], stay, c, low, work.ahead);
    }
    if (up > 0) ops.merge(work.planes[c], members[c], above, here, out, work.ahead);
  }
  if (negatives > 0) ops.negate(work.planes[64], n, values);
  return true;
}

}  // namespace refit::codec
