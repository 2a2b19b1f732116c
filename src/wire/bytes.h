// Little-endian fields of fixed layouts, independent of the machine's own order. For this room's sources.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "core/core.h"

namespace refit::wire {

// Writes fields one after another; the caller has made sure that they fit.
class Writer {
 public:
  explicit Writer(std::span<std::byte> out) : out_(out) {}
  template <typename T>
  Writer& put(T v) {
    static_assert(std::is_unsigned_v<T>);
    for (std::size_t i = 0; i < sizeof(T); ++i)
      out_[at_++] = static_cast<std::byte>((static_cast<std::uint64_t>(v) >> (8 * i)) & 0xff);
    return *this;
  }
  // Canonical order, as hex() prints it: high half first, big-endian.
  Writer& put(const Hash128& h) {
    for (std::uint64_t half : {h.hi, h.lo})
      for (int i = 7; i >= 0; --i) out_[at_++] = static_cast<std::byte>((half >> (8 * i)) & 0xff);
    return *this;
  }
  Writer& put(const Txn& t) { return put(t.lineage).put(t.epoch.value).put(t.counter); }
  std::size_t at() const { return at_; }

 private:
  std::span<std::byte> out_;
  std::size_t at_ = 0;
};

// Reads fields; once the input is too short every further read gives zero and ok() is false.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> in) : in_(in) {}
  template <typename T>
  T get() {
    static_assert(std::is_unsigned_v<T>);
    if (!take(sizeof(T))) return 0;
    std::uint64_t v = 0;
    for (std::size_t i = 0; i < sizeof(T); ++i) v |= std::to_integer<std::uint64_t>(in_[at_ + i]) << (8 * i);
    at_ += sizeof(T);
    return static_cast<T>(v);
  }
  Hash128 hash() {
    if (!take(16)) return {};
    Hash128 h;
    for (std::size_t i = 0; i < 8; ++i) h.hi = h.hi << 8 | std::to_integer<std::uint64_t>(in_[at_ + i]);
    for (std::size_t i = 8; i < 16; ++i) h.lo = h.lo << 8 | std::to_integer<std::uint64_t>(in_[at_ + i]);
    at_ += 16;
    return h;
  }
  Txn txn() {
    Txn t;
    t.lineage = hash();
    t.epoch = Epoch(get<std::uint64_t>());
    t.counter = get<std::uint64_t>();
    return t;
  }
  bool ok() const { return ok_; }
  std::size_t at() const { return at_; }
  std::size_t left() const { return in_.size() - at_; }

 private:
  bool take(std::size_t n) { return ok_ = ok_ && in_.size() - at_ >= n; }
  std::span<const std::byte> in_;
  std::size_t at_ = 0;
  bool ok_ = true;
};

}  // namespace refit::wire
