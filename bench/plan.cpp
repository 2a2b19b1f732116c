// `refit bench plan`: how long planning takes, on layouts from rules. No ceiling: nothing else does this work.
#include <algorithm>

#include "bench/bench.h"
#include "model/model.h"
#include "plan/plan.h"

namespace refit::bench {
namespace {

struct PlanCase {
  const char* name;
  const char* model;
  const char* from;
  const char* to;
  bool rank;             // one target rank's own plan too
  bool partial = false;  // the targets leave draft layers out
};
constexpr PlanCase kCases[] = {
    {"plan.qwen3-30b-a3b", "qwen3-30b-a3b", "fsdp=64,tp=4", "vllm:tp=4,dp=32,ep=128,replicas=2", true},
    {"plan.deepseek-v3", "deepseek-v3", "megatron:pp=16,ep=16,first=4,last=1", "vllm:tp=32,dp=8,draft=skip", true,
     true},
    {"plan.qwen3-30b-a3b.10k", "qwen3-30b-a3b", "fsdp=2500,tp=4", "vllm:tp=4,replicas=2500", false},
};

// Layouts of 256 ranks: one rank's holdings, and all ranks' one after the other.
struct LayoutCase {
  const char* name;
  const char* model;
  const char* spec;
};
constexpr LayoutCase kLayouts[] = {
    {"layout.deepseek-v3", "deepseek-v3", "megatron:pp=16,ep=16,first=4,last=1"},
    {"layout.deepseek-v3.engine", "deepseek-v3", "vllm:tp=32,dp=8,draft=skip"},
    {"layout.gpt-oss-120b", "gpt-oss-120b", "megatron:pp=4,ep=64"},
    {"layout.gpt-oss-120b.engine", "gpt-oss-120b", "vllm:tp=8,dp=8,replicas=4"},
};

plan::Options options_of(const PlanCase& c) {
  plan::Options out;
  out.partial = c.partial;
  return out;
}

// Which rows: all, or those whose name begins with one of the words given.
bool wanted(const Options& options, const std::string& row) {
  return options.arguments.empty() ||
         std::ranges::any_of(options.arguments, [&](const std::string& a) { return row.starts_with(a); });
}

Row seconds(std::string name, double value, std::string note) {
  return {std::move(name), value, "s", std::nullopt, std::nullopt, std::move(note)};
}

// Layouts are made anew for each run, outside the clock: their patterns and places, made on first use, are inside it.
template <typename Work>
Result<double> timed(const PlanCase& c, int repeats, const Work& work) {
  REFIT_ASSIGN(const std::string config, model::builtin_config(c.model));
  std::vector<double> all;
  for (int i = 0; i < repeats; ++i) {
    REFIT_ASSIGN(const auto source, model::rule_layout(config, c.from));
    REFIT_ASSIGN(const auto target, model::rule_layout(config, c.to));
    const std::int64_t start = monotonic_ns();
    REFIT_TRY(work(*source, *target));
    all.push_back(static_cast<double>(monotonic_ns() - start) * 1e-9);
  }
  std::sort(all.begin(), all.end());
  return all[all.size() / 2];
}

// From the configuration's text on: reading it, making the layout, expanding.
Status bench_layouts(const Options& options, std::vector<Row>& rows) {
  for (const LayoutCase& c : kLayouts) {
    REFIT_ASSIGN(const std::string config, model::builtin_config(c.model));
    for (const bool all : {false, true}) {
      if (!wanted(options, std::string(c.name) + (all ? ".world" : ".rank"))) continue;
      std::vector<double> times;
      for (int i = 0; i < options.repeats; ++i) {
        const std::int64_t start = monotonic_ns();
        REFIT_ASSIGN(const auto layout, model::rule_layout(config, c.spec));
        std::size_t holdings = 0;
        for (std::uint32_t r = 0; r < (all ? layout->world() : 1); ++r) {
          REFIT_ASSIGN(const model::RankLayout rank, layout->expand(Rank(r)));
          holdings += rank.holdings.size();
        }
        times.push_back(static_cast<double>(monotonic_ns() - start) * 1e-9);
        if (holdings == 0) return Error(Code::kInternal, std::string(c.name) + ": nothing is held");
      }
      std::sort(times.begin(), times.end());
      rows.push_back(seconds(std::string(c.name) + (all ? ".world" : ".rank"), times[times.size() / 2], c.spec));
    }
  }
  return {};
}

Result<std::vector<Row>> bench_plan(const Options& options) {
  std::vector<Row> rows;
  REFIT_TRY(bench_layouts(options, rows));
  for (const PlanCase& c : kCases) {
    const std::string what = std::string(c.from) + " -> " + c.to;
    if (c.rank) {
      for (const plan::Side side : {plan::Side::kTarget, plan::Side::kSource}) {
        const std::string name = std::string(c.name) + (side == plan::Side::kTarget ? ".rank" : ".source_rank");
        if (!wanted(options, name)) continue;
        std::int64_t bytes = 0;
        REFIT_ASSIGN(const double t,
                     timed(c, options.repeats, [&](const model::Layout& source, const model::Layout& target) -> Status {
                       REFIT_ASSIGN(const plan::RankPlan p,
                                    plan::make_plan(source, target, options_of(c), side, Rank(0)));
                       bytes = p.bytes_moved;
                       return {};
                     }));
        if (bytes == 0) return Error(Code::kInternal, std::string(c.name) + ": rank 0 moves nothing");
        rows.push_back(seconds(name, t, what));
      }
    }
    if (!wanted(options, std::string(c.name) + ".world")) continue;
    REFIT_ASSIGN(
        const double t,
        timed(c, c.rank ? options.repeats : 1, [&](const model::Layout& source, const model::Layout& target) -> Status {
          REFIT_ASSIGN(const plan::World w, plan::make_world(source, target, options_of(c)));
          if (w.bytes_needed != w.bytes_moved)
            return Error(Code::kInternal, std::string(c.name) + ": moved differs from needed");
          return {};
        }));
    rows.push_back(seconds(std::string(c.name) + ".world", t, what));
  }
  return rows;
}

const Registration r("plan",
                     "Layouts from rules, and plans between them: one rank's own, the world's, 10,000 + 10,000 ranks: "
                     "[BEGINNING OF ROW…]",
                     bench_plan);

}  // namespace
}  // namespace refit::bench
