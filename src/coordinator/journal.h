// The coordinator's journal: the only durable state of a job. Append-only frames of records, each with length, epoch
// and hash; a torn tail is cut, a frame of a lower epoch after a higher one is ignored (C13, C14). *pure*: the driver
// does the I/O.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "core/core.h"
#include "wire/wire.h"

namespace refit::coordinator {

struct Seat {  // one member of a journaled membership
  std::uint32_t member = 0;
  Incarnation incarnation;  // 0 in a list of evicted seats: whoever holds the place and has not been heard
  friend auto operator<=>(const Seat&, const Seat&) = default;
};

// First record of every coordinator's life; the first of a file founds the lineage.
struct EpochRecord {
  Hash128 job;
  Lineage lineage;
  std::uint64_t digest_seed = 0;
  friend bool operator==(const EpochRecord&, const EpochRecord&) = default;
};
struct BeginRecord {
  Txn txn;
  std::uint64_t number = 0, membership_epoch = 0;
  LayoutEpoch layout_epoch;
  PlanId plan;
  std::vector<Seat> members;  // pinned for this round (C12)
  friend bool operator==(const BeginRecord&, const BeginRecord&) = default;
};
struct EvictRecord {
  Txn txn;  // round during which they were evicted
  std::uint64_t membership_epoch = 0;
  std::vector<Seat> members;
  friend bool operator==(const EvictRecord&, const EvictRecord&) = default;
};
struct CommitRecord {
  Txn txn;
  Version version;
  wire::Digest4 digest;
  friend bool operator==(const CommitRecord&, const CommitRecord&) = default;
};
struct AbortRecord {
  Txn txn;
  friend bool operator==(const AbortRecord&, const AbortRecord&) = default;
};
struct EndRecord {  // every member applied or was evicted
  Txn txn;
  friend bool operator==(const EndRecord&, const EndRecord&) = default;
};
// All that is known, in one record: the first of a compacted file, or what a coordinator without a journal rebuilt from
// its members' words. Later in a file only before any round: nothing that was begun is ever forgotten by it.
struct SnapshotRecord {
  Hash128 job;
  Lineage lineage;
  std::uint64_t digest_seed = 0, counter = 0, number = 0, membership_epoch = 0;
  Txn forgotten;
  std::optional<CommitRecord> newest;
  std::optional<BeginRecord> open;
  bool open_committed = false;
  std::vector<Seat> evicted;
  friend bool operator==(const SnapshotRecord&, const SnapshotRecord&) = default;
};
using RecordBody =
    std::variant<EpochRecord, BeginRecord, EvictRecord, CommitRecord, AbortRecord, EndRecord, SnapshotRecord>;
struct Record {
  Epoch epoch;  // of the coordinator that wrote it
  RecordBody body;
  friend bool operator==(const Record&, const Record&) = default;
};

// One append: all records share one length and one hash, so that they are durable together or not at all. All must have
// the same epoch. The driver syncs every append before the next one.
wire::Bytes encode(std::span<const Record> records);

struct JournalState {
  Hash128 job;
  Lineage lineage;
  std::uint64_t digest_seed = 0;
  Epoch epoch;                // highest seen; 0: empty journal
  std::uint64_t counter = 0;  // highest txn counter of any epoch
  std::uint64_t number = 0;   // highest version number ever begun
  std::uint64_t membership_epoch = 0;
  std::optional<CommitRecord> newest;  // newest commit
  std::vector<Txn> committed;          // ascending; those before `forgotten` are not in it, but for the newest
  Txn forgotten;                       // of rounds up to this one only the newest commit is known
  std::optional<BeginRecord> open;     // last round begun and not ended: undecided, or committed and unfinished
  bool open_committed = false;
  std::vector<Seat> evicted;     // of any round; ascending
  std::int64_t valid_bytes = 0;  // cut the file here before appending
  std::int64_t torn_bytes = 0;   // what was cut
  friend bool operator==(const JournalState&, const JournalState&) = default;
};

// Reads a whole journal. A damaged *tail* is cut (it was never acknowledged); damage before an intact record is
// kCorrupt with the offset: nothing is guessed. kMismatch for the journal of another job (`job` not zero).
Result<JournalState> recover(std::span<const std::byte> bytes, const Hash128& job);
// Applies one record; also what recover() does. kCorrupt when it contradicts what is known (a second decision…).
Status apply(JournalState& state, const Record& record);

// The state as one record, for compaction. Of the committed rounds only the newest is kept: a target that is inside an
// older one was evicted or had reopened, and an older source is told that its round is over (see settle).
SnapshotRecord snapshot(const JournalState& state);

// Reserve this much with File::reserve at begin, so that the decision can't fail for lack of space.
std::int64_t round_reserve_bytes(std::size_t members);

}  // namespace refit::coordinator
