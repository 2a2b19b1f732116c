#include <pthread.h>

#include <atomic>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "facade/member.h"

namespace refit::api {
namespace {
constexpr double kServeSliceS = 0.02;  // how long close() may wait for the serving thread
}  // namespace

class TrainerShard final : public engine::Shard {
 public:
  explicit TrainerShard(const Post& post)
      : post_(post), regions_(post.memory.regions().begin(), post.memory.regions().end()) {}
  std::shared_ptr<const model::Layout> layout() const override { return post_.layout; }
  Rank rank() const override { return post_.rank.rank; }
  // What was rebound comes into force here, on the thread that reads it.
  std::span<const memory::RegionRef> regions() override {
    const std::lock_guard lock(mutex_);
    if (next_) regions_ = *std::exchange(next_, std::nullopt);
    return regions_;
  }
  void rebind(std::vector<memory::RegionRef> regions) {
    const std::lock_guard lock(mutex_);
    next_ = std::move(regions);
  }
  std::vector<Memory> describe() const {
    const std::lock_guard lock(mutex_);
    return RankMemory::describe(post_.rank, next_ ? *next_ : regions_);
  }
  std::uint64_t write_counter() const override { return writes_.load(std::memory_order_seq_cst); }
  void about_to_write() { writes_.fetch_add(1, std::memory_order_seq_cst); }

 private:
  const Post& post_;
  std::atomic<std::uint64_t> writes_{0};
  mutable std::mutex mutex_;  // next_, and regions_ against describe()
  std::vector<memory::RegionRef> regions_;
  std::optional<std::vector<memory::RegionRef>> next_;
};

struct Publisher::Impl {
  Post post;
  std::unique_ptr<TrainerShard> shard;
  std::unique_ptr<agent::SourceAgent> agent;
  std::atomic<bool> stop{false};
  std::thread server;
  mutable std::mutex mutex;  // failed, closed
  std::optional<InnerError> failed;
  bool closed = false;

  void serve();
  void check() const;
  Status close(double timeout_s);
};

void Publisher::Impl::serve() {
  while (!stop) {
    const Status s = agent->run(Deadline::after_s(kServeSliceS));
    if (s.ok()) continue;
    const std::lock_guard lock(mutex);
    failed = s.error();
    return;
  }
}

void Publisher::Impl::check() const {
  const std::lock_guard lock(mutex);
  if (failed) throw to_public(*failed);
  if (closed) throw Error(Code::kCancelled, "the publisher is closed");
}

Status Publisher::Impl::close(double timeout_s) {
  {
    const std::lock_guard lock(mutex);
    if (closed) return {};
    closed = true;
  }
  stop = true;
  if (server.joinable()) server.join();
  const Deadline deadline = Deadline::after_s(timeout_s);
  const Status left = agent->close(deadline);
  const Status movers = post.seat->close(deadline);
  return left.ok() ? movers : left;
}

Publisher::Publisher(const Layout& layout, const MemberOptions& options) : impl_(std::make_unique<Impl>()) {
  impl_->post = take(take_post(layout, options, Role::kSource));
  impl_->shard = std::make_unique<TrainerShard>(impl_->post);
  impl_->agent = take(agent::make_source_agent(impl_->post.seat->options(), *impl_->shard));
  take(join(*impl_->agent, impl_->post));
  impl_->server = std::thread([impl = impl_.get()] { impl->serve(); });
  ::pthread_setname_np(impl_->server.native_handle(), "refit-publish");
}

Publisher::~Publisher() {
  if (impl_) [[maybe_unused]]
    const Status s = impl_->close(1);
}

std::vector<Memory> Publisher::memory() const { return impl_->shard->describe(); }

void Publisher::publish(std::int64_t step, const std::string& weight_set) {
  impl_->check();
  impl_->agent->publish(step, weight_set);
}

void Publisher::guard(double timeout_s) {
  const Deadline deadline = Deadline::after_s(checked_s("timeout_s", timeout_s));
  impl_->check();
  take(impl_->agent->guard(deadline));
  impl_->shard->about_to_write();
}

void Publisher::rebind(const std::vector<Memory>& memory, double timeout_s) {
  if (impl_->post.memory.owned())
    throw Error(Code::kInvalid, "the publisher's memory is Refit's own: only memory that was lent can be replaced");
  std::vector<memory::RegionRef> regions = take(RankMemory::find(impl_->post.rank, memory));
  guard(timeout_s);
  impl_->shard->rebind(std::move(regions));
}

MemberReport Publisher::report() const {
  impl_->check();
  return report_of(*impl_->agent, impl_->post);
}

void Publisher::close(double timeout_s) { take(impl_->close(checked_s("timeout_s", timeout_s))); }

}  // namespace refit::api
