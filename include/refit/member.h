// Publisher and Receiver: one trainer rank, one engine rank. The same component in either role.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "refit/coordinator.h"
#include "refit/layout.h"

namespace refit::api {

// One buffer of a rank's layout, in this process' host memory.
struct Memory {
  std::string buffer;
  void* data = nullptr;
  std::int64_t bytes = 0;
};

// What the last round took on this rank, and where it stands.
struct MemberReport {
  std::string state;
  VersionInfo version;
  double seal_s = 0, stage_s = 0, verify_s = 0, copy_s = 0, plan_s = 0;
  std::int64_t bytes_sealed = 0, bytes_staged = 0, snapshot_bytes = 0, shadow_bytes = 0, buckets = 0;
  // A source's, in rounds with deltas: how its buckets went out (one that goes out in two forms counts twice), and all bytes of it.
  std::int64_t buckets_unchanged = 0, buckets_delta = 0, buckets_raw = 0, bytes_wire = 0;
  std::int64_t memory_used = 0, memory_peak = 0;  // that Refit holds here
};

struct MemberOptions {
  std::string address;     // Coordinator::address()
  std::uint32_t rank = 0;  // of the layout; of a target the replica follows from it
  // The caller's own memory for every buffer of the rank; it must outlive the member (a publisher's: or its next
  // rebind()). Empty: Refit allocates, and
  // memory() tells where.
  std::vector<Memory> memory;
  int threads = 1;             // of copies and scans, the caller's included
  double join_timeout_s = 60;  // for the coordinator's answer
};

// A trainer rank. Serves the protocol on a thread of its own, which runs no code of the caller. *thread-safe*.
class Publisher {
 public:
  // Memory that Refit allocates is shared memory, which the transport shm lends as it lies; the caller's own is copied
  // at each seal where the transport cannot read it (`snapshot_bytes`). Waits until the coordinator admits the rank:
  // kMismatch when its layout differs from the other ranks', kTimeout when nobody answers.
  Publisher(const Layout& layout, const MemberOptions& options);
  ~Publisher();
  Publisher(const Publisher&) = delete;
  Publisher& operator=(const Publisher&) = delete;

  std::vector<Memory> memory() const;
  // The weights in memory are those of `step`: a round may take them.
  void publish(std::int64_t step, const std::string& weight_set = "policy");
  // Before the weights are written: waits until no round holds them. kBusy at the deadline: do not write.
  void guard(double timeout_s);
  // guard(), and from then on the lent buffers lie elsewhere: `memory` as in MemberOptions, which gave them first. The
  // former memory is not read any more. kInvalid where Refit allocated. publish() says what step lies there.
  void rebind(const std::vector<Memory>& memory, double timeout_s);
  // Throws the error that ended the serving thread, if one did.
  MemberReport report() const;
  void close(double timeout_s = 5);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// How an engine is steered round an install. Called only inside run(), on its caller's thread; may throw: before the
// decision that aborts the round, after it the replica is fenced. Empty functions do nothing.
struct EngineHooks {
  std::function<void(double timeout_s)> pause;  // returns when no forward pass reads weights
  std::function<void()> resume;
  std::function<void()> reset_caches;                         // prefix, encoder and multimodal caches
  std::function<void(const VersionInfo& version)> installed;  // the label that requests are answered with
};

// An engine rank. run() on one thread at a time (kBusy on a second one), everything else on any.
class Receiver {
 public:
  // Waits as Publisher does. The caller's own memory is installed in place.
  Receiver(const Layout& layout, const MemberOptions& options, EngineHooks hooks = {});
  ~Receiver();
  Receiver(const Receiver&) = delete;
  Receiver& operator=(const Receiver&) = delete;

  std::vector<Memory> memory() const;
  // Serves the protocol for so long, or until close(). Throws when the control connection failed for good.
  void run(double seconds);
  // True while a round is in hand on this rank.
  bool busy() const;
  VersionInfo version() const;
  // True while the bytes are a whole version: what a gate asks before it reads weights.
  bool complete() const;
  MemberReport report() const;
  // Ends a run() of another thread and waits for it: kTimeout when a hook holds it up, kBusy when that hook is the
  // caller. Closes nothing then, and run() is refused; call it again.
  void close(double timeout_s = 5);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace refit::api
