// What `refit --version` prints.
#pragma once
#include <string>

namespace refit::cli {
// Version, commit, movers, presets, instruction sets, compiler; one fact a line.
std::string version_text();
}  // namespace refit::cli
