// A bed: how one mover lies under the conformance suites. A mover registers with a class of a few lines; the suites
// never learn which mover they run. Checks are plain functions, so that a broken mover can be shown to fail one.
#pragma once
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "transport/transport.h"

namespace refit::conformance {

using namespace refit::transport;  // NOLINT(google-build-using-namespace): the suites speak of little else

class Bed {
 public:
  virtual ~Bed() = default;
  virtual Result<std::unique_ptr<Mover>> mover(const MoverOptions& options) = 0;
  // Memory of `bytes` that the mover can lend; lives as long as the bed.
  virtual memory::RegionRef region(std::int64_t bytes) {
    arenas_.push_back(std::move(memory::Arena::make(bytes, nullptr, "bed")).value());
    return {arenas_.back().data(), bytes, memory::Kind::kHost, nullptr};
  }
  // Lets time pass: a simulated mover moves its network by a step instead.
  virtual void turn() { system_env().wait(Deadline::after_ns(500'000)); }
  virtual bool single_threaded() const { return false; }
  // Where control lanes meet, and what they prove themselves with.
  virtual std::string control_address() { return "ipc://" + runtime_dir + "/control.sock"; }
  virtual std::optional<ControlKeys> control_keys(bool /*listen*/) { return std::nullopt; }
  // How long a check waits for what must come. Broken movers are given less.
  double patience_s = 10;
  // How far past a deadline a call may return on a loaded machine.
  double slack_s = 5;
  std::string runtime_dir;
  Hash128 job = hash128("conformance");

 private:
  std::vector<memory::Arena> arenas_;
};
using MakeBed = std::function<std::unique_ptr<Bed>()>;

// A private directory that disappears with its content.
class TempDir {
 public:
  TempDir() {
    std::string name = "/tmp/refit-t-XXXXXX";
    path_ = ::mkdtemp(name.data());
  }
  ~TempDir() { std::filesystem::remove_all(path_); }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline Error broken(std::string what) { return Error(Code::kInternal, std::move(what)); }
// In a check: the expectation, and what its failure means.
#define REFIT_MUST(condition, ...)                                                                                    \
  do {                                                                                                                \
    if (!(condition)) return ::refit::conformance::broken(std::string(#condition) + ": " + std::string(__VA_ARGS__)); \
  } while (false)

// The error of a result; of a success one that no expectation matches.
template <typename T>
Error err(const Result<T>& result) {
  return result.ok() ? Error(Code::kInternal, "it succeeded") : result.error();
}

struct Check {
  const char* name;
  std::function<Status(Bed&)> run;
  bool threads = false;  // needs several threads: single-threaded movers skip it
};

struct Param {
  std::string mover;
  MakeBed make;
  Check check;
};
inline void PrintTo(const Param& param, std::ostream* out) { *out << param.mover << "/" << param.check.name; }
inline std::vector<Param> params(const std::string& mover, const MakeBed& make, const std::vector<Check>& checks) {
  std::vector<Param> out;
  for (const Check& check : checks) out.push_back({mover, make, check});
  return out;
}
inline std::string name_of(const testing::TestParamInfo<Param>& info) {
  return info.param.mover + "_" + info.param.check.name;
}

inline void run_check(const Param& param) {
  TempDir dir;
  const std::unique_ptr<Bed> bed = param.make();
  bed->runtime_dir = dir.path();
  if (param.check.threads && bed->single_threaded()) GTEST_SKIP() << param.mover << " is single-threaded";
  const Status held = param.check.run(*bed);
  EXPECT_TRUE(held.ok()) << held.error().to_string();
}

// Two movers that know each other, and lanes between them.
inline constexpr std::uint32_t kSource = 1, kTarget = 2;
struct Pair {
  Bed* bed = nullptr;
  std::unique_ptr<Mover> source, target;
  std::vector<Peer> of_source, of_target;  // whom each may hear of
  std::uint64_t rounds = 0;

  static Result<Pair> make(Bed& bed) {
    Pair p;
    p.bed = &bed;
    MoverOptions options;
    options.runtime_dir = bed.runtime_dir;
    options.job = bed.job;
    options.staging_bytes = 64 << 20;
    options.seed = 7;
    options.member = kSource;
    options.incarnation = Incarnation(1001);
    options.name = "source:0.0";
    REFIT_ASSIGN(p.source, bed.mover(options));
    options.member = kTarget;
    options.incarnation = Incarnation(2002);
    options.name = "target:0.0";
    REFIT_ASSIGN(p.target, bed.mover(options));
    p.of_source = {Peer{kTarget, Incarnation(2002), p.target->card(), "target:0.0"}};
    p.of_target = {Peer{kSource, Incarnation(1001), p.source->card(), "source:0.0"}};
    return p;
  }
  LaneId lane_id(std::uint32_t member) const {
    LaneId id;
    id.job = bed->job;
    id.txn = Txn{hash128("lineage"), Epoch(1), rounds};
    id.incarnation = Incarnation(member == kSource ? 1001 : 2002);
    return id;
  }
  Deadline patience() const { return Deadline::after_s(bed->patience_s); }
};

// Deterministic bytes: the same at both ends without a copy.
inline std::byte pattern(std::int64_t at, std::uint32_t salt) {
  const auto x = static_cast<std::uint64_t>(at) * 0x9e3779b97f4a7c15u + salt * 0xbf58476d1ce4e5b9u;
  return static_cast<std::byte>(x >> 56);
}
inline void fill(std::span<std::byte> out, std::uint32_t salt) {
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = pattern(static_cast<std::int64_t>(i), salt);
}
inline std::vector<Completion> drain(Lane& lane) {
  std::vector<Completion> out;
  Completion one[3];
  for (std::size_t n = lane.poll(one); n > 0; n = lane.poll(one)) out.insert(out.end(), one, one + n);
  return out;
}
inline std::size_t count_entries(const std::string& dir) {
  std::size_t n = 0;
  for ([[maybe_unused]] const auto& e : std::filesystem::directory_iterator(dir)) ++n;
  return n;
}
inline std::size_t open_descriptors() { return count_entries("/proc/self/fd"); }
inline std::size_t live_threads() { return count_entries("/proc/self/task"); }
inline std::int64_t mapped_areas() {
  std::int64_t n = 0;
  FILE* f = std::fopen("/proc/self/maps", "re");
  if (f == nullptr) return -1;
  for (int c = std::fgetc(f); c != EOF; c = std::fgetc(f)) n += c == '\n';
  std::fclose(f);
  return n;
}

}  // namespace refit::conformance
