// Hex, and how the peer program and its tests lay out memory.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "transport/transport.h"

namespace refit::procs {

inline constexpr std::int64_t kWeightsBytes = 3 << 20, kScalesBytes = 12345;

inline std::string to_hex(const transport::Bytes& bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  for (std::byte b : bytes) {
    out += kDigits[std::to_integer<unsigned>(b) >> 4];
    out += kDigits[std::to_integer<unsigned>(b) & 15];
  }
  return out;
}
inline transport::Bytes from_hex(const std::string& text) {
  transport::Bytes out;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2)
    out.push_back(static_cast<std::byte>(std::stoul(text.substr(i, 2), nullptr, 16)));
  return out;
}
// What byte `at` of region `region` is in `round` of `job`.
inline std::byte weight(const std::string& job, std::uint64_t round, std::uint32_t region, std::int64_t at) {
  return static_cast<std::byte>(job.size() * 91 + round * 7 + region * 31 + static_cast<std::uint64_t>(at) * 13 / 5);
}
inline transport::LaneId lane_id(const std::string& job, std::uint64_t round, Incarnation incarnation) {
  transport::LaneId id;
  id.job = hash128(job);
  id.txn = Txn{hash128("lineage"), Epoch(1), round};
  id.incarnation = incarnation;
  return id;
}

}  // namespace refit::procs
