// What `plan` and `reshard` share: layouts from files or SPECs, and sizes as people write them.
#pragma once
#include <memory>
#include <string>

#include "model/model.h"
#include "plan/plan.h"

namespace refit::cli {

Result<std::shared_ptr<const model::Layout>> layout_file(const std::string& path);

// A model: a directory or .safetensors file, a config.json, or a built-in name (`NAME` or `NAME@layers=N`).
Result<std::shared_ptr<const model::Layout>> model_layout(const std::string& model, const std::string& spec);

// "32MiB", "1.5GiB", "4096" in bytes. Errors: kInvalid naming the option.
Result<std::int64_t> parse_bytes(const std::string& text, const std::string& option);
std::string human_bytes(std::int64_t bytes);

}  // namespace refit::cli
