// Reads a case of this folder, with assignments laid over it, and decides.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>

#include <string>
#include <vector>

#include "files/files.h"
#include "sync/sync.h"

namespace refit::sync {

inline ConfigResult load_case(const std::string& name, const std::vector<std::string>& sets = {}) {
  const ReadConfigFile read = [](const std::string& path) { return files::read_text(path, kMaxConfigBytes); };
  return load_config(std::string(REFIT_CONFIG_CASES) + "/" + name + ".yaml", sets, read,
                     [](const std::string&) { return std::optional<std::string>(); });
}

inline std::string errors_of(const ConfigResult& r) {
  std::string out;
  for (const Error& e : r.errors) out += e.to_string() + "\n";
  return out;
}

inline Decision decide_case(const std::string& name, const std::vector<std::string>& sets = {},
                            const Declared& declared = {}, const std::vector<std::string>& movers = {}) {
  const ConfigResult loaded = load_case(name, sets);
  EXPECT_TRUE(loaded.ok()) << name << ": " << errors_of(loaded);
  return decide(loaded.config, declared, movers, {});
}

inline std::string rows_of(const Decision& d) {
  std::string out;
  for (const Refusal& r : d.refusals) out += r.row + " ";
  return out;
}

}  // namespace refit::sync
