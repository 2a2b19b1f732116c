#include <algorithm>
#include <filesystem>
#include <fstream>

#include "fuzz/fuzz.h"

namespace refit::fuzz {

Bytes file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) {
    std::fprintf(stderr, "fuzz: cannot read %s\n", path.c_str());
    std::abort();
  }
  const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  return bytes_of(text);
}

std::vector<Bytes> files(const std::string& directory, std::string_view ending) {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(directory))
    if (entry.is_regular_file() && entry.path().string().ends_with(ending)) paths.push_back(entry.path().string());
  std::sort(paths.begin(), paths.end());
  std::vector<Bytes> out;
  for (const std::string& path : paths) out.push_back(file(path));
  return out;
}

void put_canonical(Bytes& bytes, std::size_t at, const Hash128& hash) {
  for (std::size_t i = 0; i < 8; ++i) {
    bytes[at + i] = static_cast<std::byte>(hash.hi >> (56 - 8 * i));
    bytes[at + 8 + i] = static_cast<std::byte>(hash.lo >> (56 - 8 * i));
  }
}
void put_little(Bytes& bytes, std::size_t at, std::uint64_t value) {
  for (std::size_t i = 0; i < 8; ++i) bytes[at + i] = static_cast<std::byte>(value >> (8 * i));
}

std::vector<Target> all_targets() {
  std::vector<Target> out;
  for (const auto& more : {control_targets(), codec_targets(), store_targets(), text_targets(), transport_targets()})
    out.insert(out.end(), more.begin(), more.end());
  return out;
}

}  // namespace refit::fuzz
