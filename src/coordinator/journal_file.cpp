#include "coordinator/journal_file.h"

#include <algorithm>

namespace refit::coordinator {
namespace {

Status compact(Env& env, const std::string& path, JournalFile& journal) {
  const JournalState& r = journal.recovered;
  const Record claim{Epoch(r.epoch.value + 1), EpochRecord{r.job, r.lineage, r.digest_seed}};
  REFIT_TRY(journal.append(env, {&claim, 1}));
  REFIT_TRY(apply(journal.recovered, claim));
  const Record record{journal.recovered.epoch, snapshot(journal.recovered)};
  const wire::Bytes bytes = encode({&record, 1});
  // What will be read back must be what is known, or the old file stays.
  REFIT_ASSIGN(const JournalState again, recover(bytes, journal.recovered.job));
  if (snapshot(again) != snapshot(journal.recovered))
    return Error(Code::kInternal, "journal: its snapshot does not say what the journal says");
  const std::string fresh = path + ".new";
  REFIT_ASSIGN(std::unique_ptr<File> file, env.file(fresh));
  REFIT_TRY(file->truncate(0));  // left over from a compaction that died
  REFIT_TRY(file->append(bytes));
  REFIT_TRY(file->sync());
  REFIT_TRY(env.replace(fresh, path));
  journal.file = std::move(file);
  journal.bytes = static_cast<std::int64_t>(bytes.size());
  journal.last = bytes;
  journal.last_epoch = record.epoch;
  journal.recovered = again;
  return {};
}

}  // namespace

Status JournalFile::append(Env& env, std::span<const Record> records) {
  const wire::Bytes frame = encode(records);
  REFIT_TRY(file->append(frame));
  REFIT_TRY(file->sync());
  REFIT_ASSIGN(const std::unique_ptr<File> there, env.file(path));
  REFIT_ASSIGN(const std::vector<std::byte> end, there->read_from(bytes));
  if (end == frame) {
    bytes += static_cast<std::int64_t>(frame.size());
    last = frame;
    last_epoch = records[0].epoch;
    return {};
  }
  REFIT_ASSIGN(const std::vector<std::byte> all, there->read_all());
  const Result<JournalState> read = recover(all, recovered.job);
  const std::string theirs = read.ok() ? "of epoch " + std::to_string(read->epoch.value) : read.error().message;
  return Error(Code::kMismatch, "another process has written the journal, it is now " + theirs +
                                    ", this coordinator is of epoch " + std::to_string(records[0].epoch.value) +
                                    " and ends");
}

Result<Epoch> JournalFile::highest(Env& env) const {
  REFIT_ASSIGN(const std::unique_ptr<File> there, env.file(path));
  if (!last.empty()) {
    REFIT_ASSIGN(const std::vector<std::byte> end, there->read_from(bytes - static_cast<std::int64_t>(last.size())));
    if (end == last) return last_epoch;
  }
  REFIT_ASSIGN(const std::vector<std::byte> all, there->read_all());
  REFIT_ASSIGN(const JournalState state, recover(all, recovered.job));
  return state.epoch;
}

Result<JournalFile> open_journal(Env& env, const std::string& path, const Hash128& job, std::int64_t compact_bytes) {
  JournalFile out;
  out.path = path;
  REFIT_ASSIGN(out.lock, env.file(path + ".lock"));
  REFIT_TRY(out.lock->lock());
  REFIT_ASSIGN(out.file, env.file(path));
  REFIT_ASSIGN(const std::vector<std::byte> bytes, out.file->read_all());
  REFIT_ASSIGN(out.recovered, recover(bytes, job));
  if (out.recovered.torn_bytes > 0) REFIT_TRY(out.file->truncate(out.recovered.valid_bytes));
  out.bytes = out.recovered.valid_bytes;
  if (out.recovered.valid_bytes > compact_bytes) REFIT_TRY(compact(env, path, out));
  return out;
}

}  // namespace refit::coordinator
