#include "observe/table.h"

#include <array>
#include <cstdio>

#include "observe/spans.h"

namespace refit::observe {
namespace {

using enum Metric;
using enum Type;
constexpr bool kHub = true, kAgent = false;

constexpr std::array<Description, kMetricCount> kTable = {{
    {kVersion, "refit_version", kGauge, "", "", kHub, "Newest committed version number; 0 before the first."},
    {kStep, "refit_step", kGauge, "", "", kHub, "Training step of the newest committed version; -1 before the first."},
    {kStale, "refit_stale", kGauge, "", "", kHub,
     "1 while some member of the membership does not serve the newest published weights, as is_stale says."},
    {kReplicaVersion, "refit_replica_version", kGauge, "", "replica", kHub,
     "Version that all ranks of the replica hold; 0 when they hold none or different ones."},
    {kReplicaFenced, "refit_replica_fenced", kGauge, "", "replica", kHub, "1 while the replica may serve nothing."},
    {kMemberConnected, "refit_member_connected", kGauge, "", "member", kHub, "1 while the coordinator hears the member."},
    {kRounds, "refit_rounds_total", kCounter, "", "outcome", kHub,
     "Rounds that ended, by outcome: committed, aborted, committed_incomplete, in_doubt."},
    {kRoundSeconds, "refit_round_seconds", kHistogram, "seconds", "", kHub, "One call of sync_weights, whole."},
    {kRoundPhaseSeconds, "refit_round_phase_seconds", kHistogram, "seconds", "phase", kHub,
     "Parts of a round as the coordinator sees them."},
    {kRoundPauseSeconds, "refit_round_pause_seconds", kHistogram, "seconds", "", kHub,
     "Longest pause of any replica in a committed round."},
    {kRetries, "refit_retries_total", kCounter, "", "", kHub, "Rounds begun after one that did not commit whole."},
    {kMemberLosses, "refit_member_losses_total", kCounter, "", "member", kHub,
     "Times that a member which had been heard was gone, or was another process, at the next look."},
    {kEvictions, "refit_evictions_total", kCounter, "", "member", kHub,
     "Times that a round went on without the member (on_target_loss: continue)."},
    {kControlDropped, "refit_control_messages_dropped_total", kCounter, "", "reason", kHub,
     "Control messages that changed nothing: foreign_job, wrong_party, wrong_key, old_epoch, old_incarnation, old_txn, "
     "unexpected."},
    {kControlRefused, "refit_control_connections_refused_total", kCounter, "", "", kHub,
     "Connections that the coordinator's listener turned away before a message: no key, an unknown key, too many, too "
     "slow."},
    {kCoordinatorQueue, "refit_coordinator_queue_depth", kGauge, "", "queue", kHub,
     "What waits at the coordinator: journal records that are not durable yet, verifications in hand."},
    {kMemberVersion, "refit_member_version", kGauge, "", "member", kAgent, "Version number that this rank holds."},
    {kMemberFenced, "refit_member_fenced", kGauge, "", "member", kAgent, "1 while this rank may serve nothing."},
    {kMemberBusy, "refit_member_busy", kGauge, "", "member", kAgent, "1 while a round is in hand on this rank."},
    {kPhaseSeconds, "refit_phase_seconds", kHistogram, "seconds", "member,phase", kAgent,
     "Parts of a round on this rank."},
    {kBytesNeeded, "refit_bytes_needed_total", kCounter, "bytes", "member", kAgent,
     "By committed versions: each distinct byte that a target was due once; of a source, what it sends, once."},
    {kBytesMoved, "refit_bytes_moved_total", kCounter, "bytes", "member", kAgent,
     "By committed versions: the plan's bytes, summed over recipients. Equal to needed with exact routing at a target."},
    {kBytesWire, "refit_bytes_wire_total", kCounter, "bytes", "member,direction", kAgent,
     "Payload that the mover sent (out) or took (in), lost rounds included. Mapped movers (shm) count what was read."},
    {kBytesInstalled, "refit_bytes_installed_total", kCounter, "bytes", "member", kAgent,
     "Bytes that commits wrote over live weights, unchanged ones included."},
    {kBuckets, "refit_buckets_total", kCounter, "", "member,form", kAgent,
     "Buckets that a source sent with deltas on, by form: unchanged, delta, raw."},
    {kBitsPerChanged, "refit_bits_per_changed_element", kGauge, "", "member", kAgent,
     "Payload bits of the last round's deltas for each element that they change."},
    {kMemoryUsed, "refit_memory_used_bytes", kGauge, "bytes", "member", kAgent, "Memory that the rank holds for Refit."},
    {kMemoryPeak, "refit_memory_peak_bytes", kGauge, "bytes", "member", kAgent, "The most that it held."},
    {kMemoryLimit, "refit_memory_limit_bytes", kGauge, "bytes", "member", kAgent, "The most that it may hold."},
    {kMemberQueue, "refit_member_queue_depth", kGauge, "", "member", kAgent,
     "Long tasks (plan, seal, stage, copy, verify) that wait or run on this rank."},
    {kReconnects, "refit_reconnects_total", kCounter, "", "member", kAgent,
     "Times that the rank opened a new control connection because the coordinator was gone."},
    {kFramesForeign, "refit_frames_foreign_total", kCounter, "", "member", kAgent,
     "Frames of another job, round or incarnation: dropped."},
    {kFramesBad, "refit_frames_bad_total", kCounter, "", "member", kAgent,
     "Frames that failed a check (length, range, tag): dropped, their connection cut."},
    {kFramesDuplicate, "refit_frames_duplicate_total", kCounter, "", "member", kAgent,
     "Frames of buckets that had already arrived: dropped."},
    {kConnectionsRefused, "refit_connections_refused_total", kCounter, "", "member", kAgent,
     "Connections that the mover cut because they proved nothing in time, or were too many."},
    {kTransportThreads, "refit_transport_threads", kGauge, "", "member", kAgent, "Threads that the mover runs."},
    {kBuild, "refit_build_info", kGauge, "", "version", kAgent, "1; the label says which Refit this is."},
}};

constexpr std::array kBounds = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
                                1.0,   2.5,    5.0,   10.0, 25.0,  50.0, 100.0, 250.0};

std::string code(std::string_view text) { return text.empty() ? "" : "`" + std::string(text) + "`"; }

void rows(std::string& out, bool coordinator) {
  out += "| name | type | unit | labels | meaning |\n|---|---|---|---|---|\n";
  for (const Description& d : kTable) {
    if (d.coordinator != coordinator) continue;
    out += "| `" + std::string(d.name) + "` | " + std::string(to_string(d.type)) + " | " + std::string(d.unit) + " | " +
           code(d.labels) + " | " + std::string(d.help) + " |\n";
  }
}

void phases(std::string& out, Side side) {
  for (const SpanKind& k : span_kinds())
    if (k.side == side)
      out += "| " + std::string(to_string(side)) + " | `" + std::string(k.name) + "` | " + std::string(k.means) + " |\n";
}

}  // namespace

std::string_view to_string(Type type) {
  constexpr std::array<std::string_view, 3> kNames = {"counter", "gauge", "histogram"};
  return kNames[static_cast<std::size_t>(type)];
}

std::span<const Description> table() { return kTable; }
const Description& describe(Metric metric) { return kTable[static_cast<std::size_t>(metric)]; }
std::span<const double> second_bounds() { return kBounds; }

std::string metrics_page() {
  std::string out =
      "# Metrics\n\n"
      "<!-- Printed by `refit metrics` from src/observe/table.cpp; a test compares. -->\n\n"
      "`refit coordinator`, `publish`, `serve` and `demo` take `--metrics HOST:PORT` and answer `GET /metrics` there in Prometheus' text\n"
      "format. Port 0 lets the system choose; the event `metrics` tells the URL. In a demo the coordinator listens at PORT and the\n"
      "processes of ranks at the ports after it. A loopback address needs nothing; any other needs `--metrics-token FILE` (the scraper\n"
      "sends it as `Authorization: Bearer …`; Prometheus: `authorization: {credentials_file: FILE}`) or, spelled out,\n"
      "`--metrics-public`. The text holds names, states and numbers of the job, no key and no weights; it travels in the clear.\n\n"
      "Values of an agent are those of its last look, at most 20 ms before unless its thread is inside a copy; counters begin at 0 with\n"
      "each process. [examples/operate/grafana.json](../examples/operate/grafana.json) is a dashboard over these names,\n"
      "[examples/operate/alerts.yml](../examples/operate/alerts.yml) a set of alerts.\n\n"
      "## Coordinator\n\n";
  rows(out, true);
  out += "\n## Agents (one a rank)\n\n";
  rows(out, false);
  out += "\n## Phases\n\nThe `phase` of `refit_round_phase_seconds` (coordinator) and of `refit_phase_seconds` (source, target); the same\n"
         "words name the spans of `--trace`.\n\n| side | phase | time |\n|---|---|---|\n";
  for (const Side side : {Side::kCoordinator, Side::kSource, Side::kTarget}) phases(out, side);
  out += "| source, target | `plan` | this rank's part of the plan, when layouts or members changed |\n"
         "| source | `digest` | stages, snapshot and digest alone, without the wait for the trainer |\n"
         "| source | `pack`, `encode`, `send` | with movers that send |\n"
         "| target | `verify` | within `transfer`: the staged bytes against what was sealed, a re-read on proof versions |\n"
         "| target | `unpack` | within `transfer`: checking and applying deltas |\n"
         "| target | `apply` | within `copy`: the copy and its digest alone |\n\n"
         "Buckets of the histograms, in seconds: ";
  for (std::size_t i = 0; i < kBounds.size(); ++i) {
    char text[32];
    std::snprintf(text, sizeof text, "%g", kBounds[i]);
    out += (i == 0 ? "" : ", ") + std::string(text);
  }
  return out + ".\n";
}

}  // namespace refit::observe
