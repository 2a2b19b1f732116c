// Compaction of the journal: dead at every step, with and without what was not synced, and the lock.
#include "coordinator/journal_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <map>

namespace refit::coordinator {
namespace {

const Hash128 kFileJob{7, 7};
const Lineage kFileLineage{1, 2};
Txn file_txn(std::uint64_t counter) { return {kFileLineage, Epoch(1), counter}; }

// A disk that forgets: names and bytes are durable once synced, and the machine dies at operation `die_at`.
class Disk final : public Env {
 public:
  struct Inode {
    std::vector<std::byte> bytes, synced;
  };
  std::map<std::string, std::shared_ptr<Inode>> names;
  int operations = 0, die_at = -1;
  std::size_t bytes_read = 0;
  bool keeps_unsynced = false;  // what was not synced is there all the same
  bool renamed_at_death = false;

  Status step() {
    if (die_at >= 0 && operations++ >= die_at) return Error(Code::kInternal, "the machine is dead");
    return {};
  }
  void reboot() {
    die_at = -1;
    for (auto& [name, inode] : names)
      if (!keeps_unsynced) inode->bytes = inode->synced;
  }
  std::int64_t now_ns() override { return 0; }
  void wait(Deadline) override {}
  Status random(std::span<std::byte>) override { return {}; }
  Result<Fd> shm(std::string_view, std::int64_t) override { return Error(Code::kUnsupported, ""); }
  Result<std::unique_ptr<File>> file(const std::string& path) override;
  Status replace(const std::string& from, const std::string& to) override {
    const Status alive = step();
    if (alive.ok() || renamed_at_death) {
      if (!names.contains(from)) return Error(Code::kInvalid, "no such file");
      names[to] = names[from];
      names.erase(from);
    }
    return alive;
  }
  Result<Fd> listen(const std::string&) override { return Error(Code::kUnsupported, ""); }
  Result<Fd> connect(const std::string&, Deadline) override { return Error(Code::kUnsupported, ""); }
  Result<int> spawn(const std::vector<std::string>&) override { return Error(Code::kUnsupported, ""); }
};

class DiskFile final : public File {
 public:
  DiskFile(Disk& disk, std::shared_ptr<Disk::Inode> inode) : disk_(disk), inode_(std::move(inode)) {}
  Result<std::vector<std::byte>> read_from(std::int64_t offset) override {
    const auto from = std::min(static_cast<std::size_t>(offset), inode_->bytes.size());
    disk_.bytes_read += inode_->bytes.size() - from;
    return std::vector<std::byte>(inode_->bytes.begin() + static_cast<std::ptrdiff_t>(from), inode_->bytes.end());
  }
  Status append(std::span<const std::byte> bytes) override {
    const Status alive = disk_.step();
    // Dead in the middle: half of it may be there.
    const std::size_t n = alive.ok() ? bytes.size() : bytes.size() / 2;
    if (alive.ok() || disk_.keeps_unsynced)
      inode_->bytes.insert(inode_->bytes.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(n));
    return alive;
  }
  Status sync() override {
    REFIT_TRY(disk_.step());
    inode_->synced = inode_->bytes;
    return {};
  }
  Status truncate(std::int64_t bytes) override {
    REFIT_TRY(disk_.step());
    inode_->bytes.resize(static_cast<std::size_t>(bytes));
    return {};
  }
  Status reserve(std::int64_t) override { return {}; }
  Status lock() override { return {}; }

 private:
  Disk& disk_;
  std::shared_ptr<Disk::Inode> inode_;
};

Result<std::unique_ptr<File>> Disk::file(const std::string& path) {
  std::shared_ptr<Inode>& inode = names[path];
  if (!inode) inode = std::make_shared<Inode>();
  return std::unique_ptr<File>(std::make_unique<DiskFile>(*this, inode));
}

void write(wire::Bytes& out, RecordBody body) {
  const Record record{Epoch(1), std::move(body)};
  const wire::Bytes bytes = encode({&record, 1});
  out.insert(out.end(), bytes.begin(), bytes.end());
}

// Twenty rounds: the fifth aborted, one member evicted in the tenth, the last committed and unfinished.
wire::Bytes long_story() {
  wire::Bytes out;
  write(out, EpochRecord{kFileJob, kFileLineage, 42});
  for (std::uint64_t n = 1; n <= 20; ++n) {
    write(out, BeginRecord{file_txn(n), n, n, LayoutEpoch(1), {5, 5}, {{0, Incarnation(10)}, {1, Incarnation(11)}}});
    if (n == 5) {
      write(out, AbortRecord{file_txn(n)});
      continue;
    }
    write(out, CommitRecord{file_txn(n), {kFileLineage, n, {9, n}, 3}, {}});
    if (n == 10) write(out, EvictRecord{file_txn(n), n, {{2, Incarnation(12)}}});
    if (n < 20) write(out, EndRecord{file_txn(n)});
  }
  return out;
}

Disk full_disk() {
  Disk disk;
  auto inode = std::make_shared<Disk::Inode>();
  inode->bytes = inode->synced = long_story();
  disk.names["journal"] = inode;
  return disk;
}

TEST(JournalFile, ACompactedJournalSaysTheSame) {
  Disk disk = full_disk();
  const JournalState before = *recover(disk.names["journal"]->bytes, kFileJob);
  const auto opened = open_journal(disk, "journal", kFileJob, 1000);
  ASSERT_TRUE(opened.ok()) << opened.error().to_string();
  JournalState want = before;
  want.committed = {file_txn(20)};  // the older ones are told apart from the aborted no longer
  want.forgotten = file_txn(20);
  want.epoch = Epoch(2);  // the one that compacted it
  want.valid_bytes = opened->recovered.valid_bytes;
  EXPECT_EQ(opened->recovered, want);
  EXPECT_LT(opened->recovered.valid_bytes, 1000);
  EXPECT_FALSE(disk.names.contains("journal.new"));
  // It goes on from there.
  const Record epoch{Epoch(3), EpochRecord{kFileJob, kFileLineage, 42}}, end{Epoch(3), EndRecord{file_txn(20)}};
  const Record both[] = {epoch, end};
  ASSERT_TRUE(opened->file->append(encode(both)).ok());
  const auto again = open_journal(disk, "journal", kFileJob, 1 << 20);
  ASSERT_TRUE(again.ok()) << again.error().to_string();
  EXPECT_FALSE(again->recovered.open);
  EXPECT_EQ(again->recovered.number, 20u);
  EXPECT_THAT(again->recovered.evicted, testing::ElementsAre(Seat{2, Incarnation(12)}));
}

TEST(JournalFile, AShortOneIsLeftAlone) {
  Disk disk = full_disk();
  const wire::Bytes bytes = disk.names["journal"]->bytes;
  ASSERT_TRUE(open_journal(disk, "journal", kFileJob, 1 << 20).ok());
  EXPECT_EQ(disk.names["journal"]->bytes, bytes);
}

TEST(JournalFile, DeadAtEachStepOfACompactionLeavesOneWholeJournal) {
  const SnapshotRecord want = snapshot(*recover(long_story(), kFileJob));
  for (const bool keeps : {false, true})
    for (const bool renamed : {false, true})
      for (int at = 0;; ++at) {
        Disk disk = full_disk();
        disk.keeps_unsynced = keeps;
        disk.renamed_at_death = renamed;
        disk.die_at = at;
        if (open_journal(disk, "journal", kFileJob, 1000).ok()) {
          EXPECT_EQ(at, 6) << "claim, sync, truncate, append, sync, rename";
          break;
        }
        disk.reboot();
        const auto read = recover(disk.names["journal"]->bytes, kFileJob);
        ASSERT_TRUE(read.ok()) << at;
        EXPECT_EQ(snapshot(*read), want) << at;
        const auto opened = open_journal(disk, "journal", kFileJob, 1000);
        ASSERT_TRUE(opened.ok()) << at << ": " << opened.error().to_string();
        EXPECT_EQ(snapshot(opened->recovered), want) << at;
      }
}

// Two coordinators on one file, whose locks do not see each other: whoever comes second in it tells nobody anything.
TEST(JournalFile, ARecordCountsOnlyWhereNobodyElseHasWritten) {
  const Record commit{Epoch(1), EndRecord{file_txn(20)}}, claim{Epoch(2), EpochRecord{kFileJob, kFileLineage, 42}};
  const auto both_epochs = testing::AllOf(testing::HasSubstr("of epoch 2,"), testing::HasSubstr("of epoch 1 "));
  for (const std::int64_t compact_bytes : {std::int64_t{1} << 20, std::int64_t{1000}}) {
    Disk disk = full_disk();
    auto first = open_journal(disk, "journal", kFileJob, 1 << 20);
    ASSERT_TRUE(first.ok());
    auto second = open_journal(disk, "journal", kFileJob, compact_bytes);  // or it has replaced the file already
    ASSERT_TRUE(second.ok());
    if (compact_bytes > 1000) {
      ASSERT_TRUE(second->append(disk, {&claim, 1}).ok());
    }
    const Status late = first->append(disk, {&commit, 1});
    ASSERT_FALSE(late.ok());
    EXPECT_EQ(late.error().code, Code::kMismatch);
    EXPECT_THAT(late.error().message, both_epochs);
    EXPECT_TRUE(recover(disk.names["journal"]->bytes, kFileJob)->open_committed) << "what came late says nothing";
  }
  // The first writes after the second has read: what the second read is not how things stand.
  Disk disk = full_disk();
  auto first = open_journal(disk, "journal", kFileJob, 1 << 20),
       second = open_journal(disk, "journal", kFileJob, 1 << 20);
  ASSERT_TRUE(first->append(disk, {&commit, 1}).ok());
  EXPECT_EQ(second->append(disk, {&claim, 1}).error().code, Code::kMismatch);
}

// What an append and a look at the epoch cost does not grow with the journal.
TEST(JournalFile, OnlyTheEndIsReadWhileNobodyElseWrites) {
  Disk disk = full_disk();
  auto journal = open_journal(disk, "journal", kFileJob, 1 << 20);
  ASSERT_TRUE(journal.ok());
  EXPECT_EQ(*journal->highest(disk), Epoch(1)) << "before a record of ours it reads all";
  const Record claim{Epoch(2), EpochRecord{kFileJob, kFileLineage, 42}};
  disk.bytes_read = 0;
  ASSERT_TRUE(journal->append(disk, {&claim, 1}).ok());
  EXPECT_EQ(*journal->highest(disk), Epoch(2));
  EXPECT_EQ(disk.bytes_read, 2 * encode({&claim, 1}).size());
  // Somebody else writes: behind ours, or another file of any length.
  const Record theirs{Epoch(9), EpochRecord{kFileJob, kFileLineage, 42}};
  const wire::Bytes mine = disk.names["journal"]->bytes;
  wire::Bytes& now = disk.names["journal"]->bytes;
  const wire::Bytes frame = encode({&theirs, 1});
  now.insert(now.end(), frame.begin(), frame.end());
  EXPECT_EQ(*journal->highest(disk), Epoch(9));
  now = long_story();
  EXPECT_EQ(*journal->highest(disk), Epoch(1)) << "shorter";
  now.insert(now.end(), frame.begin(), frame.end());
  ASSERT_EQ(now.size(), mine.size());
  EXPECT_EQ(*journal->highest(disk), Epoch(9)) << "of the same length";
}

TEST(JournalFile, ASnapshotAfterARoundIsRefused) {
  wire::Bytes bytes = long_story();
  const Record late{Epoch(2), snapshot(*recover(bytes, kFileJob))};
  const wire::Bytes frame = encode({&late, 1});
  bytes.insert(bytes.end(), frame.begin(), frame.end());
  EXPECT_EQ(recover(bytes, kFileJob).error().code, Code::kCorrupt);
}

// The lock is of a file that is never renamed: a second coordinator is refused before, and after, a compaction.
TEST(JournalFile, TheLockOutlivesACompaction) {
  char dir[] = "/tmp/refit-journal-XXXXXX";
  ASSERT_NE(::mkdtemp(dir), nullptr);
  const std::string path = std::string(dir) + "/journal";
  {
    const auto file = system_env().file(path);
    ASSERT_TRUE(file.ok());
    ASSERT_TRUE((*file)->append(long_story()).ok());
  }
  {
    const auto first = open_journal(system_env(), path, kFileJob, 1000);
    ASSERT_TRUE(first.ok()) << first.error().to_string();
    EXPECT_LT(std::filesystem::file_size(path), 1000u);
    EXPECT_EQ(open_journal(system_env(), path, kFileJob, 1000).error().code, Code::kBusy);
  }
  EXPECT_TRUE(open_journal(system_env(), path, kFileJob, 1000).ok());
  std::filesystem::remove_all(dir);
}

}  // namespace
}  // namespace refit::coordinator
