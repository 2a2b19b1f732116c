// The delta's scan and apply on a GPU. A thread block takes one block of the format (2^16 elements): it marks what
// differs in a bitmap, counts, and writes positions and values in ascending order, as Body::scan does.
#pragma once
#include "codec/change_body.h"

namespace refit::codec {

inline constexpr std::int64_t kChangeBlock = std::int64_t{1} << 16;

struct ScanParams {
  const std::byte *base, *next;
  std::int64_t elements;
  std::uint32_t* counts;     // per block
  std::uint16_t* positions;  // room per block
  void* values;              // room per block, 2, 4 or 8 bytes each
  std::int64_t room;
  std::int32_t width;
  Form form;
  bool aligned;  // base and next to 16 bytes
};

struct ScanKernel {
  static constexpr const char* kName = "refit_scan";
  static constexpr int kThreads = 256;
  using Params = ScanParams;
  using Block = grid::Block<kThreads>;
  struct Shared {
    std::uint8_t differs[kChangeBlock / 8];
    std::uint32_t before[kThreads], before_group[16];
  };
  static constexpr std::int32_t kOwnBytes = kChangeBlock / 8 / kThreads;  // of the bitmap, per thread: 256 elements

  template <typename E>
  static REFIT_HD E load(const std::byte* from, std::int64_t i) {
    E v = 0;
    for (std::size_t b = 0; b < sizeof(E); ++b)
      v = static_cast<E>(v | static_cast<E>(static_cast<E>(from[static_cast<std::size_t>(i) * sizeof(E) + b]) << (8 * b)));
    return v;
  }

  template <typename E>
  struct alignas(sizeof(E) == 1 ? 8 : 16) Eight {
    E e[8];
  };

  template <typename E>
  static REFIT_HD void mark(const Params& p, std::int64_t from, std::int64_t n, int thread, Shared& s) {
    for (std::int64_t g = thread; g < kChangeBlock / 8; g += kThreads) {
      std::uint32_t bits = 0;
      const std::int64_t at = from + 8 * g;
      if (p.aligned && 8 * g + 8 <= n) {
        const auto a = grid::load_wide<Eight<E>>(p.base + at * static_cast<std::int64_t>(sizeof(E)));
        const auto b = grid::load_wide<Eight<E>>(p.next + at * static_cast<std::int64_t>(sizeof(E)));
        REFIT_UNROLL
        for (int e = 0; e < 8; ++e) bits |= static_cast<std::uint32_t>(a.e[e] != b.e[e]) << e;
      } else {
        for (int e = 0; e < 8 && 8 * g + e < n; ++e)
          bits |= static_cast<std::uint32_t>(load<E>(p.base, at + e) != load<E>(p.next, at + e)) << e;
      }
      s.differs[g] = static_cast<std::uint8_t>(bits);
    }
  }

  static REFIT_HD std::uint32_t ones(std::uint32_t bits) {
    std::uint32_t n = 0;
    for (; bits != 0; bits &= bits - 1) ++n;
    return n;
  }

  template <typename E, typename V>
  static REFIT_HD void write(const Params& p, std::int64_t block, int thread, const Shared& s) {
    std::int64_t at = s.before[thread] + s.before_group[thread / 16];
    for (std::int32_t byte = thread * kOwnBytes; byte < (thread + 1) * kOwnBytes; ++byte)
      for (int e = 0; e < 8; ++e) {
        if ((s.differs[byte] >> e & 1) == 0) continue;
        if (at >= p.room) return;
        const std::int64_t i = block * kChangeBlock + 8 * byte + e;
        p.positions[block * p.room + at] = static_cast<std::uint16_t>(8 * byte + e);
        static_cast<V*>(p.values)[block * p.room + at] =
            change_value<E, V>(p.form, load<E>(p.base, i), load<E>(p.next, i));
        ++at;
      }
  }

  static REFIT_HD void run(const Block& block, const Params& p, Shared& s) {
    const std::int64_t from = block.index * kChangeBlock;
    const std::int64_t n = p.elements - from < kChangeBlock ? p.elements - from : kChangeBlock;
    block.each([&](int t) {
      if (p.width == 1) mark<std::uint8_t>(p, from, n, t, s);
      else if (p.width == 2) mark<std::uint16_t>(p, from, n, t, s);
      else if (p.width == 4) mark<std::uint32_t>(p, from, n, t, s);
      else mark<std::uint64_t>(p, from, n, t, s);
    });
    block.each([&](int t) {
      std::uint32_t count = 0;
      for (std::int32_t b = 0; b < kOwnBytes; ++b) count += ones(s.differs[t * kOwnBytes + b]);
      s.before[t] = count;
    });
    block.each([&](int t) {  // within groups of 16 threads
      if (t >= 16) return;
      std::uint32_t sum = 0;
      for (int i = 16 * t; i < 16 * t + 16; ++i) {
        const std::uint32_t count = s.before[i];
        s.before[i] = sum;
        sum += count;
      }
      s.before_group[t] = sum;
    });
    block.each([&](int t) {
      if (t != 0) return;
      std::uint32_t sum = 0;
      for (int g = 0; g < 16; ++g) {
        const std::uint32_t count = s.before_group[g];
        s.before_group[g] = sum;
        sum += count;
      }
      p.counts[block.index] = sum;
    });
    block.each([&](int t) {
      if (p.width == 1) write<std::uint8_t, std::uint16_t>(p, block.index, t, s);
      else if (p.width == 2) write<std::uint16_t, std::uint16_t>(p, block.index, t, s);
      else if (p.width == 4) write<std::uint32_t, std::uint32_t>(p, block.index, t, s);
      else write<std::uint64_t, std::uint64_t>(p, block.index, t, s);
    });
  }
};

struct ApplyParams {
  std::byte* target;  // aligned to its elements
  std::int64_t elements;
  const std::uint32_t* counts;
  const std::uint16_t* positions;
  const void* values;
  std::int64_t room;
  std::int32_t width;
  Sink sink;
};

struct ApplyKernel {
  static constexpr const char* kName = "refit_apply";
  static constexpr int kThreads = 256;
  using Params = ApplyParams;
  using Block = grid::Block<kThreads>;
  struct Shared {};

  template <typename E, typename V>
  static REFIT_HD void put(const Params& p, std::int64_t block, int thread) {
    E* const target = reinterpret_cast<E*>(p.target) + block * kChangeBlock;
    const std::int64_t n = p.counts[block] < p.room ? p.counts[block] : p.room;
    for (std::int64_t i = block * p.room + thread; i < block * p.room + n; i += kThreads) {
      if (block * kChangeBlock + p.positions[i] >= p.elements) continue;
      E& e = target[p.positions[i]];
      e = changed_element<E>(p.sink, e, static_cast<E>(static_cast<const V*>(p.values)[i]));
    }
  }
  static REFIT_HD void run(const Block& block, const Params& p, Shared&) {
    block.each([&](int t) {
      if (p.width == 1) put<std::uint8_t, std::uint16_t>(p, block.index, t);
      else if (p.width == 2) put<std::uint16_t, std::uint16_t>(p, block.index, t);
      else if (p.width == 4) put<std::uint32_t, std::uint32_t>(p, block.index, t);
      else put<std::uint64_t, std::uint64_t>(p, block.index, t);
    });
  }
};

}  // namespace refit::codec
