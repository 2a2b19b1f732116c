#include "coordinator/journal_file.h"

namespace refit::coordinator {
namespace {

Status compact(Env& env, const std::string& path, JournalFile& journal) {
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
  journal.recovered = again;
  return {};
}

}  // namespace

Result<JournalFile> open_journal(Env& env, const std::string& path, const Hash128& job, std::int64_t compact_bytes) {
  JournalFile out;
  REFIT_ASSIGN(out.lock, env.file(path + ".lock"));
  REFIT_TRY(out.lock->lock());
  REFIT_ASSIGN(out.file, env.file(path));
  REFIT_ASSIGN(const std::vector<std::byte> bytes, out.file->read_all());
  REFIT_ASSIGN(out.recovered, recover(bytes, job));
  if (out.recovered.torn_bytes > 0) REFIT_TRY(out.file->truncate(out.recovered.valid_bytes));
  if (out.recovered.valid_bytes > compact_bytes) REFIT_TRY(compact(env, path, out));
  return out;
}

}  // namespace refit::coordinator
