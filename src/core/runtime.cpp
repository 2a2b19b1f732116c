#include "core/runtime.h"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace refit {
namespace {
constexpr std::array<std::string_view, kPhaseCount> kPhaseNames = {
    "begin", "seal", "lend", "transfer", "staged", "voted", "decided", "gated", "copying", "applied", "reopened"};
}  // namespace

std::string_view to_string(Phase phase) { return kPhaseNames[static_cast<std::size_t>(phase)]; }
bool phase_from_string(std::string_view name, Phase& out) {
  const auto it = std::find(kPhaseNames.begin(), kPhaseNames.end(), name);
  if (it == kPhaseNames.end()) return false;
  out = static_cast<Phase>(it - kPhaseNames.begin());
  return true;
}

struct ThreadPool::Impl {
  std::mutex call_mutex;  // one parallel_for at a time
  std::mutex mutex;
  std::condition_variable wake, done;
  const std::function<void(std::int64_t)>* task = nullptr;
  std::int64_t n = 0;
  std::atomic<std::int64_t> next{0};
  std::uint64_t generation = 0;
  int running = 0;
  bool stop = false;
  std::vector<std::thread> workers;

  static void drain(const std::function<void(std::int64_t)>& f, std::atomic<std::int64_t>& next, std::int64_t n) {
    for (std::int64_t i = next.fetch_add(1); i < n; i = next.fetch_add(1)) f(i);
  }
  void work() {
    std::uint64_t seen = 0;
    std::unique_lock lock(mutex);
    while (true) {
      wake.wait(lock, [&] { return stop || generation != seen; });
      if (stop) return;
      seen = generation;
      const auto* f = task;
      const std::int64_t count = n;
      lock.unlock();
      drain(*f, next, count);
      lock.lock();
      if (--running == 0) done.notify_all();
    }
  }
};

ThreadPool::ThreadPool(int threads, std::string_view name)
    : threads_(std::max(1, threads)), impl_(std::make_unique<Impl>()) {
  for (int i = 1; i < threads_; ++i) {
    impl_->workers.emplace_back([impl = impl_.get()] { impl->work(); });
    ::pthread_setname_np(impl_->workers.back().native_handle(), std::string(name).substr(0, 15).c_str());
  }
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->stop = true;
  }
  impl_->wake.notify_all();
  for (std::thread& t : impl_->workers) t.join();
}

void ThreadPool::parallel_for(std::int64_t n, const std::function<void(std::int64_t)>& task) {
  if (n <= 0) return;
  if (threads_ == 1 || n == 1) {
    for (std::int64_t i = 0; i < n; ++i) task(i);
    return;
  }
  const std::lock_guard call(impl_->call_mutex);
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->task = &task;
    impl_->n = n;
    impl_->next = 0;
    impl_->running = threads_ - 1;
    ++impl_->generation;
  }
  impl_->wake.notify_all();
  Impl::drain(task, impl_->next, n);
  std::unique_lock lock(impl_->mutex);
  impl_->done.wait(lock, [&] { return impl_->running == 0; });
}

}  // namespace refit
