// Host: the place that runs a job's coordinator. It owns the private directory in which members find each other, the
// control listener and the synchronizer; beside the listener lies a card that tells members what they must agree on.
#pragma once
#include <memory>
#include <string>

#include "agent/agent.h"
#include "sync/synchronizer.h"

namespace refit::sync {

// What every member of a job must know, next to the address. Written by the host, read by members.
struct JobCard {
  Hash128 job;
  coordinator::Shape shape;
  std::string transport = "shm";
  std::int64_t staging_bytes = 256 << 20;
  bool snapshot = false;
  transport::NetOptions net{};
};
inline constexpr const char* kCardFile = "job.json";
std::string write_card(const JobCard& card);
// kInvalid naming the key.
Result<JobCard> parse_card(const std::string& text);
// The card of the job whose coordinator listens at `address` ("ipc:///…"). kPeerLost when nobody does.
Result<JobCard> read_card(const std::string& address);
// The directory that an "ipc:///…" address lies in. kUnsupported for other addresses.
Result<std::string> runtime_dir_of(const std::string& address);

// A member's seat as the card of its job says; budget, threads and observer are the caller's. kInvalid when the job
// has no such place.
Result<agent::SeatOptions> seat_options(const JobCard& card, const std::string& address, const MemberName& name);

struct HostOptions {
  // Job, addresses and journal are filled in by the host.
  SyncOptions sync;
  std::string parent_dir;         // where the job's directory is made; empty: the user's runtime directory
  std::string label = "job";      // its name starts with this
  std::string transport = "shm";  // of the weights
  bool snapshot = false;          // `refit.snapshot`
  transport::NetOptions net{};    // movers that use the network
};

// *thread-safe* as its synchronizer is; the rest is constant.
class Host {
 public:
  static Result<std::unique_ptr<Host>> make(HostOptions options);
  // Shuts the synchronizer down and removes the directory.
  ~Host();
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  WeightSynchronizer& synchronizer() { return *synchronizer_; }
  const JobCard& card() const { return card_; }
  const std::string& address() const { return address_; }
  const std::string& runtime_dir() const { return runtime_dir_; }

 private:
  Host() = default;
  JobCard card_;
  std::string runtime_dir_, address_;
  std::unique_ptr<transport::Mover> mover_;
  std::unique_ptr<WeightSynchronizer> synchronizer_;
};

}  // namespace refit::sync
