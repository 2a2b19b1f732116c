// `refit bench NAME`: figures, each beside its ceiling measured in the same run.
#include "bench/bench.h"

#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"

namespace refit::cli {
namespace {

nlohmann::json number(const std::optional<double>& v) { return v ? nlohmann::json(*v) : nlohmann::json(nullptr); }

void print_json(const std::vector<bench::Row>& rows) {
  nlohmann::json list = nlohmann::json::array();
  for (const bench::Row& r : rows)
    list.push_back({{"name", r.name},
                    {"value", r.value},
                    {"unit", r.unit},
                    {"ceiling", number(r.ceiling)},
                    {"ratio", number(r.ratio)}});
  fmt::print("{}\n", nlohmann::json{{"machine", bench::machine()}, {"rows", list}}.dump());
}

void print_table(const std::vector<bench::Row>& rows) {
  fmt::print("{}\n{:<28} {:>10} {:<8} {:>10} {:>7}  {}\n", bench::machine(), "row", "value", "unit", "ceiling", "ratio",
             "ceiling is");
  for (const bench::Row& r : rows)
    fmt::print("{:<28} {:>10.3f} {:<8} {:>10} {:>7}  {}\n", r.name, r.value, r.unit,
               r.ceiling ? fmt::format("{:.3f}", *r.ceiling) : "-", r.ratio ? fmt::format("{:.3f}", *r.ratio) : "-",
               r.note);
}

void setup_bench(CLI::App& app, Context& context) {
  CLI::App* command = app.add_subcommand("bench", "Figures, each beside its ceiling measured in the same run");
  command->require_subcommand(1);
  for (const bench::Entry& entry : bench::all()) {
    auto options = std::make_shared<bench::Options>();
    auto mebibytes = std::make_shared<std::int64_t>(options->bytes >> 20);
    CLI::App* sub = command->add_subcommand(entry.name, entry.help);
    sub->add_flag("--json", context.json, "One JSON object on stdout");
    sub->add_option("--threads", options->threads, "Threads of the pool")
        ->check(CLI::Range(1, 1024))
        ->capture_default_str();
    sub->add_option("--mib", *mebibytes, "Size of each buffer in MiB")
        ->check(CLI::Range(16, 1 << 20))
        ->capture_default_str();
    sub->add_option("--repeats", options->repeats, "Timed runs; the median counts")
        ->check(CLI::Range(1, 1000))
        ->capture_default_str();
    sub->add_option("arguments", options->arguments, "What this bench takes besides");
    sub->callback([&context, options, mebibytes, run = entry.run] {
      options->bytes = *mebibytes << 20;
      const Result<std::vector<bench::Row>> rows = run(*options);
      if (!rows) return fail(context, rows.error());
      context.json ? print_json(*rows) : print_table(*rows);
    });
  }
}

REFIT_COMMAND("bench", setup_bench);

}  // namespace
}  // namespace refit::cli
