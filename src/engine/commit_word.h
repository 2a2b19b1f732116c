// Commit word: beside the live bytes, says whose bytes they are. The worker's own gate reads it and fails closed.
#pragma once
#include <atomic>
#include <cstdint>

#include "core/core.h"

namespace refit::engine {

enum class WordState : std::uint32_t {
  kNone = 0,     // never installed
  kCopying = 1,  // bytes are a mixture
  kApplied = 2,  // bytes are txn's, verified
};

struct WordValue {
  WordState state = WordState::kNone;
  Txn txn;
  Version version;  // meaningful for kApplied
  friend bool operator==(const WordValue&, const WordValue&) = default;
};

// Plain data in the memory of the live weights, so that it outlives an agent. One writer (the installing thread), any
// number of readers (seqlock). *thread-safe*.
class CommitWord {
 public:
  // kCopying is visible before the first live byte is written, kApplied after the last one was digested.
  void store(const WordValue& value);
  // kCopying when a write of the word itself is in progress: unclear is closed.
  WordValue load() const;

 private:
  static constexpr std::size_t kWords = 14;
  std::atomic<std::uint64_t> sequence_{0};
  std::atomic<std::uint64_t> body_[kWords]{};
};

}  // namespace refit::engine
