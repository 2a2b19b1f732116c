// `refit convert`: a Hugging Face checkpoint as any side's files, and back.
#include <fmt/format.h>

#include <filesystem>
#include <memory>

#include "cli/command.h"
#include "cli/convert_files.h"
#include "cli/layouts.h"
#include "cli/report.h"

namespace refit::cli {
namespace {

struct ConvertArgs {
  std::string model, from = "hf", to, out;
  std::string shard_bytes = "5GiB";
  PlanSizes sizes;
};

using LayoutPtr = std::shared_ptr<const model::Layout>;

struct Ends {
  LayoutPtr source, target;
  std::unique_ptr<ParameterMemory> memory;
  std::string config;
};

Result<Ends> from_checkpoint(const ConvertArgs& args, const plan::Options& options) {
  Ends out;
  REFIT_ASSIGN(files::Checkpoint checkpoint, files::Checkpoint::open(args.model));
  const bool skip = (args.from + "," + args.to).find("vision=skip") != std::string::npos;
  REFIT_ASSIGN(out.source, files::checkpoint_layout(checkpoint, skip ? "hf:vision=skip" : "hf"));
  REFIT_ASSIGN(out.target, model::sibling_layout(*out.source, args.to));
  out.config = checkpoint.config_json();
  REFIT_ASSIGN(ParameterMemory memory, ParameterMemory::of_checkpoint(*out.source, std::move(checkpoint), options));
  out.memory = std::make_unique<ParameterMemory>(std::move(memory));
  return out;
}

Result<Ends> from_ranks(const ConvertArgs& args, const plan::Options& options) {
  Ends out;
  const std::string path = args.model + "/layout.json";
  REFIT_ASSIGN(out.source, layout_file(path));
  if (!out.source->recipe())
    return Error(Code::kUnsupported, path + ": holds no recipe; explicit holdings are for refit reshard");
  REFIT_ASSIGN(const LayoutPtr named, model::sibling_layout(*out.source, args.from));
  if (named->recipe()->spec != out.source->recipe()->spec)
    return Error(Code::kMismatch,
                 "--from '" + named->recipe()->spec + "': " + path + " is of '" + out.source->recipe()->spec + "'");
  REFIT_ASSIGN(out.target, model::sibling_layout(*out.source, args.to));
  std::error_code ignored;
  if (std::filesystem::exists(args.model + "/config.json", ignored)) {
    REFIT_ASSIGN(out.config, files::read_text(args.model + "/config.json"));
  }
  REFIT_ASSIGN(ParameterMemory memory, ParameterMemory::of_ranks(*out.source, args.model, options));
  out.memory = std::make_unique<ParameterMemory>(std::move(memory));
  return out;
}

struct Converted {
  Ends ends;
  ReshardReport report;
};

Result<Converted> converted(const ConvertArgs& args) {
  REFIT_ASSIGN(plan::Options options, args.sizes.options());
  options.values = plan::Values::kOutside;
  REFIT_ASSIGN(const std::int64_t shard_bytes, parse_bytes(args.shard_bytes, "--shard-bytes"));
  REFIT_TRY(check_out(args.out));
  const bool checkpoint = args.from == "hf" || args.from.starts_with("hf:");
  Converted out;
  REFIT_ASSIGN(out.ends, checkpoint ? from_checkpoint(args, options) : from_ranks(args, options));
  ParameterFiles files(*out.ends.target, out.ends.config, shard_bytes, options);
  REFIT_ASSIGN(out.report, move_files(*out.ends.source, *out.ends.memory, *out.ends.target, files, args.out, options));
  return out;
}

Status run(const ConvertArgs& args, const Context& context) {
  const std::int64_t start = monotonic_ns();
  REFIT_ASSIGN(const Converted done, converted(args));
  const auto& [ends, report] = done;
  const double seconds = static_cast<double>(monotonic_ns() - start) * 1e-9;
  print_report(context.json, report, seconds, args.out,
               {{"from", ends.source->recipe()->spec},
                {"to", ends.target->recipe()->spec},
                {"skipped", ends.source->skipped()}},
               fmt::format("{} -> {}, {} ranks, {} written in {} pieces", ends.source->recipe()->spec,
                           ends.target->recipe()->spec, report.ranks, human_bytes(report.bytes_written), report.pieces),
               args.to + " has no place for");
  if (!context.json)
    for (const std::string& name : ends.source->skipped()) fmt::print("  passed over: {}\n", name);
  return {};
}

void setup_convert(CLI::App& app, Context& context) {
  CLI::App* command = app.add_subcommand(
      "convert", "A checkpoint as the files of any layout (rank<R>.safetensors and layout.json), and back");
  auto args = std::make_shared<ConvertArgs>();
  command->add_option("--model", args->model, "Checkpoint directory, or one that refit convert wrote")->required();
  command->add_option("--from", args->from, "SPEC of what --model holds")->capture_default_str();
  command->add_option("--to", args->to, "SPEC of the result, e.g. megatron:tp=2,pp=2 or hf")->required();
  command->add_option("--out", args->out, "Directory to create; appears complete or not at all")->required();
  command->add_option("--shard-bytes", args->shard_bytes, "Largest file; a longer one becomes shards")
      ->capture_default_str();
  args->sizes.declare(*command);
  command->add_flag("--json", context.json, "One JSON object on stdout");
  command->callback([args, &context] {
    if (Status s = run(*args, context); !s.ok()) fail(context, s.error());
  });
}

REFIT_COMMAND("convert", setup_convert);

}  // namespace

Status convert_directory(const std::string& model, const std::string& from, const std::string& to,
                         const std::string& out) {
  ConvertArgs args;
  args.model = model;
  args.from = from;
  args.to = to;
  args.out = out;
  REFIT_TRY(converted(args));
  return {};
}

}  // namespace refit::cli
