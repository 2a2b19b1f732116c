// `refit plan --html`: one page without outside resources, with the byte matrix and a time line, light and dark.
#pragma once
#include <optional>
#include <string>

#include "cli/plan_links.h"
#include "plan/plan.h"

namespace refit::cli {

struct PlanPage {
  std::string title;  // "llama… fsdp=4 → vllm:tp=2"
  const plan::World& world;
  const std::optional<plan::Cost>& cost;
  const std::optional<PublishedCase>& published;
};
std::string plan_page(const PlanPage& page);
Status write_plan_page(const std::string& path, const PlanPage& page);

}  // namespace refit::cli
