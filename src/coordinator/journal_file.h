// The journal as a file: lock, recovery, and its compaction when it has grown.
#pragma once
#include <memory>
#include <string>

#include "coordinator/journal.h"

namespace refit::coordinator {

struct JournalFile {
  std::unique_ptr<File> lock;  // of PATH.lock, which is never renamed; held for the coordinator's life
  std::unique_ptr<File> file;
  JournalState recovered;
  std::string path;
  std::int64_t bytes = 0;  // of the file at `path`, as this process left it
  wire::Bytes last;        // what this process wrote there last
  Epoch last_epoch;        // of those records

  // One append, durable when it returns success, and only if nobody else has written or replaced the file since this
  // process did: a lock may not reach a coordinator on another host (C13). kMismatch, naming both epochs, when somebody
  // has; whether the records count is then for a reader to say.
  Status append(Env& env, std::span<const Record> records);
  // The highest epoch in the file that lies at `path` now: whoever took over may have put another there. Reads only its
  // end while nobody else has written.
  Result<Epoch> highest(Env& env) const;
};

// Locks, reads, and cuts a torn tail. A journal of more than `compact_bytes` is written anew as one snapshot record to
// PATH.new, synced and renamed over the old one: whoever dies on the way leaves the old file or the new one, whole. It
// is claimed for an epoch of its own before, so that nobody who still has the old file may think that a record counts.
// Errors: kBusy when another process holds the lock; kCorrupt, kMismatch as recover(); those of the file system.
Result<JournalFile> open_journal(Env& env, const std::string& path, const Hash128& job, std::int64_t compact_bytes);

}  // namespace refit::coordinator
