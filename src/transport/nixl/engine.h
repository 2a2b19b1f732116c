// Engine: one mover's thread. It owns the door, the links and the agent that reads; callers hand it work and wait for
// what comes back. No call of the library on the reading side happens anywhere else.
#pragma once
#include <atomic>
#include <condition_variable>
#include <deque>
#include <list>
#include <thread>

#include "transport/common/ledger.h"
#include "transport/common/staging.h"
#include "transport/nixl/cut.h"
#include "transport/nixl/door.h"
#include "transport/nixl/link.h"

namespace refit::transport::nixl {

// A descriptor as last seen from one sender, parsed once.
struct Loan {
  Bytes raw;
  Descriptor descriptor;
  std::vector<std::int64_t> sizes;  // of its regions
  Hash128 metadata;                 // hash of the agent's
  bool checked = false;             // loop-only: the source said that the lend is open
  std::mutex mutex;
  std::shared_ptr<Link> link;  // under the mutex: over which it was read last; shared with the engine
};

struct Arrived {
  std::uint64_t ticket = 0;
  BucketId bucket;
  std::uint32_t sender = 0;
  std::int64_t bytes = 0;
  Staging::Slot slot;
  std::shared_ptr<Loan> loan;
};

// One lane, shared by its shell and the engine.
struct LaneState {
  LaneId id;
  std::map<std::uint32_t, Peer> peers;
  Ledger ledger;
  std::mutex mutex;  // of what follows
  std::condition_variable changed;
  std::deque<Arrived> inbox;
  std::string waits_for;  // what the oldest request waits for, in words

  // The lane's end: pays what is open and wakes who waits.
  Error fail(Error error);
};

// One request on its way.
struct Ask {
  std::shared_ptr<LaneState> lane;
  std::uint64_t ticket = 0;
  BucketId bucket;
  std::uint32_t sender = 0;
  std::shared_ptr<Loan> loan;
  Cut cut;
};

class Engine {
 public:
  static Result<std::shared_ptr<Engine>> start(const MoverOptions& options, const Api& api);
  ~Engine() { stop(); }
  // *thread-safe*.
  const MoverOptions& options() const { return options_; }
  Exports& exports() { return exports_; }
  Bytes card() const { return encode(door_->card()); }
  std::int64_t staging_limit() const { return options_.staging_bytes; }
  void submit(Ask ask);
  // Asks the peer; true when the lend is open (epoch 0: when it is there). `lane`: whose failure ends the wait.
  Result<bool> question(const Peer& peer, MemoryEpoch epoch, Deadline deadline, const Ledger* lane = nullptr);
  // A lane has ended: what it asked for is dropped at the loop's next turn.
  void wake() const { wake_->raise(); }
  void note_foreign() { foreign_.fetch_add(1); }
  void note_bad() { bad_.fetch_add(1); }
  Counters counters() const;
  void stop();

 private:
  enum class Phase : std::uint8_t { kNew, kAsking, kReady, kReading, kRead, kChecking, kOver };
  // Of one handle of the library.
  struct Flying {
    std::unique_ptr<Agent::Read> read;
    std::int64_t since_ns = 0;
  };
  struct Work {
    Ask ask;
    Phase phase = Phase::kNew;
    Staging::Slot slot;
    std::size_t next_run = 0;
    std::list<Flying> flying;
  };
  // Reads whose lane has ended: they keep their slot until the library is done with it.
  struct Orphan {
    std::list<Flying> flying;
    Staging::Slot slot;
    std::shared_ptr<Link> link;
  };
  // An agent that has reads of a peer which stands still, with what they may write into, until they end. Closing its
  // connections earlier would end the peer's process when it goes on (README.md).
  struct Stuck {
    std::unique_ptr<Agent> agent;
    std::list<Orphan> orphans;
    std::list<Staging::Slot> spoilt;   // of reads that have ended
    std::shared_ptr<Staging> staging;  // shared with slots
    // The agent goes before what it may write into.
    ~Stuck() {
      for (Orphan& o : orphans) o.flying.clear();
      agent.reset();
    }
  };
  struct Asked {
    Peer peer;
    MemoryEpoch epoch;
    std::function<void(const Result<bool>&)> told;
  };

  Engine(const MoverOptions& options, const Api& api);
  void loop();
  void poll_once();
  void take_commands();
  void advance();
  void advance(Work& w);
  void ask_source(Work& w, Phase then);
  bool begin(Work& w);
  bool launch(Work& w);
  void look(Work& w);
  void look_at_orphans();
  void deliver(Work& w);
  void fail(Work& w, Error error);
  void abandon(Work& w);
  Status ready_agent();
  Status load(Link& link, const Loan& loan);
  bool take_slot(Work& w);
  Status grow(std::int64_t bytes);
  void set_aside();
  void forget(Link& link);
  void release_idle();
  void judge();
  bool in_flight_to(const Link& link) const;  // through the present agent
  std::shared_ptr<Link> link_to(const Peer& peer);
  std::size_t flying() const;
  std::string agent_name(const std::string& part) const;
  std::int64_t now() const { return options_.env->now_ns(); }

  const MoverOptions options_;
  const Api& api_;
  std::shared_ptr<const Wake> wake_;  // shared with the staging, whose slots may outlive us
  std::unique_ptr<Door> door_;
  Exports exports_;

  std::mutex mutex_;  // of what callers hand over
  std::deque<Ask> asks_;
  std::deque<Asked> questions_;
  bool stopped_ = false;

  // Loop-only.
  std::map<std::uint32_t, std::shared_ptr<Link>> links_;  // by member; shared with loans
  std::list<Work> works_;
  std::list<Orphan> orphans_;
  std::list<Staging::Slot> spoilt_;  // of reads that failed: other descriptors of their handles may still write
  std::list<Stuck> stuck_;
  std::unique_ptr<Agent> agent_;
  std::uint64_t generation_ = 0;
  std::shared_ptr<Staging> staging_;  // shared with slots
  bool no_room_ = false;              // in this advance()
  std::int64_t last_turn_ns_ = 0, since_ns_ = 0;
  std::atomic<int> reading_agents_{0};
  std::atomic<std::size_t> staged_regions_{0};
  std::atomic<std::uint64_t> foreign_{0}, bad_{0}, bytes_in_{0};

  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace refit::transport::nixl
