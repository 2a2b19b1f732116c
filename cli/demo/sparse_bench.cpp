// refit bench sparse: what changed against everything, between real processes over loopback, in one run.
#include <algorithm>

#include "bench/bench.h"
#include "cli/demo/fleet.h"
#include "cli/demo/model_source.h"

namespace refit::cli {
namespace {

using nlohmann::json;

// Medians over the timed versions; bytes of the last one.
struct SparseRun {
  double total = 0, seal = 0, encode = 0, stage = 0, apply = 0, pause = 0, base = 0;
  double bytes_wire = 0, changed = 0, bits = 0;
};

double middle(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

Status trained(Fleet& fleet, int step) {
  const std::vector<json> answers = fleet.ask("step " + std::to_string(step), Role::kSource, Deadline::after_s(120));
  for (std::size_t m = 0; m < fleet.sources(); ++m)
    if (!answers[m].is_object() || !answers[m].value("ok", false))
      return Error(Code::kPeerLost, "did not train").at_peer(fleet.name(m).to_string()).at_stage("train");
  fleet.stepped(step);
  fleet.synchronizer().mark_stale();
  return {};
}

Result<SparseRun> run_versions(const DemoOptions& d, const std::shared_ptr<const model::Layout>& source,
                               const std::shared_ptr<const model::Layout>& target, int repeats) {
  REFIT_ASSIGN(const auto fleet, Fleet::start(d, source, target));
  REFIT_TRY(fleet->synchronizer().init_communicator());
  std::map<std::string, std::vector<double>> took;
  SparseRun out;
  constexpr int kUntimed = 2;  // the dense version, and the first that touches all pages of the second kind
  for (int step = 0; step < kUntimed + repeats; ++step) {
    if (step > 0) REFIT_TRY(trained(*fleet, step));
    REFIT_ASSIGN(const sync::SyncReport report, fleet->synchronizer().sync_weights(step));
    if (!report.ok())
      return report.round.error ? *report.round.error
                                : Error(Code::kInternal, "the round did not commit and named no error");
    if (step < kUntimed) continue;
    std::map<std::string, double> slowest;
    double wire = 0, elements = 0, changed = 0, delta_bytes = 0, delta_changed = 0;
    for (const json& j : fleet->ask("report", std::nullopt, Deadline::after_s(60))) {
      if (!j.is_object()) continue;
      for (const char* key : {"seal_ns", "stage_ns", "unpack_ns", "base_ns"})
        slowest[key] = std::max(slowest[key], j.value(key, 0.0) * 1e-9);
      const json& e = j["encoded"];
      slowest["encode"] = std::max(slowest["encode"], (e.value("encode_ns", 0.0) + e.value("pack_ns", 0.0)) * 1e-9);
      wire += e.value("bytes_wire", 0.0);
      elements += e.value("elements", 0.0);
      changed += e.value("changed", 0.0);
      delta_bytes += e.value("delta_bytes", 0.0);
      delta_changed += e.value("delta_changed", 0.0);
    }
    for (const auto& [key, seconds] : slowest) took[key].push_back(seconds);
    took["total"].push_back(report.seconds);
    took["pause"].push_back(static_cast<double>(report.round.max_pause_ns) * 1e-9);
    out.bytes_wire = wire;
    out.changed = elements > 0 ? changed / elements : 0;
    out.bits = delta_changed > 0 ? 8 * delta_bytes / delta_changed : 0;
  }
  // Verified after timing: every rank against the pure function that made the weights.
  const std::vector<json> checks = fleet->ask("check", Role::kTarget, Deadline::after_s(300));
  for (std::size_t m = fleet->sources(); m < fleet->size(); ++m)
    if (!checks[m].is_object() || !checks[m].value("ok", false))
      return Error(Code::kCorrupt, "does not hold the weights").at_peer(fleet->name(m).to_string());
  REFIT_TRY(fleet->stop());
  out.total = middle(took["total"]);
  out.pause = middle(took["pause"]);
  out.seal = middle(took["seal_ns"]);
  out.stage = middle(took["stage_ns"]);
  out.apply = middle(took["unpack_ns"]);
  out.base = middle(took["base_ns"]);
  out.encode = middle(took["encode"]);
  return out;
}

// [TRANSPORT [MODEL [SOURCE [TARGET]]]]
Result<std::vector<bench::Row>> bench_sparse(const bench::Options& options) {
  const auto argument = [&](std::size_t i, const char* otherwise) {
    return options.arguments.size() > i ? options.arguments[i] : std::string(otherwise);
  };
  DemoOptions d;
  d.transport = argument(0, "tcp");
  d.model = argument(1, "llama-3.1-8b@layers=1");
  d.source = argument(2, "fsdp=4");
  d.target = argument(3, "vllm:tp=2");
  d.threads = options.threads;
  d.streams = 1;
  d.bucket_bytes = 4 << 20;
  d.proof_every = 1000;
  d.share = 0.01;
  REFIT_ASSIGN(const ModelSource model, ModelSource::open(d.model));
  REFIT_ASSIGN(const auto source, model.layout(d.source));
  REFIT_ASSIGN(const auto target, model.layout(d.target));
  d.encoding = "xor";
  REFIT_ASSIGN(const MemoryBill bill, make_bill(d, *source, *target));
  if (bill.total() > bill.have)
    return Error(Code::kExhausted, "bench sparse does not fit in memory; name a smaller model")
        .amounts(bill.total(), bill.have);
  d.encoding = "raw";
  REFIT_ASSIGN(const SparseRun dense, run_versions(d, source, target, options.repeats));
  d.encoding = "xor";
  REFIT_ASSIGN(const SparseRun delta, run_versions(d, source, target, options.repeats));
  const std::string name = "sparse." + d.transport + ".1%";
  std::vector<bench::Row> rows;
  rows.push_back({name + ".total", delta.total, "s", dense.total, delta.total / dense.total,
                  "sync_weights, all of it; dense in the same run"});
  rows.push_back({name + ".wire", delta.bytes_wire * 1e-6, "MB", dense.bytes_wire * 1e-6,
                  delta.bytes_wire / dense.bytes_wire, "bytes that leave the sources; dense in the same run"});
  rows.push_back({name + ".changed", delta.changed * 100, "%", {}, {}, "elements that differ from the base"});
  rows.push_back({name + ".bits", delta.bits, "bits", {}, {}, "payload per changed element"});
  rows.push_back({name + ".publish", delta.seal, "s", dense.seal, {}, "the source's seal scan"});
  rows.push_back({name + ".encode", delta.encode, "s", {}, {}, "packing and comparing, slowest source"});
  rows.push_back({name + ".stage", delta.stage, "s", dense.stage, {}, "from the first request to the vote"});
  rows.push_back({name + ".apply", delta.apply, "s", {}, {}, "base out of the shadow, delta, back with digests"});
  rows.push_back(
      {name + ".pause", delta.pause, "s", dense.pause, {}, "gate shut: all live bytes are copied, either way"});
  rows.push_back({name + ".base", delta.base, "s", {}, {}, "moving the base, after the round"});
  return rows;
}

const bench::Registration sparse(
    "sparse", "Refit of what changed (1 %) beside a dense one: [TRANSPORT [MODEL [SOURCE [TARGET]]]]", bench_sparse);

}  // namespace
}  // namespace refit::cli
