#include <functional>
#include <mutex>

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

struct Receiver::Impl {
  Post post;
  std::unique_ptr<EngineRank> rank;
  std::unique_ptr<agent::Agent> agent;
  bool closed = false;
};

Receiver::Receiver(const Layout& layout, const MemberOptions& options, EngineHooks hooks)
    : impl_(std::make_unique<Impl>()) {
  impl_->post = take(take_post(layout, options, Role::kTarget));
  impl_->rank = std::make_unique<EngineRank>(impl_->post, std::move(hooks));
  impl_->agent = take(agent::make_target_agent(impl_->post.seat->options(), *impl_->rank, *impl_->rank));
  take(join(*impl_->agent, impl_->post));
}

Receiver::~Receiver() = default;

std::vector<Memory> Receiver::memory() const { return impl_->post.memory.describe(impl_->post.rank); }

void Receiver::run(double seconds) {
  if (impl_->closed) throw Error(Code::kCancelled, "the receiver is closed");
  take(impl_->agent->run(Deadline::after_s(seconds)));
}

bool Receiver::busy() const { return impl_->agent->busy(); }
VersionInfo Receiver::version() const { return to_public(impl_->rank->version()); }
bool Receiver::complete() const { return impl_->rank->complete(); }
MemberReport Receiver::report() const { return report_of(*impl_->agent, impl_->post); }

void Receiver::close(double timeout_s) {
  if (impl_->closed) return;
  impl_->closed = true;
  const Deadline deadline = Deadline::after_s(timeout_s);
  const Status left = impl_->agent->close(deadline);
  const Status movers = impl_->post.seat->close(deadline);
  take(left.ok() ? movers : left);
}

}  // namespace refit::api
