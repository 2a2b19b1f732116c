// The table of metrics, the book and its text, spans, watchers and the trace file.
#include "observe/observe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <regex>
#include <set>
#include <sstream>

namespace refit::observe {
namespace {

using testing::HasSubstr;
using testing::Not;

std::string file(const std::string& path) {
  std::ifstream in(path);
  std::stringstream all;
  all << in.rdbuf();
  return all.str();
}

const Txn kRound{{1, 2}, Epoch(3), 7};
const MemberName kTarget{Role::kTarget, 1, 2}, kSource{Role::kSource, 0, 0}, kHub{Role::kClient, 0, 0};

TEST(Table, PageIsTheOneInTheDocs) {
  EXPECT_TRUE(file(std::string(REFIT_SOURCE_DIR) + "/docs/metrics.md") == metrics_page())
      << "docs/metrics.md differs: refit metrics writes it";
}

TEST(Table, NamesFollowPrometheusRules) {
  std::set<std::string_view> seen;
  std::size_t i = 0;
  for (const Description& d : table()) {
    const std::string name(d.name);
    EXPECT_EQ(static_cast<std::size_t>(d.metric), i++) << name;
    EXPECT_TRUE(std::regex_match(name, std::regex("refit_[a-z][a-z0-9_]*"))) << name;
    EXPECT_TRUE(seen.insert(d.name).second) << name;
    EXPECT_EQ(name.ends_with("_total"), d.type == Type::kCounter) << name;
    const std::string stem = d.type == Type::kCounter ? name.substr(0, name.size() - 6) : name;
    EXPECT_TRUE(d.unit.empty() || stem.ends_with("_" + std::string(d.unit)) || stem.find("_" + std::string(d.unit) + "_") != std::string::npos) << name;
    for (const std::string unit : {"seconds", "bytes"}) {
      EXPECT_EQ(stem.find("_" + unit) != std::string::npos, d.unit == unit) << name;
    }
    EXPECT_EQ(d.type == Type::kHistogram, d.unit == "seconds") << name;
    EXPECT_TRUE(d.help.ends_with(".")) << name;
    EXPECT_THAT(std::string(d.help), Not(HasSubstr("|"))) << "breaks the page's table";
  }
}

// What promtool would say of the text.
void lint(const std::string& text) {
  std::map<std::string, std::string> types;
  std::set<std::string> helped, series;
  std::string family;
  double below = 0;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string hash, kind, name;
    if (line.starts_with("# ")) {
      words >> hash >> kind >> name;
      if (kind == "HELP") {
        EXPECT_TRUE(helped.insert(name).second) << line;
      }
      if (kind == "TYPE") {
        EXPECT_TRUE(helped.contains(name)) << line;
        words >> types[name];
        family = name;
      }
      continue;
    }
    const std::regex sample(R"re(([a-z0-9_]+)(\{[^}]*\})? ([-+0-9.eE]+|\+Inf|NaN))re");
    std::smatch m;
    ASSERT_TRUE(std::regex_match(line, m, sample)) << line;
    EXPECT_TRUE(series.insert(m[1].str() + m[2].str()).second) << "twice: " << line;
    EXPECT_TRUE(m[1].str().starts_with(family)) << line;
    const std::string rest = m[1].str().substr(family.size());
    if (types[family] != "histogram") {
      EXPECT_EQ(rest, "") << line;
      continue;
    }
    const double value = std::stod(m[3].str());
    if (rest == "_count" || rest == "_sum") below = 0;
    if (rest != "_bucket") continue;
    EXPECT_GE(value, below) << line;
    below = value;
  }
}

TEST(Book, TextIsLinted) {
  Book book;
  for (const Description& d : table()) {
    LabelValues labels;
    if (!d.labels.empty()) labels.assign(1 + static_cast<std::size_t>(std::ranges::count(d.labels, ',')), "x\"y\\z");
    if (d.type == Type::kGauge) book.set(d.metric, labels, 1.5);
    if (d.type == Type::kCounter) book.add(d.metric, labels, 3);
    if (d.type == Type::kHistogram)
      for (const double s : {0.0001, 0.3, 0.3, 1e9}) book.observe(d.metric, labels, s);
  }
  const std::string text = book.text();
  lint(text);
  for (const Description& d : table()) EXPECT_THAT(text, HasSubstr("\n" + std::string(d.name))) << d.name;
  EXPECT_THAT(text, HasSubstr("refit_round_seconds_bucket{le=\"0.001\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("refit_round_seconds_bucket{le=\"0.5\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("refit_round_seconds_bucket{le=\"+Inf\"} 4\n"));
  EXPECT_THAT(text, HasSubstr("refit_round_seconds_count 4\n"));
}

TEST(Book, TotalsOfOthersAreFollowedAndMayBeginAnew) {
  Book book;
  for (const double total : {5.0, 5.0, 9.0, 2.0}) book.raise(Metric::kFramesBad, {"source:0.0"}, total);
  EXPECT_THAT(book.text(), HasSubstr("refit_frames_bad_total{member=\"source:0.0\"} 11\n"));
}

PhaseEvent event(const MemberName& who, Phase phase, std::int64_t at, const Txn& txn = kRound, std::int64_t bytes = 0) {
  return {.phase = phase, .who = who, .txn = txn, .at_ns = at, .bytes = bytes};
}

TEST(Spans, PairEventsOfOneRound) {
  Spans spans;
  EXPECT_TRUE(spans.on(event(kTarget, Phase::kBegin, 100)).ended.empty());
  const Spans::Seen transfer = spans.on(event(kTarget, Phase::kTransfer, 200));
  ASSERT_EQ(transfer.ended.size(), 1u);
  EXPECT_EQ(transfer.ended[0].kind->name, "seal");
  const Spans::Seen progress = spans.on(event(kTarget, Phase::kTransfer, 300, kRound, 64));
  EXPECT_FALSE(progress.first);
  EXPECT_TRUE(progress.ended.empty());
  const Spans::Seen staged = spans.on(event(kTarget, Phase::kStaged, 500));
  ASSERT_EQ(staged.ended.size(), 1u);
  EXPECT_EQ(staged.ended[0].kind->name, "transfer");
  EXPECT_EQ(staged.ended[0].start_ns, 200);
  EXPECT_EQ(staged.ended[0].end_ns, 500);
  EXPECT_EQ(staged.ended[0].bytes, 64);
  // Another member and another round begin with nothing.
  EXPECT_TRUE(spans.on(event({Role::kTarget, 1, 1}, Phase::kStaged, 600)).ended.empty());
  EXPECT_TRUE(spans.on(event(kTarget, Phase::kVoted, 700, {{1, 2}, Epoch(3), 8})).ended.empty());
}

TEST(Spans, PauseIsGatedToReopened) {
  Spans spans;
  std::int64_t at = 0;
  std::vector<Span> last;
  for (const Phase p : {Phase::kVoted, Phase::kDecided, Phase::kGated, Phase::kCopying, Phase::kApplied, Phase::kReopened})
    last = spans.on(event(kTarget, p, at += 10)).ended;
  std::map<std::string_view, std::int64_t> took;
  for (const Span& s : last) took[s.kind->name] = s.end_ns - s.start_ns;
  EXPECT_EQ(took, (std::map<std::string_view, std::int64_t>{{"reopen", 10}, {"pause", 30}, {"commit", 40}}));
}

TEST(Spans, IdsAreTheSameEverywhereAndDiffer) {
  EXPECT_EQ(trace_id(kRound).size(), 32u);
  EXPECT_EQ(span_id(kRound, kTarget).size(), 16u);
  EXPECT_NE(trace_id(kRound), trace_id({{1, 2}, Epoch(4), 7}));
  EXPECT_NE(span_id(kRound, kTarget), span_id(kRound, kSource));
  EXPECT_EQ(name_of(kHub), "coordinator");
}

agent::AgentReport report(std::uint64_t version) {
  agent::AgentReport r;
  r.version.number = version;
  r.state = "Serving";
  r.bytes_needed = 1000, r.bytes_moved = 1200, r.bytes_installed = 1024;
  r.encoded = {.unchanged = 1, .delta = 2, .raw = 3, .delta_bytes = 50, .delta_changed = 100};
  return r;
}

TEST(MemberWatcher, CountsEachCommittedVersionOnce) {
  Book book;
  memory::Budget budget(1 << 20);
  ASSERT_TRUE(budget.take(4096, "test").ok());
  MemberWatcher source(book, kSource), target(book, kTarget);
  for (MemberWatcher* w : {&source, &target}) {
    w->look(report(0), false, budget, {});
    w->look(report(1), true, budget, {});  // still busy: not all of its figures are in
    w->look(report(1), false, budget, {.bytes_in = 7});
    w->look(report(1), false, budget, {.bytes_in = 7});
    w->look(report(3), false, budget, {.bytes_in = 9});
  }
  const std::string text = book.text();
  EXPECT_THAT(text, HasSubstr("refit_bytes_needed_total{member=\"source:0.0\"} 2000\n"));
  EXPECT_THAT(text, HasSubstr("refit_bytes_moved_total{member=\"target:1.2\"} 2400\n"));
  EXPECT_THAT(text, HasSubstr("refit_bytes_installed_total{member=\"target:1.2\"} 2048\n"));
  EXPECT_THAT(text, Not(HasSubstr("refit_bytes_installed_total{member=\"source")));
  EXPECT_THAT(text, HasSubstr("refit_bytes_wire_total{direction=\"in\",member=\"target:1.2\"} 9\n"));
  EXPECT_THAT(text, HasSubstr("refit_buckets_total{form=\"delta\",member=\"source:0.0\"} 4\n"));
  EXPECT_THAT(text, HasSubstr("refit_bits_per_changed_element{member=\"source:0.0\"} 4\n"));
  EXPECT_THAT(text, HasSubstr("refit_memory_used_bytes{member=\"source:0.0\"} 4096\n"));
  EXPECT_THAT(text, HasSubstr("refit_member_version{member=\"target:1.2\"} 3\n"));
}

TEST(MemberWatcher, TellsFenced) {
  Book book;
  memory::Budget budget(1);
  MemberWatcher w(book, kTarget);
  agent::AgentReport r = report(1);
  r.state = "Fenced: digest";
  w.look(r, false, budget, {});
  EXPECT_THAT(book.text(), HasSubstr("refit_member_fenced{member=\"target:1.2\"} 1\n"));
}

std::string status(bool connected, int incarnation, const char* state) {
  return R"({"version":{"number":4,"step":3},"replicas":[{"instance":0,"state":")" + std::string(state) +
         R"(","version":4}],"members":[{"name":"target:0.0","connected":)" + (connected ? "true" : "false") +
         R"(,"incarnation":)" + std::to_string(incarnation) +
         R"(}],"dropped":{"old_txn":5,"connections":2},"queues":{"journal":1}})";
}

TEST(CoordinatorWatcher, CountsLossesRetriesAndOutcomes) {
  Book book;
  CoordinatorWatcher w(book);
  w.look(status(true, 1, "Serving"), false);
  w.look(status(false, 1, "Serving"), false);  // gone
  w.look(status(true, 2, "Serving"), false);
  w.look(status(true, 3, "Fenced"), true);  // another process, between two looks
  sync::SyncReport failed, whole;
  failed.round.outcome = wire::Outcome::kAborted;
  whole.round.outcome = wire::Outcome::kCommitted;
  whole.round.all_applied = true;
  whole.round.evicted = {kTarget};
  whole.seconds = 0.2;
  for (const auto* r : {&whole, &failed, &failed, &whole, &whole}) w.round(*r);
  const std::string text = book.text();
  EXPECT_THAT(text, HasSubstr("refit_member_losses_total{member=\"target:0.0\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("refit_retries_total 2\n"));
  EXPECT_THAT(text, HasSubstr("refit_rounds_total{outcome=\"committed\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("refit_rounds_total{outcome=\"aborted\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("refit_round_pause_seconds_count 3\n"));
  EXPECT_THAT(text, HasSubstr("refit_evictions_total{member=\"target:1.2\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("refit_replica_fenced{replica=\"0\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("refit_version 4\n"));
  EXPECT_THAT(text, HasSubstr("refit_step 3\n"));
  EXPECT_THAT(text, HasSubstr("refit_stale 1\n"));
  EXPECT_THAT(text, HasSubstr("refit_control_messages_dropped_total{reason=\"old_txn\"} 5\n"));
  EXPECT_THAT(text, HasSubstr("refit_control_connections_refused_total 2\n"));
  EXPECT_THAT(text, HasSubstr("refit_coordinator_queue_depth{queue=\"journal\"} 1\n"));
}

TEST(CoordinatorWatcher, SurvivesAStatusThatIsNone) {
  Book book;
  CoordinatorWatcher w(book);
  for (const char* s : {"", "{}", "[1]", "{\"version\":null,\"members\":null}"}) w.look(s, true);
  EXPECT_THAT(book.text(), HasSubstr("refit_version 0\n"));
}

TEST(Trace, OneLineAnEventAsItHappens) {
  const std::string path = testing::TempDir() + "observe_trace." + std::to_string(::getpid());
  Spans spans;
  const auto trace = Trace::open(path);
  ASSERT_TRUE(trace.ok());
  for (const Phase p : {Phase::kTransfer, Phase::kTransfer, Phase::kStaged}) {
    const PhaseEvent e = event(kTarget, p, 1'234'000 + static_cast<int>(p) * 1000);
    (*trace)->on(e, spans.on(e));
  }
  const std::string text = file(path);  // the trace is still open
  EXPECT_EQ(std::ranges::count(text, '\n'), 1 + 3 + 2 + 1) << text;  // "[", names, two instants, a span
  EXPECT_THAT(text, HasSubstr(R"({"name":"transfer","ph":"X","cat":"target","ts":1237.0,"pid":1001,"tid":2,"dur":1.0)"));
  EXPECT_THAT(text, HasSubstr(trace_id(kRound)));
  ::unlink(path.c_str());
  const auto refused = Trace::open("/nonexistent/x");
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message, HasSubstr("--trace /nonexistent/x"));
}

}  // namespace
}  // namespace refit::observe
