// Small conversions between rooms that may not see each other.
#pragma once
#include <string>

#include "engine/engine.h"
#include "kernel/kernel.h"
#include "plan/plan.h"
#include "wire/wire.h"

namespace refit::agent {

inline wire::Digest4 to_wire(const kernel::Digest& d) { return {.word = d.word, .count = d.count}; }
inline kernel::Digest to_kernel(const wire::Digest4& d) {
  kernel::Digest out;
  out.word = d.word;
  out.count = d.count;
  return out;
}
// The manifest page travels as a bucket of its own, with a number that no plan uses.
inline constexpr BucketId kManifestBucket{0xffffffffu};

inline Hash128 group_id(std::uint64_t group) { return {0, group}; }

// How rounds encode buckets: complete ones only, or what changed, where that is shorter. Names: raw, xor (differences
// that can be taken back), overwrite.
enum class Encode : std::uint8_t { kRaw, kXor, kOverwrite };
std::string_view to_string(Encode encode);
// kInvalid listing the names; "delta" is another one for xor.
Result<Encode> encode_from_string(std::string_view name);

// The options that every member plans and encodes with, as they travel in Configure.
struct JobOptions {
  plan::Options plan;
  Encode encode = Encode::kRaw;
};
std::string options_to_json(const JobOptions& options);
// kInvalid naming the key.
Result<JobOptions> options_from_json(const std::string& text);

inline wire::Bytes to_bytes(const std::string& text) {
  const auto* p = reinterpret_cast<const std::byte*>(text.data());
  return {p, p + text.size()};
}
inline std::string to_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace refit::agent
