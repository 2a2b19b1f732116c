// `refit check`: which synchronizer and transport a training configuration gets, or why it is refused.
#include <fmt/format.h>

#include <memory>

#include "cli/command.h"
#include "cli/training_config.h"
#include "sync/sync.h"
#include "transport/transport.h"

namespace refit::cli {
namespace {

struct CheckArgs {
  std::string config;
  std::vector<std::string> sets;
  std::string algorithm, device_free, host_free, shard;
  std::int64_t worker_groups = 0;
  bool print_matrix = false, print_keys = false;
};

// What both outputs show.
struct CheckReport {
  sync::Config config;
  sync::Decision decision;
};

Result<std::optional<std::int64_t>> size_option(const std::string& text, const char* option) {
  if (text.empty()) return std::optional<std::int64_t>{};
  REFIT_ASSIGN(const std::int64_t bytes, parse_bytes(text, option));
  return std::optional(bytes);
}

Result<sync::Declared> declared(const CheckArgs& args) {
  sync::Declared d;
  if (!args.algorithm.empty()) d.algorithm = args.algorithm;
  REFIT_ASSIGN(d.device_free_bytes, size_option(args.device_free, "--device-free"));
  REFIT_ASSIGN(d.host_free_bytes, size_option(args.host_free, "--host-free"));
  REFIT_ASSIGN(d.shard_bytes, size_option(args.shard, "--shard"));
  if (args.worker_groups > 0) d.max_colocated_worker_groups = args.worker_groups;
  return d;
}

void print_json(const CheckReport& report) { fmt::print("{}\n", sync::decision_json(report.config, report.decision)); }

void print_refusals(const char* title, const std::vector<sync::Refusal>& rows) {
  for (const sync::Refusal& r : rows) {
    fmt::print("{} {}: {}\n", title, r.row, r.reason);
    for (const std::string& path : r.paths) fmt::print("      {}\n", path);
    fmt::print("      way out: {}\n", r.way_out);
  }
}

void print_text(const CheckReport& report) {
  const sync::Decision& d = report.decision;
  fmt::print("{}\n", d.allowed ? "allowed" : "refused");
  const auto line = [](const char* name, const std::string& value) {
    if (!value.empty()) fmt::print("  {:<14} {}\n", name, value);
  };
  if (!d.row.empty()) {
    line("synchronizer", d.synchronizer);
    line("transport", fmt::format("{} (row {})", d.transport, d.row));
    line("path", d.path);
    line("judged for", fmt::format("{} generation, {} policy, algorithm {}, compat {}", d.backend, d.policy,
                                   d.algorithm, report.config.compat.value));
    line("shadow", fmt::format("{}: {}", d.shadow, d.shadow_why));
    line("kv_scales", d.kv_scales ? "carried" : "not carried");
    line("GPU share", d.gpu_share ? fmt::format("{} ({})", *d.gpu_share, d.gpu_share_rule) : d.gpu_share_rule);
    line("phases", fmt::format("{}", fmt::join(d.phases, " -> ")));
    line("needs", fmt::format("{}", fmt::join(d.needs, ", ")));
    line("in this build",
         (d.available ? "available" : "not available") + (d.available_reason.empty() ? "" : ": " + d.available_reason));
  }
  print_refusals("  refused by", d.refusals);
  print_refusals("  lifted", d.lifted);
  for (const sync::Remark& r : d.warnings) fmt::print("  warning {}: {}\n", r.row, r.text);
  for (const sync::Remark& r : d.not_judged) fmt::print("  not judged {}: {}\n", r.row, r.text);
  fmt::print("keys that were set (the others have their defaults)\n");
  for (const sync::KeyRow& row : sync::config_rows(report.config))
    if (!row.origin.is_default()) fmt::print("  {} = {}  ({})\n", row.path, row.value, row.origin.text());
}

void run(const CheckArgs& args, Context& context) {
  if (args.print_matrix) {
    fmt::print("{}", sync::matrix_page());
    return;
  }
  if (args.print_keys) {
    fmt::print("{}", sync::config_page());
    return;
  }
  if (args.config.empty())
    return fail(context, Error(Code::kInvalid, "give CONFIG.yaml, --print-matrix or --print-keys"));
  auto d = declared(args);
  if (!d.ok()) return fail(context, d.error());
  sync::ConfigResult loaded = load_training_config(args.config, args.sets);
  if (!loaded.ok()) return fail(context, loaded.errors);
  CheckReport report{std::move(loaded.config), {}};
  report.decision = sync::decide(report.config, *d, transport::mover_names(), sync::built_presets());
  if (context.json)
    print_json(report);
  else
    print_text(report);
  if (!report.decision.allowed) context.exit_code = 1;
}

void setup_check(CLI::App& app, Context& context) {
  CLI::App* command = app.add_subcommand(
      "check", "Which synchronizer and transport a training configuration gets, or why it is refused");
  auto args = std::make_shared<CheckArgs>();
  command->add_option("config", args->config, "The training configuration (YAML)");
  command->add_option("--set", args->sets, "path=value over the file, e.g. refit.compat=extended; may be repeated")
      ->allow_extra_args(false);
  command->add_option("--algorithm", args->algorithm, "grpo, ppo or distillation; else from the top-level sections");
  command->add_option("--shard", args->shard,
                      "Bytes of a target rank's weights, e.g. 16GiB: decides where the shadow lives");
  command->add_option("--device-free", args->device_free, "Free device bytes of a target rank");
  command->add_option("--host-free", args->host_free, "Free host bytes of a target rank");
  command->add_option("--worker-groups", args->worker_groups, "max_colocated_worker_groups, for the GPU share")
      ->check(CLI::PositiveNumber);
  command->add_flag("--print-matrix", args->print_matrix, "Print docs/choose-a-transport.md instead");
  command->add_flag("--print-keys", args->print_keys, "Print docs/configuration.md instead");
  command->add_flag("--json", context.json, "One JSON object on stdout");
  command->callback([args, &context] { run(*args, context); });
}

REFIT_COMMAND("check", setup_check);

}  // namespace
}  // namespace refit::cli
