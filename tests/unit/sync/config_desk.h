// Configurations from strings: files by name, an environment by name.
#pragma once
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "sync/sync.h"

namespace refit::sync {

using Texts = std::map<std::string, std::string>;

inline ConfigResult load_texts(const Texts& files, const std::vector<std::string>& sets = {},
                               const Texts& environment = {}) {
  const ReadConfigFile read = [&](const std::string& path) -> Result<std::string> {
    const auto it = files.find(path);
    if (it == files.end()) return Error(Code::kInvalid, path + ": no such file");
    return it->second;
  };
  return load_config("a.yaml", sets, read, [&](const std::string& name) -> std::optional<std::string> {
    const auto it = environment.find(name);
    return it == environment.end() ? std::nullopt : std::optional(it->second);
  });
}
inline ConfigResult load_text(const std::string& text, const std::vector<std::string>& sets = {}) {
  return load_texts({{"a.yaml", text}}, sets);
}
inline std::string all_errors(const ConfigResult& r) {
  std::string out;
  for (const Error& e : r.errors) out += e.to_string() + "\n";
  return out;
}

// One error, and it says all of this.
inline void expect_refused(const ConfigResult& r, const std::vector<std::string>& parts) {
  ASSERT_FALSE(r.ok());
  for (const std::string& part : parts) EXPECT_THAT(all_errors(r), testing::HasSubstr(part));
}

}  // namespace refit::sync
