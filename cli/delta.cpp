// `refit delta`: the delta codec on safetensors files.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/delta_file.h"

namespace refit::cli {
namespace {
using nlohmann::json;

struct DeltaArgs {
  std::string from, to, out, form = "undoable";
  int threads = 1;
};

json to_json(const DeltaTensor& t) {
  return {{"name", t.name},
          {"dtype", to_string(t.dtype)},
          {"shape", t.shape},
          {"bytes", t.header.shape.bytes()},
          {"wire_bytes", t.wire_bytes},
          {"changed", t.census.changed},
          {"frames",
           {{"unchanged", t.census.unchanged_frames}, {"coded", t.census.coded_frames}, {"raw", t.census.raw_frames}}},
          {"base", t.header.identity.base.hex()},
          {"new", t.header.identity.next.hex()}};
}

struct Sums {
  std::int64_t elements = 0, changed = 0, tensors_changed = 0;
};
Sums sums_of(const DeltaReport& r) {
  Sums s;
  for (const DeltaTensor& t : r.tensors) {
    s.elements += t.header.shape.elements;
    s.changed += t.census.changed;
    s.tensors_changed += t.census.changed != 0 ? 1 : 0;
  }
  return s;
}

void print(const DeltaReport& r, const std::string& path, double seconds, bool per_tensor, const Context& context) {
  const Sums s = sums_of(r);
  const double bits = s.changed == 0 ? 0 : 8 * static_cast<double>(r.wire_bytes) / static_cast<double>(s.changed);
  if (context.json) {
    json out{{"ok", true},
             {"path", path},
             {"form", codec::to_string(r.form)},
             {"tensors", r.tensors.size()},
             {"tensors_changed", s.tensors_changed},
             {"elements", s.elements},
             {"changed", s.changed},
             {"bytes", r.raw_bytes},
             {"wire_bytes", r.wire_bytes},
             {"seconds", seconds}};
    if (per_tensor)
      for (const DeltaTensor& t : r.tensors) out["per_tensor"].push_back(to_json(t));
    fmt::print("{}\n", out.dump(-1, ' ', false, json::error_handler_t::replace));
    return;
  }
  fmt::print(
      "{}: {} delta, {} of {} tensors changed, {} of {} elements ({:.3f} %), {} wire bytes for {} ({:.2f} bits a "
      "change)\n",
      path, codec::to_string(r.form), s.tensors_changed, r.tensors.size(), s.changed, s.elements,
      s.elements == 0 ? 0.0 : 100 * static_cast<double>(s.changed) / static_cast<double>(s.elements), r.wire_bytes,
      r.raw_bytes, bits);
  if (!per_tensor) return;
  for (const DeltaTensor& t : r.tensors)
    if (t.census.changed != 0)
      fmt::print("  {}: {} of {} elements, {} bytes{}\n", t.name, t.census.changed, t.header.shape.elements,
                 t.wire_bytes, t.census.raw_frames != 0 ? fmt::format(", {} frames raw", t.census.raw_frames) : "");
}

// Opens a subcommand's working memory, runs it, prints its report.
template <typename Run>
void finish(const DeltaArgs& args, const std::string& path, bool per_tensor, Context& context, const Run& run) {
  if (const Status isa = kernel::isa_status(); !isa.ok()) return fail(context, isa.error());
  ThreadPool pool(args.threads);
  codec::Workspace work(kernel::Exec{args.threads == 1 ? nullptr : &pool});
  const std::int64_t start = monotonic_ns();
  const Result<DeltaReport> report = run(work);
  if (!report.ok()) return fail(context, report.error());
  print(*report, path, static_cast<double>(monotonic_ns() - start) * 1e-9, per_tensor, context);
}

CLI::App* subcommand(CLI::App& parent, const char* name, const char* help, DeltaArgs& args, Context& context) {
  CLI::App* sub = parent.add_subcommand(name, help);
  sub->add_flag("--json", context.json, "One JSON object on stdout");
  sub->add_option("--threads", args.threads, "Threads for coding")->check(CLI::Range(1, 1024))->capture_default_str();
  return sub;
}

void setup_encode(CLI::App& parent, Context& context) {
  auto args = std::make_shared<DeltaArgs>();
  CLI::App* sub = subcommand(parent, "encode", "What turns the tensors of BASE into those of NEW", *args, context);
  sub->add_option("BASE", args->from, "safetensors file")->required();
  sub->add_option("NEW", args->to, "safetensors file with the same tensors")->required();
  sub->add_option("OUT", args->out, "Delta file to write; appears complete or not at all")->required();
  sub->add_option("--form", args->form,
                  "undoable: needs exactly its base, can be reverted; overwrite: may be applied again")
      ->check(CLI::IsMember({"undoable", "overwrite"}))
      ->capture_default_str();
  sub->callback([args, &context] {
    const codec::Form form = args->form == "undoable" ? codec::Form::kUndoable : codec::Form::kOverwrite;
    finish(*args, args->out, false, context,
           [&](codec::Workspace& work) { return encode_delta(args->from, args->to, args->out, form, work); });
  });
}

void setup_move(CLI::App& parent, Context& context, bool undo) {
  auto args = std::make_shared<DeltaArgs>();
  CLI::App* sub = undo ? subcommand(parent, "revert", "From NEW back to the base of an undoable delta", *args, context)
                       : subcommand(parent, "apply", "From BASE to the result of a delta", *args, context);
  sub->add_option(undo ? "NEW" : "BASE", args->from, "safetensors file; refused by digest when it is another")
      ->required();
  sub->add_option("DELTA", args->to, "Delta file")->required();
  sub->add_option("OUT", args->out, "safetensors file to write; appears complete or not at all")->required();
  sub->callback([args, undo, &context] {
    finish(*args, args->out, false, context,
           [&](codec::Workspace& work) { return apply_delta(args->from, args->to, args->out, undo, work); });
  });
}

void setup_stat(CLI::App& parent, Context& context) {
  auto args = std::make_shared<DeltaArgs>();
  CLI::App* sub = subcommand(parent, "stat", "What a delta file holds, after checking all of it", *args, context);
  sub->add_option("DELTA", args->from, "Delta file")->required();
  sub->callback([args, &context] {
    finish(*args, args->from, true, context, [&](codec::Workspace& work) { return stat_delta(args->from, work); });
  });
}

void setup_delta(CLI::App& app, Context& context) {
  CLI::App* command =
      app.add_subcommand("delta", "Deltas of safetensors files: only what changed, near the entropy bound");
  command->require_subcommand(1);
  setup_encode(*command, context);
  setup_move(*command, context, false);
  setup_move(*command, context, true);
  setup_stat(*command, context);
}

REFIT_COMMAND("delta", setup_delta);

}  // namespace
}  // namespace refit::cli
