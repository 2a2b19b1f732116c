// One end of a transport as a process of its own, driven by lines on stdin; answers are lines on stdout.
//   transport_peer source DIR JOB [MOVER STALL_MS] → "card HEX INCARNATION"; expose ROUND → "descriptor HEX"; withdraw,
//                                                    fds, registrations, leave (without closing the mover), quit
//   transport_peer target DIR JOB [MOVER STALL_MS] → "ready"; read ROUND CARD INCARNATION DESCRIPTOR SECONDS → "ok" or
//                                                    the error
//   transport_peer member|coordinator ADDRESS SILENT_MS → events and messages as they come; every message is echoed
#include <dirent.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <sstream>

#include "line.h"

namespace refit::procs {
namespace {

using namespace refit::transport;  // NOLINT(google-build-using-namespace)

void say(const std::string& line) { std::cout << line << std::endl; }
std::size_t descriptors() {
  std::size_t n = 0;
  DIR* d = ::opendir("/proc/self/fd");
  while (d != nullptr && ::readdir(d) != nullptr) ++n;
  if (d != nullptr) ::closedir(d);
  return n;
}
int fail(const Error& error) {
  say("error " + error.to_string());
  return 1;
}

struct Self {
  std::string job, mover_name = "shm";
  std::int64_t stall_ms = 30'000;
  Incarnation incarnation{system_env().random_u64()};
  std::unique_ptr<Mover> mover;
  Status start(const std::string& dir, const std::string& job_name, std::uint32_t member) {
    job = job_name;
    MoverOptions options;
    options.runtime_dir = dir;
    options.job = hash128(job);
    options.member = member;
    options.incarnation = incarnation;
    options.net.stall_ns = stall_ms * 1'000'000;
    REFIT_ASSIGN(mover, make_mover(mover_name, options));
    return {};
  }
};

struct Source : Self {
  memory::SharedRegion weights, scales;
  std::unique_ptr<PullLane> lane;
  Status make() {
    REFIT_ASSIGN(weights, memory::SharedRegion::make(system_env(), kWeightsBytes, nullptr, "weights"));
    REFIT_ASSIGN(scales, memory::SharedRegion::make(system_env(), kScalesBytes, nullptr, "scales"));
    return {};
  }
  Result<Bytes> expose(std::uint64_t round) {
    for (std::int64_t i = 0; i < kWeightsBytes; ++i) weights.data()[i] = weight(job, round, 0, i);
    for (std::int64_t i = 0; i < kScalesBytes; ++i) scales.data()[i] = weight(job, round, 1, i);
    REFIT_ASSIGN(lane, mover->open_pull(lane_id(job, round, incarnation), {}));
    const memory::RegionRef lent[] = {{weights.data(), kWeightsBytes, memory::Kind::kHostShared, &weights},
                                      {scales.data(), kScalesBytes, memory::Kind::kHostShared, &scales}};
    return lane->expose(lent);
  }
};

int run_source(const std::string& dir, const std::string& job, const std::string& mover, std::int64_t stall_ms) {
  Source self;
  self.mover_name = mover, self.stall_ms = stall_ms;
  if (Status s = self.make(); !s.ok()) return fail(s.error());
  if (Status s = self.start(dir, job, 1); !s.ok()) return fail(s.error());
  say("card " + to_hex(self.mover->card()) + " " + std::to_string(self.incarnation.value));
  for (std::string line; std::getline(std::cin, line) && line != "quit";) {
    std::istringstream in(line);
    std::string word;
    std::uint64_t round = 0;
    in >> word >> round;
    if (word == "expose") {
      const auto d = self.expose(round);
      say(d.ok() ? "descriptor " + to_hex(*d) : "error " + d.error().to_string());
    } else if (word == "withdraw") {
      say(self.lane->withdraw().ok() ? "ok" : "error");
    } else if (word == "fds") {
      say(std::to_string(descriptors()));
    } else if (word == "registrations") {
      say(std::to_string(self.mover->counters().registrations));
    } else if (word == "leave") {
      (void)self.mover.release();  // as a process that ends without a word: the library's own exit handlers run
      (void)self.lane.release();
      std::exit(0);
    }
  }
  return 0;
}

Status read_round(Self& self, std::istringstream& in) {
  std::uint64_t round = 0, incarnation = 0;
  std::string card, descriptor;
  double seconds = 0;
  in >> round >> card >> incarnation >> descriptor >> seconds;
  const Peer peer{1, Incarnation(incarnation), from_hex(card), "source:0.0"};
  REFIT_ASSIGN(auto lane, self.mover->open_pull(lane_id(self.job, round, self.incarnation), {&peer, 1}));
  const Segment segments[] = {{0, 0, kWeightsBytes, {}, {}}, {1, 0, kScalesBytes, {}, {}}};
  REFIT_TRY(lane->request(BucketId(0), 1, from_hex(descriptor), segments));
  REFIT_ASSIGN(const Lease lease, lane->next(Deadline::after_s(seconds)));
  const bool mapped = !lease.bases().empty();
  for (std::uint32_t r = 0; r < 2; ++r)
    for (std::int64_t i = 0; i < segments[r].run_bytes; ++i)
      if ((mapped ? lease.bases()[r] : lease.packed().data() + r * kWeightsBytes)[i] != weight(self.job, round, r, i)) return Error(Code::kCorrupt, "wrong byte");
  return lane->recheck(1);
}

int run_target(const std::string& dir, const std::string& job, const std::string& mover, std::int64_t stall_ms) {
  Self self;
  self.mover_name = mover, self.stall_ms = stall_ms;
  if (Status s = self.start(dir, job, 2); !s.ok()) return fail(s.error());
  say("ready");
  for (std::string line; std::getline(std::cin, line) && line != "quit";) {
    std::istringstream in(line);
    std::string word;
    in >> word;
    if (word == "fds") say(std::to_string(descriptors()));
    if (word != "read") continue;
    const Status s = read_round(self, in);
    say(s.ok() ? "ok" : "error " + s.error().to_string());
  }
  return 0;
}

int run_control(bool listen, const std::string& address, std::int64_t silent_ms) {
  auto mover = make_mover("zmq", {});
  if (!mover.ok()) return fail(mover.error());
  auto lane = (*mover)->open_control({address, listen, silent_ms});
  if (!lane.ok()) return fail(lane.error());
  say("open");
  while (true) {
    const auto message = (*lane)->next(Deadline::after_ns(20'000'000));
    for (const Liveness& l : (*lane)->liveness())
      say((l.event == PeerEvent::kConnected ? "connected " : "gone ") + std::to_string(l.peer));
    if (message.ok()) (void)(*lane)->send(message->peer, message->bytes);
    if (!message.ok() && message.error().code != Code::kTimeout) return fail(message.error());
  }
}

}  // namespace
}  // namespace refit::procs

int main(int argc, char** argv) {
  const std::string role = argc > 1 ? argv[1] : "";
  if ((argc == 4 || argc == 6) && (role == "source" || role == "target"))
    return (role == "source" ? refit::procs::run_source : refit::procs::run_target)(
        argv[2], argv[3], argc == 6 ? argv[4] : "shm", argc == 6 ? std::stoll(argv[5]) : 30'000);
  if (argc == 4 && (role == "member" || role == "coordinator"))
    return refit::procs::run_control(role == "coordinator", argv[2], std::stoll(argv[3]));
  std::cerr << "usage: transport_peer source|target DIR JOB [MOVER STALL_MS] | member|coordinator ADDRESS SILENT_MS\n";
  return 2;
}
