// Keys of the placement digest: the tables that all tensors of a seed share, and the per-tensor block keys.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernel/digest_body.h"
#include "kernel/kernel.h"

namespace refit::kernel {

inline constexpr int kTableAxes = 32;  // axes beyond share T tables modulo this; their U stay apart
inline constexpr int kPad = 64;        // readable entries past a table's end, for vectors that hang over

using Words = std::array<std::uint32_t, kWords>;

// T_k of one axis in the three forms that kernels load: 16-bit, 32-bit, and 32-bit twice (for 8-byte items).
struct AxisTables {
  alignas(64) std::int16_t t16[kWords][kBlock + kPad];
  alignas(64) std::int32_t t32[kWords][kBlock + kPad];
  alignas(64) std::int32_t t64[kWords][2 * kBlock + kPad];
};

class SeedTables;
const HalfKeys& half_keys(const SeedTables& tables);

// *pure*.
struct DigestKeys::Impl {
  std::shared_ptr<SeedTables> tables;   // shared by all tensors of a seed: stays in L1 from tensor to tensor
  std::vector<int> key_axis;            // per logical axis: its number among axes longer than 1, or -1
  std::vector<const AxisTables*> axis;  // per key axis
  std::vector<std::array<std::uint64_t, kWords>> block_seed;  // per key axis and word

  Words block_keys(int a, std::int64_t block) const;  // U
  Words keys(int a, std::int64_t index) const;        // U * T
  const AxisTables& table(int a) const { return *axis[static_cast<std::size_t>(a)]; }
  const HalfKeys& halves() const { return half_keys(*tables); }
};

}  // namespace refit::kernel
