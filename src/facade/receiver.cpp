#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "facade/member.h"

namespace refit::api {
// An engine rank in the caller's process: its memory, its commit word, and the caller's hooks.
class EngineRank final : public engine::Instance, public engine::Shard {
 public:
  EngineRank(const Post& post, EngineHooks hooks) : post_(post), hooks_(std::move(hooks)) {}

  Status prepare(std::span<const std::string>) override { return {}; }
  Status pause(Deadline deadline) override {
    const double left_s = static_cast<double>(deadline.left_ns()) * 1e-9;
    return call("pause", [&] {
      if (hooks_.pause) hooks_.pause(left_s);
    });
  }
  Status resume() override {
    return call("resume", [&] {
      if (hooks_.resume) hooks_.resume();
    });
  }
  Status invalidate(engine::CachePolicy policy) override {
    return call("reset_caches", [&] {
      if (hooks_.reset_caches && policy == engine::CachePolicy::kReset) hooks_.reset_caches();
    });
  }
  Version version() const override {
    const std::lock_guard lock(mutex_);
    return label_;
  }
  Status set_version(const Version& version) override {
    {
      const std::lock_guard lock(mutex_);
      label_ = version;
    }
    return call("installed", [&] {
      if (hooks_.installed) hooks_.installed(to_public(version));
    });
  }

  std::shared_ptr<const model::Layout> layout() const override { return post_.layout; }
  Rank rank() const override { return post_.rank.rank; }
  std::span<const memory::RegionRef> regions() override { return post_.memory.regions(); }
  engine::CommitWord* commit_word() override { return &word_; }
  bool complete() const { return word_.load().state == engine::WordState::kApplied; }

 private:
  // The caller's code may throw: the rooms above want a Status.
  Status call(const char* hook, const std::function<void()>& code) const {
    try {
      code();
      return {};
    } catch (const std::exception& e) {
      return to_inner(e, std::string("the engine's hook '") + hook + "' failed");
    }
  }

  const Post& post_;
  EngineHooks hooks_;
  engine::CommitWord word_;
  mutable std::mutex mutex_;
  Version label_;
};

namespace {
constexpr double kRunSliceS = 0.05;  // how long close() may wait for a run() that nothing holds up
}  // namespace

struct Receiver::Impl {
  Post post;
  std::unique_ptr<EngineRank> rank;
  std::unique_ptr<agent::Agent> agent;
  std::mutex mutex;  // all below
  std::condition_variable changed;
  std::thread::id runner;  // inside run(); none: default
  bool closing = false, closed = false;

  // The place of the one thread that runs.
  struct Running {
    explicit Running(Impl& impl);
    ~Running();
    Running(const Running&) = delete;
    Running& operator=(const Running&) = delete;
    Impl& impl;
  };
  bool ends() {
    const std::lock_guard lock(mutex);
    return closing;
  }
  // Waits until no thread runs the agent. True when this call is the one that closes it.
  bool begin_close(Deadline deadline);
};

Receiver::Impl::Running::Running(Impl& i) : impl(i) {
  const std::lock_guard lock(impl.mutex);
  if (impl.closing) throw Error(Code::kCancelled, "the receiver is closed");
  if (impl.runner != std::thread::id()) throw Error(Code::kBusy, "another thread is inside run()");
  impl.runner = std::this_thread::get_id();
}

Receiver::Impl::Running::~Running() {
  const std::lock_guard lock(impl.mutex);
  impl.runner = {};
  impl.changed.notify_all();
}

bool Receiver::Impl::begin_close(Deadline deadline) {
  std::unique_lock lock(mutex);
  closing = true;
  if (runner == std::this_thread::get_id())
    throw Error(Code::kBusy, "close() was called by a hook, inside run(): that run() ends now, close after it");
  const auto idle = [&] { return runner == std::thread::id(); };
  if (!changed.wait_for(lock, std::chrono::nanoseconds(deadline.left_ns()), idle))
    throw Error(Code::kTimeout, "another thread is still inside run(): a hook holds it up; close again when it ended");
  return !std::exchange(closed, true);
}

Receiver::Receiver(const Layout& layout, const MemberOptions& options, EngineHooks hooks)
    : impl_(std::make_unique<Impl>()) {
  impl_->post = take(take_post(layout, options, Role::kTarget));
  impl_->rank = std::make_unique<EngineRank>(impl_->post, std::move(hooks));
  impl_->agent = take(agent::make_target_agent(impl_->post.seat->options(), *impl_->rank, *impl_->rank));
  take(join(*impl_->agent, impl_->post));
}

Receiver::~Receiver() = default;

std::vector<Memory> Receiver::memory() const {
  return RankMemory::describe(impl_->post.rank, impl_->post.memory.regions());
}

void Receiver::run(double seconds) {
  const Deadline deadline = Deadline::after_s(checked_s("seconds", seconds));
  const Impl::Running running(*impl_);
  Status s;
  do {
    s = impl_->agent->run(Deadline::after_s(kRunSliceS).sooner(deadline));
  } while (s.ok() && !deadline.over() && !impl_->ends());
  take(s);
}

bool Receiver::busy() const { return impl_->agent->busy(); }
VersionInfo Receiver::version() const { return to_public(impl_->rank->version()); }
bool Receiver::complete() const { return impl_->rank->complete(); }
MemberReport Receiver::report() const { return report_of(*impl_->agent, impl_->post); }

void Receiver::close(double timeout_s) {
  const Deadline deadline = Deadline::after_s(checked_s("timeout_s", timeout_s));
  if (!impl_->begin_close(deadline)) return;
  const Status left = impl_->agent->close(deadline);
  const Status movers = impl_->post.seat->close(deadline);
  take(left.ok() ? movers : left);
}

}  // namespace refit::api
