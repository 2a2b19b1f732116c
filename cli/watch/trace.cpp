// refit trace summary FILE…: where the time of the rounds in a trace went, and who was last; refit trace merge.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/watch/trace_file.h"

namespace refit::cli {
namespace {

using nlohmann::ordered_json;

struct TraceArgs {
  std::vector<std::string> files;
  std::string out;
};

std::string last_text(const ordered_json& last) {
  if (last.is_null()) return "-";
  return fmt::format("{} ({:.3f} s, {:.3f} s behind the first)", last["member"].get<std::string>(),
                     last["seconds"].get<double>(), last["behind_the_first_seconds"].get<double>());
}

void print_round(const ordered_json& r) {
  fmt::print("round {} version {}: {}", r.contains("round") ? r["round"].dump() : "?",
             r.contains("version") ? r["version"].dump() : "?",
             r.contains("outcome") && r["outcome"].is_string() ? r["outcome"].get<std::string>()
                                                               : "not seen by a coordinator");
  if (r.contains("seconds")) fmt::print(", {:.3f} s", r["seconds"].get<double>());
  fmt::print("\n");
  if (r.contains("error") && r["error"].is_string()) fmt::print("  error     {}\n", r["error"].get<std::string>());
  std::string phases;
  for (const auto& [name, seconds] : r["phases"].items())
    phases += fmt::format("{}{} {:.3f} s", phases.empty() ? "" : ", ", name, seconds.get<double>());
  if (!phases.empty()) fmt::print("  took      {}\n", phases);
  for (const char* what : {"seal", "transfer", "drain", "copy"})
    fmt::print("  last {:<9} {}\n", what, last_text(r["last"][what]));
  if (!r["last_link"].is_null())
    fmt::print("  last link {} -> {}\n", r["last_link"]["from"].get<std::string>(),
               r["last_link"]["to"].get<std::string>());
}

Status trace_summary(const Context& context, const TraceArgs& args) {
  REFIT_ASSIGN(const TraceFile trace, TraceFile::read(args.files));
  const ordered_json s = summarise(trace);
  if (context.json) {
    fmt::print("{}\n", s.dump());
    return {};
  }
  for (const ordered_json& r : s["rounds"]) print_round(r);
  const double whole = s["seconds"].get<double>();
  fmt::print("all {} rounds: {:.3f} s", s["rounds"].size(), whole);
  for (const auto& [name, seconds] : s["phases"].items())
    fmt::print(", {} {:.0f} %", name, whole > 0 ? 100 * seconds.get<double>() / whole : 0);
  fmt::print("\n");
  if (s["clocks"].empty()) fmt::print("clock: one host, one monotonic clock\n");
  for (const ordered_json& c : s["clocks"])
    fmt::print("clock: another host's lies {:.3f} ms off, give or take {:.3f} ms (from the order of messages)\n",
               c["offset_us"].get<double>() * 1e-3, c["uncertain_us"].get<double>() * 1e-3);
  return {};
}

Status trace_merge(const Context& context, const TraceArgs& args) {
  REFIT_ASSIGN(const TraceFile trace, TraceFile::read(args.files));
  REFIT_TRY(trace.write(args.out));
  if (context.json)
    fmt::print("{}\n", ordered_json{{"ok", true}, {"out", args.out}, {"events", trace.events().size()}}.dump());
  else
    fmt::print("{}: {} events of {} files\n", args.out, trace.events().size(), args.files.size());
  return {};
}

void setup_trace(CLI::App& app, Context& context) {
  CLI::App* c = app.add_subcommand("trace", "What --trace wrote: where the time went");
  c->require_subcommand(1);
  auto args = std::make_shared<TraceArgs>();
  CLI::App* summary = c->add_subcommand("summary", "Rounds with their phases, and which rank or link was last");
  CLI::App* merge = c->add_subcommand("merge", "Files of several processes as one, on the coordinator's clock");
  merge->add_option("--out", args->out, "File for chrome://tracing or ui.perfetto.dev")->required();
  for (CLI::App* one : {summary, merge}) {
    one->add_option("FILE", args->files, "Files that --trace wrote; of several processes give the coordinator's too")
        ->required();
    one->add_flag("--json", context.json, "Print one JSON object");
  }
  summary->callback([args, &context] {
    if (const Status s = trace_summary(context, *args); !s.ok()) fail(context, s.error());
  });
  merge->callback([args, &context] {
    if (const Status s = trace_merge(context, *args); !s.ok()) fail(context, s.error());
  });
}
REFIT_COMMAND("trace", setup_trace);

}  // namespace
}  // namespace refit::cli
