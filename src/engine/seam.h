// The two small classes that either end implements: one per instance, one per rank.
#pragma once
#include <memory>
#include <span>
#include <string>

#include "core/core.h"
#include "engine/commit_word.h"
#include "memory/memory.h"
#include "model/model.h"

namespace refit::engine {

enum class CachePolicy : std::uint8_t { kReset, kKeep };

// How an instance is steered round an install. Called only on the thread that runs the agent, never on a library
// thread. Every call is idempotent; a failure before the decision aborts the round, after it fences the replica.
class Instance {
 public:
  virtual ~Instance() = default;
  // Brings memory into the state that an install needs, e.g. tags {"weights"}, {"kv_cache"}.
  virtual Status prepare(std::span<const std::string> tags) = 0;
  // Shuts the gate: returns when no forward pass of this rank reads weights. kTimeout when that takes too long.
  virtual Status pause(Deadline deadline) = 0;
  virtual Status resume() = 0;
  // Prefix, encoder and multimodal caches. A reset that fails must say so.
  virtual Status invalidate(CachePolicy policy) = 0;
  // The label that requests are answered with.
  virtual Version version() const = 0;
  virtual Status set_version(const Version& version) = 0;
};

// One rank's weights: the layout, and either memory (regions, one per buffer of the layout's rank) or, for engines
// whose run layout is private, a loader (which comes with those engines).
class Shard {
 public:
  virtual ~Shard() = default;
  virtual std::shared_ptr<const model::Layout> layout() const = 0;
  virtual Rank rank() const = 0;
  // One per BufferSpec, same order and size. Asked on the agent's worker; trainers may answer with other addresses
  // after a guard, which the next seal follows.
  virtual std::span<const memory::RegionRef> regions() = 0;
  // Engines: the commit word beside the live bytes. Trainers: null.
  virtual CommitWord* commit_word() { return nullptr; }
  // Trainers: number of writes so far. Bumped before a write begins, so an unchanged number proves unchanged bytes.
  virtual std::uint64_t write_counter() const { return 0; }
};

}  // namespace refit::engine
