// Little-endian encoding of cards, descriptors and requests. Readers get a private copy and a flag, never a fault.
#pragma once
#include <cstdint>
#include <span>

#include "transport/transport.h"

namespace refit::transport {

class Writer {
 public:
  Writer& u32(std::uint32_t v) { return put(v, 4); }
  Writer& u64(std::uint64_t v) { return put(v, 8); }
  Writer& hash(const Hash128& h) { return u64(h.hi).u64(h.lo); }
  Writer& raw(std::span<const std::byte> bytes) {
    out_.insert(out_.end(), bytes.begin(), bytes.end());
    return *this;
  }
  std::span<const std::byte> view() const { return out_; }
  Bytes take() { return std::move(out_); }

 private:
  Writer& put(std::uint64_t v, int bytes) {
    for (int i = 0; i < bytes; ++i) out_.push_back(static_cast<std::byte>(v >> (8 * i)));
    return *this;
  }
  Bytes out_;
};

// Reading past the end yields zeros and clears ok().
class Reader {
 public:
  explicit Reader(std::span<const std::byte> in) : in_(in) {}
  std::uint32_t u32() { return static_cast<std::uint32_t>(get(4)); }
  std::uint64_t u64() { return get(8); }
  Hash128 hash() {
    const std::uint64_t hi = u64();
    return {hi, u64()};
  }
  bool ok() const { return ok_; }
  std::size_t left() const { return in_.size(); }
  std::span<const std::byte> rest() const { return in_; }

 private:
  std::uint64_t get(std::size_t bytes) {
    if (in_.size() < bytes) {
      ok_ = false;
      in_ = {};
      return 0;
    }
    std::uint64_t v = 0;
    for (std::size_t i = 0; i < bytes; ++i) v |= std::to_integer<std::uint64_t>(in_[i]) << (8 * i);
    in_ = in_.subspan(bytes);
    return v;
  }
  std::span<const std::byte> in_;
  bool ok_ = true;
};

}  // namespace refit::transport
