// The inside of a simulated job. Hosts perform the actions of the step functions; Checker holds the invariants.
#pragma once
#include <array>

#include "sim/world.h"

namespace refit::sim {

inline constexpr std::uint32_t kElems = 8;
inline constexpr std::int64_t kMs = 1'000'000;
inline constexpr std::size_t kCompactBytes = 1500;  // a few rounds
inline constexpr double kJournalLoss = 0.25;        // of the coordinator's crashes take the journal with them
using Values = std::array<std::uint32_t, kElems>;

struct Slice {
  std::uint32_t lo = 0, hi = 0;
};
wire::Digest4 digest_of(const Values& v, Slice s);
bool equal_in(const Values& a, const Values& b, Slice s);
std::uint32_t weight(std::int64_t step, std::uint32_t index);

struct Process {
  bool alive = false;
  std::uint64_t generation = 0;  // rises at every start and crash: events of an older one are void
  std::int64_t stopped_until = 0;
  Incarnation incarnation;
  std::uint32_t connection = 0;                 // 0: none
  std::int64_t deaf_until = 0, mute_until = 0;  // one-way partitions
};

struct Seal {
  Values values{};
  std::int64_t step = 0;
  std::uint64_t counter = 0;
  bool dirty = false;  // written between seal and the check that follows the last read
};

struct SourceHost : Process {
  agent::SourceState state;
  install::Ignored ignored;
  Values weights{};
  std::int64_t step = 0;
  std::uint64_t counter = 0;       // bumped by every write
  std::uint64_t memory_epoch = 0;  // a withdrawal raises it
  bool exposed = false;
  Txn sealing;
  std::map<Txn, Seal> seals;
  std::map<Txn, std::uint64_t> prepared;  // the write counter before the exchange, where sources quantise
  Txn base;  // the round whose bytes deltas are made against, and those bytes
  Values base_values{};
};

struct TargetHost : Process {
  install::TargetState state;
  install::Ignored ignored;
  Values live{}, shadow{}, promised{};
  wire::CommitWord word;
  Version label;
  Txn caches, opening, promised_txn;
  bool gate_open = false;
  bool clean = false;    // the shadow holds what the live bytes hold
  bool planned = false;  // by this agent
  std::int64_t gate_shut_since = 0;
  std::optional<wire::Envelope> old_gate, old_copy;
  bool open() const { return alive && gate_open && word.word == wire::Word::kApplied; }
};

struct CoordinatorHost : Process {
  coordinator::State state;
  sync::Staleness stale;
  std::int64_t marked_step = 0, round_step = 0;
  bool calling = false;
  std::int64_t call_since = 0;
};

// What the journal says, followed record by record, and what must follow from it.
class Checker {
 public:
  std::string violation;
  void fail(const std::string& what) {
    if (violation.empty()) violation = what;
  }
  void record(const coordinator::Record& r, const class World& world);
  void every_event(const class World& world);

  std::map<Txn, coordinator::BeginRecord> begun;
  std::map<Txn, bool> decided;                     // true: commit
  std::map<Txn, std::set<std::uint32_t>> members;  // of a committed round, without evicted
  std::set<coordinator::Seat> evicted;
  std::set<Txn> abort_told, abort_reported;
  std::map<Txn, std::map<std::uint32_t, Seal>> seals;
  std::map<Txn, std::map<std::uint32_t, float>> told;  // by source: its largest magnitude of the block that all share
  std::set<std::pair<coordinator::Seat, Txn>> yes, applied;
  std::map<std::pair<std::uint32_t, Lineage>, std::uint64_t> applied_number;
  std::map<std::pair<Lineage, std::uint64_t>, Txn> by_number;
  // Committed in a journal that was lost before anybody who is left had heard of it.
  std::set<Txn> lost;
  bool committed(const Txn& t) const {
    const auto at = decided.find(t);
    return at != decided.end() && at->second;
  }
  std::optional<Values> reference(const Txn& t, const class World& world) const;

 private:
  std::map<Txn, Values> committed_values_;  // references that can change no more
  void commit(const coordinator::CommitRecord& r, const class World& world);
  void rebuilt(const coordinator::SnapshotRecord& r, const class World& world);
  void source(std::uint32_t index, const class World& world);
  void target(std::uint32_t index, const class World& world);
  void replicas(const class World& world);
};

class World {
 public:
  explicit World(const Options& options);
  Verdict run();

  // Shape and layout of the toy weights.
  std::uint32_t sources() const { return shape.sources(); }
  Slice source_slice(std::uint32_t s) const { return {s * kElems / sources(), (s + 1) * kElems / sources()}; }
  Slice target_slice(std::uint32_t t) const {
    const std::uint32_t r = t % shape.target_ranks;
    return {r * kElems / shape.target_ranks, (r + 1) * kElems / shape.target_ranks};
  }

  Options options;
  coordinator::Config config;
  coordinator::Shape shape;
  std::int64_t now = 0;
  std::vector<SourceHost> source;
  std::vector<TargetHost> target;
  CoordinatorHost coord;
  Checker checker;
  bool calm = false;  // faults have stopped
  bool deltas() const { return options.seed % 2 == 1; }

 private:
  // world.cpp: events, chance, network.
  using Call = std::function<void()>;
  void later(std::int64_t dt, Call call);
  void later_in(Process& p, std::int64_t dt, Call call);
  std::uint64_t draw(std::uint64_t n) { return rng_() % n; }
  bool chance(double p) { return !calm && static_cast<double>(rng_() >> 11) * 0x1.0p-53 < p; }
  std::int64_t delay();
  void trace(const std::string& line) const;
  Process& process(std::uint32_t member);
  void connect(std::uint32_t member);
  void disconnect(std::uint32_t member, bool tell_coordinator);
  void transmit(std::uint32_t member, std::uint32_t connection, bool up, const wire::Envelope& e);
  void arrive(std::uint32_t member, std::uint32_t connection, bool up, const wire::Bytes& frame);
  void drive();
  void misfortune();
  void rest();
  bool settled() const;

  // hosts.cpp: coordinator.
  void start_coordinator();
  void crash_coordinator();
  bool compact(coordinator::JournalState& recovered);
  void coordinator_event(coordinator::EventKind what);
  void perform(const coordinator::Action& a);
  void write_journal();
  void durable(const std::vector<coordinator::Record>& records);
  void returned(const coordinator::RoundResult& r);
  void stale(sync::StaleEvent e);
  void tick_coordinator();

  // members.cpp: sources and targets.
  void start_source(std::uint32_t s);
  void start_target(std::uint32_t t, bool survived);
  void crash(std::uint32_t member);
  void source_event(std::uint32_t s, agent::SourceEventKind what);
  void target_event(std::uint32_t t, install::TargetEventKind what);
  void seal(std::uint32_t s, const Txn& txn);
  void perform(std::uint32_t s, const agent::SourceAction& a);
  void perform(std::uint32_t t, const install::TargetAction& a);
  bool sends_delta(const SourceHost& s, std::uint32_t t) const;
  void bring_base(std::uint32_t t, const Txn& base);
  void stage(std::uint32_t t, const install::StartStaging& a, std::uint32_t half);
  void copy(std::uint32_t t, const Txn& txn, std::uint32_t half);
  void tick_member(std::uint32_t member);
  bool crash_here(std::uint32_t member, const std::string& where);
  void train();
  void scribble();
  void vote_sent(std::uint32_t t, const Txn& txn);

  struct Timed {
    std::int64_t at;
    std::uint64_t order;
    Call call;
    bool operator<(const Timed& o) const { return std::tie(o.at, o.order) < std::tie(at, order); }
  };
  std::priority_queue<Timed> queue_;
  std::uint64_t order_ = 0;
  std::mt19937_64 rng_;
  std::uint32_t connections_ = 0;
  std::uint64_t incarnations_ = 0, lineages_ = 0;
  std::int64_t trainer_step_ = 1;
  double loss_ = 0, twice_ = 0, crash_ = 0;
  wire::Bytes file_;                          // durable bytes of the journal
  std::vector<coordinator::Append> appends_;  // asked for, not yet durable
  Verdict verdict_;
  std::uint32_t good_ = 0;
  bool names_step_ = false;  // the caller names the step to publish
  bool exchange_ = false;    // sources quantise blocks that they share
};

}  // namespace refit::sim
