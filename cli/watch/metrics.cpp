// refit metrics: the table of metrics as a page; docs/metrics.md is its output.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "observe/observe.h"

namespace refit::cli {
namespace {

void print_metrics(const Context& context) {
  if (!context.json) return fmt::print("{}", observe::metrics_page());
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  for (const observe::Description& d : observe::table())
    out.push_back({{"name", d.name},
                   {"type", observe::to_string(d.type)},
                   {"unit", d.unit},
                   {"labels", d.labels},
                   {"of", d.coordinator ? "coordinator" : "agent"},
                   {"help", d.help}});
  fmt::print("{}\n", out.dump());
}

void setup_metrics(CLI::App& app, Context& context) {
  CLI::App* c = app.add_subcommand("metrics", "Names, units and meaning of the metrics that --metrics exports");
  c->add_flag("--json", context.json, "Print one JSON array");
  c->callback([&context] { print_metrics(context); });
}
REFIT_COMMAND("metrics", setup_metrics);

}  // namespace
}  // namespace refit::cli
