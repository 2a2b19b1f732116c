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
};

// Locks, reads, and cuts a torn tail. A journal of more than `compact_bytes` is written anew as one snapshot record to
// PATH.new, synced and renamed over the old one: whoever dies on the way leaves the old file or the new one, whole.
// Errors: kBusy when another process holds the lock; kCorrupt, kMismatch as recover(); those of the file system.
Result<JournalFile> open_journal(Env& env, const std::string& path, const Hash128& job, std::int64_t compact_bytes);

}  // namespace refit::coordinator
