// Fuzz targets: one per kind of bytes that comes from outside. Each takes any bytes, may refuse them, and must not do
// anything else: a crash, or a broken promise about what was accepted, ends the process.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/core.h"

namespace refit::fuzz {

using Bytes = std::vector<std::byte>;
using View = std::span<const std::byte>;

struct Target {
  const char* name;
  // True when the bytes were accepted. Formats that carry a hash are sealed anew first: nothing would get past it.
  bool (*run)(View bytes);
  std::vector<Bytes> (*seeds)();  // well-formed ones, all of which `run` accepts
};

// What must hold of accepted bytes.
#define REFIT_FUZZ_CHECK(condition)                                                        \
  do {                                                                                     \
    if (!(condition)) {                                                                    \
      std::fprintf(stderr, "%s:%d: broken promise: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                        \
    }                                                                                      \
  } while (false)

std::vector<Target> control_targets();  // messages, buckets, manifests, journals
std::vector<Target> codec_targets();
std::vector<Target> store_targets();
std::vector<Target> text_targets();  // JSON, YAML, safetensors headers, SPECs
std::vector<Target> transport_targets();
std::vector<Target> all_targets();

// ---- for the targets
Bytes file(const std::string& path);                                              // aborts when it is missing
std::vector<Bytes> files(const std::string& directory, std::string_view ending);  // of that folder alone, in order
inline Bytes bytes_of(std::string_view text) {
  const auto b = std::as_bytes(std::span(text));
  return {b.begin(), b.end()};
}
inline std::string text_of(View bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

// High half first, big-endian; or both halves as they lie in memory, little-endian.
void put_canonical(Bytes& bytes, std::size_t at, const Hash128& hash);
void put_little(Bytes& bytes, std::size_t at, std::uint64_t value);

}  // namespace refit::fuzz
