// Files of this and every earlier release, kept beside the tests.
#pragma once
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace refit::support {

// The kept bytes of `name` under REFIT_GOLDEN_DIR. Where the file is missing, REFIT_WRITE_GOLDEN=1 makes it of `fresh`.
inline std::vector<std::byte> golden(const std::string& name, const std::vector<std::byte>& fresh) {
  const std::string path = std::string(REFIT_GOLDEN_DIR) + "/" + name;
  std::ifstream in(path, std::ios::binary);
  if (!in && std::getenv("REFIT_WRITE_GOLDEN") != nullptr) {
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(fresh.data()), static_cast<std::streamsize>(fresh.size()));
    in.open(path, std::ios::binary);
  }
  EXPECT_TRUE(in.good()) << path << " is missing";
  const std::string text((std::istreambuf_iterator<char>(in)), {});
  std::vector<std::byte> out(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) out[i] = static_cast<std::byte>(text[i]);
  return out;
}

}  // namespace refit::support
