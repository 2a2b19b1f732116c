// `refit reshard`: runs a plan on raw buffer files.
#include <fmt/format.h>

#include <memory>

#include "cli/command.h"
#include "cli/layouts.h"
#include "cli/report.h"
#include "cli/reshard_run.h"

namespace refit::cli {
namespace {

struct ReshardArgs {
  std::string source_layout, source_data, target_layout, out;
  PlanSizes sizes;
};

Status run(const ReshardArgs& args, const Context& context) {
  REFIT_ASSIGN(const plan::Options options, args.sizes.options());
  const std::int64_t start = monotonic_ns();
  REFIT_ASSIGN(const auto source, layout_file(args.source_layout));
  REFIT_ASSIGN(const auto target, layout_file(args.target_layout));
  REFIT_ASSIGN(const ReshardReport report, reshard(*source, args.source_data, *target, args.out, options));
  const double seconds = static_cast<double>(monotonic_ns() - start) * 1e-9;
  print_report(context.json, report, seconds, args.out, nlohmann::json::object(),
               fmt::format("{} ranks, {} of weights in {} pieces, {} written", report.ranks,
                           human_bytes(report.bytes_needed), report.pieces, human_bytes(report.bytes_written)),
               "no target wants");
  return {};
}

void setup_reshard(CLI::App& app, Context& context) {
  CLI::App* command = app.add_subcommand(
      "reshard", "Runs a plan on files: raw buffers rank<R>.<buffer>.bin in, the target's buffers out");
  auto args = std::make_shared<ReshardArgs>();
  command->add_option("--source-layout", args->source_layout, "Layout file of the source")->required();
  command->add_option("--source-data", args->source_data, "Directory with the source's raw buffers")->required();
  command->add_option("--target-layout", args->target_layout, "Layout file of the target")->required();
  command->add_option("--out", args->out, "Directory to create; appears complete or not at all")->required();
  args->sizes.declare(*command);
  command->add_flag("--json", context.json, "One JSON object on stdout");
  command->callback([args, &context] {
    if (Status s = run(*args, context); !s.ok()) fail(context, s.error());
  });
}

REFIT_COMMAND("reshard", setup_reshard);

}  // namespace
}  // namespace refit::cli
