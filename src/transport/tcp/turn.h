// Turn: a lock whose holder in a loop lets everybody else go first.
#pragma once
#include <atomic>
#include <mutex>

namespace refit::transport::tcp {

// A caller's turn: announced, so that the loop does not take the lock again before it.
class Turn {
 public:
  Turn(std::mutex& mutex, std::atomic<int>& callers) : lock_(mutex, std::defer_lock) {
    callers.fetch_add(1);
    lock_.lock();
    callers.fetch_sub(1);
  }

 private:
  std::unique_lock<std::mutex> lock_;
};

}  // namespace refit::transport::tcp
