// `refit plan`: what would go where, proven, without data.
#include <fmt/format.h>

#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/layouts.h"
#include "cli/plan_links.h"
#include "cli/plan_page.h"
#include "files/files.h"

namespace refit::cli {
namespace {

struct PlanArgs {
  std::string model, from, to, source_layout, target_layout, explain, links, known_case, html;
  PlanSizes sizes;
};

using LayoutPtr = std::shared_ptr<const model::Layout>;

Result<std::pair<LayoutPtr, LayoutPtr>> layouts(const PlanArgs& a) {
  const bool specs = !a.model.empty() || !a.from.empty() || !a.to.empty();
  const bool layout_files = !a.source_layout.empty() || !a.target_layout.empty();
  if (specs == layout_files || (specs && (a.model.empty() || a.from.empty() || a.to.empty())) ||
      (layout_files && (a.source_layout.empty() || a.target_layout.empty())))
    return Error(Code::kInvalid, "give --model, --from and --to, or --source-layout and --target-layout");
  if (specs) {
    REFIT_ASSIGN(LayoutPtr source, files::model_layout(a.model, a.from));
    REFIT_ASSIGN(LayoutPtr target, files::model_layout(a.model, a.to));
    return std::pair(std::move(source), std::move(target));
  }
  REFIT_ASSIGN(LayoutPtr source, layout_file(a.source_layout));
  REFIT_ASSIGN(LayoutPtr target, layout_file(a.target_layout));
  return std::pair(std::move(source), std::move(target));
}

// Format -> number of matrices that the sources quantise.
nlohmann::json quantised_json(const plan::World& w) {
  std::map<std::string_view, std::int64_t> formats;
  for (const plan::QuantTensor& t : w.quantised) ++formats[t.format->name];
  return formats;
}

nlohmann::json transforms_json(const plan::World& w) {
  nlohmann::json out = nlohmann::json::array();
  for (const plan::Transform& t : w.transforms)
    out.push_back({{"tensor", w.catalogue->tensors[t.tensor.value].name},
                   {"undo", t.undo.empty() ? nlohmann::json() : nlohmann::json(t.undo)},
                   {"apply", t.apply.empty() ? nlohmann::json() : nlohmann::json(t.apply)},
                   {"at", "source"},
                   {"wire", to_string(w.catalogue->tensors[t.tensor.value].dtype)}});
  return out;
}

// Written link by link: the matrix of thousands of hosts does not become a document in memory.
nlohmann::json cost_json(const plan::Cost& c) {
  constexpr std::size_t kPorts = 64;
  nlohmann::json ports = nlohmann::json::array();
  for (std::size_t i = 0; i < std::min(kPorts, c.ports.size()); ++i) {
    const plan::Port& p = c.ports[i];
    ports.push_back({{"name", p.name}, {"direction", p.out ? "out" : "in"}, {"local", p.local}, {"bytes", p.bytes},
                     {"bytes_per_second", p.rate}, {"seconds", p.seconds}});
  }
  return {{"bound_seconds", c.bound_s}, {"expected_seconds", c.expected_s}, {"bytes_network", c.bytes_network},
          {"bytes_local", c.bytes_local}, {"busiest", ports.empty() ? nlohmann::json() : ports.front()}, {"ports", ports}};
}

// What was asked beside the plan itself.
struct Beside {
  std::optional<plan::Cost> cost;
  std::optional<PublishedCase> published;
};

void print_json(const plan::World& w, const Beside& beside, double seconds) {
  nlohmann::json out{{"ok", true},
                     {"bytes_needed", w.bytes_needed},
                     {"bytes_moved", w.bytes_moved},
                     {"bytes_local", w.bytes_local},
                     {"segments", w.segments},
                     {"buckets", w.buckets},
                     {"coverage", w.coverage},
                     {"digest", w.id.hex()},
                     {"plan_id", w.id.hex()},
                     {"seconds", seconds},
                     {"bound_bytes", w.bound_bytes},
                     {"bucket_limit", w.bucket_limit},
                     {"unwanted", w.unwanted},
                     {"transforms", transforms_json(w)},
                     {"quantised", quantised_json(w)},
                     {"links_by", w.by_host ? "host" : "rank"}};
  if (beside.cost) out["cost"] = cost_json(*beside.cost);
  if (const auto& p = beside.published)
    out["published"] = {{"case", p->name}, {"seconds", p->published}, {"source", p->source}, {"assumed", p->assumed}};
  std::string head = out.dump();
  head.pop_back();
  fmt::print("{},\"links\":[", head);
  for (std::size_t i = 0; i < w.links.size(); ++i) {
    const plan::Link& l = w.links[i];
    if (w.by_host)
      fmt::print("{}{{\"from\":{},\"to\":{},\"bytes\":{}}}", i ? "," : "", nlohmann::json(w.hosts[l.from]).dump(),
                 nlohmann::json(w.hosts[l.to]).dump(), l.bytes);
    else
      fmt::print("{}{{\"from\":{},\"to\":{},\"bytes\":{}}}", i ? "," : "", l.from, l.to, l.bytes);
  }
  fmt::print("]}}\n");
}

void print_beside(const Beside& b) {
  if (b.cost && !b.cost->ports.empty()) {
    const plan::Port& p = b.cost->ports.front();
    fmt::print("  {:<14} {:.3f} s: {}{} {} {} at {:.0f} Gb/s\n", "lower bound", b.cost->bound_s, p.name, p.local ? " (local)" : "",
               p.out ? "sends" : "receives", human_bytes(p.bytes), p.rate * 8e-9);
    fmt::print("  {:<14} {:.3f} s\n", "expected", b.cost->expected_s);
  }
  if (!b.published) return;
  fmt::print("  {:<14} {} s ({})\n", "published", b.published->published, b.published->source);
  fmt::print("  {:<14} {}\n", "assumed here", b.published->assumed);
}

void print_table(const plan::World& w, const model::Layout& source, const model::Layout& target, double seconds) {
  constexpr std::size_t kLinksShown = 16;
  fmt::print("plan {}\n", w.id.hex());
  fmt::print("  {:<14} {} ranks, {} tensors\n", "source", source.world(), source.catalogue().tensors.size());
  fmt::print("  {:<14} {} ranks in {} instance{}, {} tensors\n", "target", target.world(), target.instances(),
             target.instances() == 1 ? "" : "s", target.catalogue().tensors.size());
  fmt::print("  {:<14} every byte of every target rank has a source and is written once\n", "coverage 1.0");
  fmt::print("  {:<14} {} ({} bytes)\n", "needed", human_bytes(w.bytes_needed), w.bytes_needed);
  fmt::print("  {:<14} {} ({} bytes), {} of it inside a host\n", "moved", human_bytes(w.bytes_moved), w.bytes_moved,
             human_bytes(w.bytes_local));
  fmt::print("  {:<14} {} segments in {} buckets of at most {}\n", "in", w.segments, w.buckets,
             human_bytes(w.bucket_limit));
  fmt::print("  {:<14} {} ({} bytes): the most that one rank must send or receive\n", "bound",
             human_bytes(w.bound_bytes), w.bound_bytes);
  if (const std::string stages = plan::describe_stages(w); !stages.empty()) fmt::print("  {:<14} {}\n", "stages", stages);
  if (!w.unwanted.empty())
    fmt::print("  {:<14} {} tensors, e.g. {}\n", "unwanted", w.unwanted.size(), w.unwanted.front());
  fmt::print("  {:<14} {:.3f} s\n", "planned in", seconds);
  fmt::print("  links by {} ({} in all)\n", w.by_host ? "host" : "rank", w.links.size());
  for (std::size_t i = 0; i < std::min(kLinksShown, w.links.size()); ++i) {
    const plan::Link& l = w.links[i];
    const auto name = [&](std::uint32_t n) { return w.by_host ? w.hosts[n] : std::to_string(n); };
    fmt::print("    {:>8} -> {:<8} {}\n", name(l.from), name(l.to), human_bytes(l.bytes));
  }
  if (w.links.size() > kLinksShown) fmt::print("    … (all with --json)\n");
}

// A published case is a model, two layouts and links by one name.
Result<std::optional<PublishedCase>> take_case(PlanArgs& args) {
  if (args.known_case.empty()) return std::optional<PublishedCase>{};
  if (!args.model.empty() || !args.from.empty() || !args.to.empty() || !args.source_layout.empty() ||
      !args.target_layout.empty())
    return Error(Code::kInvalid, "--case names model and layouts: give neither --model, --from, --to nor layout files");
  REFIT_ASSIGN(PublishedCase known, published_case(args.known_case));
  args.model = known.model, args.from = known.from, args.to = known.to;
  return std::optional(std::move(known));
}

Result<std::optional<plan::Cost>> price(const plan::World& world, const PlanArgs& args,
                                        const std::optional<PublishedCase>& known) {
  if (args.links.empty() && !known) return std::optional<plan::Cost>{};
  REFIT_ASSIGN(const plan::LinkTable links,
               args.links.empty() ? Result<plan::LinkTable>(known->links) : read_links(args.links));
  REFIT_ASSIGN(plan::Cost cost, plan::cost_of(world, links));
  return std::optional(std::move(cost));
}

Status run(PlanArgs args, const Context& context) {
  Beside beside;
  REFIT_ASSIGN(beside.published, take_case(args));

  REFIT_ASSIGN(plan::Options options, args.sizes.options());
  options.values = plan::Values::kStages;
  const std::int64_t start = monotonic_ns();
  REFIT_ASSIGN(const auto sides, layouts(args));
  if (!args.explain.empty()) {
    REFIT_ASSIGN(const std::string text, plan::explain(*sides.first, *sides.second, options, args.explain));
    if (context.json)
      fmt::print("{}\n", nlohmann::json{{"ok", true}, {"tensor", args.explain}, {"explain", text}}.dump());
    else
      fmt::print("{}", text);
    return {};
  }
  REFIT_ASSIGN(const plan::World world, plan::make_world(*sides.first, *sides.second, options));
  const double seconds = static_cast<double>(monotonic_ns() - start) * 1e-9;
  REFIT_ASSIGN(beside.cost, price(world, args, beside.published));
  if (!args.html.empty()) {
    const std::string title = args.model.empty() ? "refit plan " + world.id.hex().substr(0, 12)
                                                 : args.model + ": " + args.from + " to " + args.to;
    REFIT_TRY(write_plan_page(args.html, {title, world, beside.cost, beside.published}));
  }
  if (context.json) {
    print_json(world, beside, seconds);
  } else {
    print_table(world, *sides.first, *sides.second, seconds);
    print_beside(beside);
  }
  return {};
}

void setup_plan(CLI::App& app, Context& context) {
  CLI::App* command = app.add_subcommand("plan", "What would go where between two layouts, proven, without data");
  auto args = std::make_shared<PlanArgs>();
  command->add_option("--model", args->model,
                      "Checkpoint directory, config.json, or a built-in name such as qwen3-30b-a3b@layers=1");
  command->add_option("--from", args->from, "SPEC of the source, e.g. fsdp=2,tp=2");
  command->add_option("--to", args->to, "SPEC of the target, e.g. vllm:tp=4,replicas=2");
  command->add_option("--source-layout", args->source_layout,
                      "Layout file of the source, instead of --model and --from");
  command->add_option("--target-layout", args->target_layout, "Layout file of the target");
  command->add_option("--explain", args->explain, "Show every piece of this tensor instead");
  command->add_option("--links", args->links,
                      "Link table (JSON): rates of cards and of links inside a host; adds a lower bound, an expected time "
                      "and the busiest port");
  command->add_option("--case", args->known_case,
                      "A published case instead of a model and layouts: deepseek-v3, qwen3-235b, kimi-k2");
  command->add_option("--html", args->html, "Write a page with the byte matrix and how long each port is busy");
  args->sizes.declare(*command);
  command->add_flag("--json", context.json, "One JSON object on stdout");
  command->callback([args, &context] {
    if (Status s = run(*args, context); !s.ok()) fail(context, s.error());
  });
}

REFIT_COMMAND("plan", setup_plan);

}  // namespace
}  // namespace refit::cli
