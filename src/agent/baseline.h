// Baseline: what a source sent in the last committed round, bucket by bucket as it travelled. Deltas are made against
// it. It moves only on commit (protocol rule: base(s) = T means that T is committed), and after an abort it is what it
// was.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "agent/packer.h"
#include "agent/sealer.h"
#include "codec/codec.h"
#include "wire/wire.h"

namespace refit::agent {

// *thread-compatible*: used by the worker. Belongs to a plan; the plan must outlive it.
class Baseline {
 public:
  struct Options {
    codec::Form form = codec::Form::kUndoable;
    std::string directory;  // empty: memory; else a file without a name there, which no restart finds again
    kernel::Exec exec;
    memory::Budget* budget = nullptr;
  };
  static Result<std::unique_ptr<Baseline>> make(const Planned& planned, const Options& options);

  const Txn& txn() const { return txn_; }  // counter 0: nothing is held
  // A round begins: what it seals, and the base that it asks for.
  void begin(const Txn& txn, const Txn& base, const Seal& seal);
  // The round's base is held here for this bucket.
  bool serves(std::size_t bucket) const;
  // Nothing is held for this bucket: the round's packed bytes may be put here and sent from here; filled() says so.
  std::byte* room(std::size_t bucket);
  void filled(std::size_t bucket) { pending_[bucket] = {Pending::kFilled, {}}; }

  struct Choice {
    wire::Encoding encoding = wire::Encoding::kRaw;
    Hash128 base;                        // identity; zero for raw
    std::span<const std::byte> payload;  // of a delta; stays until the next begin()
    std::int64_t changed = 0;            // elements
  };
  // The shortest of unchanged, delta, raw. `next`: packed bytes of this round. serves(bucket) holds.
  Result<Choice> choose(std::size_t bucket, std::span<const std::byte> next);

  // Round `txn` is committed. `packer` reads what was sealed, null when that may have changed since; buckets that
  // cannot be brought to the round are held no more, and the next round sends them complete. What is read anew is
  // compared with its seal: a trainer may have written since its vote without saying so. Returns the number of buckets
  // that were not what was sealed.
  Result<std::size_t> move(const Txn& txn, const Packer* packer, Sealer& sealer);
  void drop() { txn_ = {}, valid_.assign(valid_.size(), false); }
  // Digests all that is held and lets go of what is not what was sealed. Returns the number of such buckets.
  std::size_t prove(Sealer& sealer);
  std::int64_t bytes() const { return memory_.bytes(); }

 private:
  struct Pending {
    enum What : std::uint8_t { kNothing, kFilled, kUnchanged, kDelta } what = kNothing;
    std::span<const std::byte> payload;
  };
  Baseline(const Planned& planned, const Options& options);
  std::span<std::byte> held(std::size_t bucket);

  const plan::RankPlan& plan_;
  const codec::Form form_;
  codec::Workspace work_;
  std::vector<std::int64_t> starts_, sizes_;             // per bucket, in memory_
  std::vector<std::vector<install::Section>> sections_;  // per bucket
  memory::Arena memory_, payloads_, slot_;               // bases; deltas of the round in hand; one message
  std::int64_t payload_end_ = 0;

  Txn txn_, round_, asked_;
  std::vector<bool> valid_;
  std::vector<Hash128> ids_, next_ids_;
  std::vector<std::vector<install::TensorDigest>> sealed_, next_sealed_;
  std::vector<Pending> pending_;
};

}  // namespace refit::agent
