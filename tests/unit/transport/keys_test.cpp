// Key files: what is written, and everything that must be refused before a key is believed.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "conformance/bed.h"
#include "transport/transport.h"

namespace refit::transport {
namespace {

namespace fs = std::filesystem;
using conformance::TempDir;

const std::vector<MemberName> kMembers = {{Role::kSource, 0, 0}, {Role::kTarget, 1, 2}, {Role::kClient, 0, 0}};
const Hash128 kJob{1, 2};

std::string slurp(const std::string& path) {
  std::ostringstream out;
  out << std::ifstream(path).rdbuf();
  return out.str();
}
std::string refusal(const std::string& path) {
  const auto read = read_key_file(path);
  return read.ok() ? "accepted" : read.error().message;
}

struct Keys : testing::Test {
  TempDir dir;
  std::string in = dir.path() + "/keys", member = in + "/target-1.2.key", hub = in + "/coordinator.key",
              list = in + "/members.pub";
  void SetUp() override { ASSERT_TRUE(write_key_files(in, kJob, kMembers).ok()); }
  static void change(const std::string& path, const std::string& from, const std::string& to) {
    std::string text = slurp(path);
    const auto at = text.find(from);
    ASSERT_NE(at, std::string::npos);
    std::ofstream(path) << text.replace(at, from.size(), to);
  }
};

TEST_F(Keys, WhatIsWrittenReadsBack) {
  const auto coordinator = read_key_file(hub);
  ASSERT_TRUE(coordinator.ok()) << coordinator.error().to_string();
  EXPECT_FALSE(coordinator->owner);
  ASSERT_EQ(coordinator->keys.admitted.size(), kMembers.size());
  for (std::uint32_t i = 0; i < kMembers.size(); ++i) {
    const auto own = read_key_file(in + "/" + key_file_name(kMembers[i]));
    ASSERT_TRUE(own.ok()) << own.error().to_string();
    EXPECT_EQ(own->owner, kMembers[i]);
    EXPECT_EQ(own->member, i);
    EXPECT_EQ(own->job, kJob);
    EXPECT_EQ(own->keys.coordinator, coordinator->keys.own.public_key);
    bool listed = false;
    for (const Admitted& a : coordinator->keys.admitted)
      listed = listed || (a.name == kMembers[i] && a.public_key == own->keys.own.public_key);
    EXPECT_TRUE(listed);
    EXPECT_EQ(slurp(list).find(own->keys.own.secret_key), std::string::npos);
  }
  for (const auto& entry : fs::directory_iterator(in)) {
    struct stat st {};
    ASSERT_EQ(::stat(entry.path().c_str(), &st), 0);
    EXPECT_EQ(st.st_mode & 0777, entry.path().filename() == "members.pub" ? 0644u : 0600u) << entry.path();
  }
  struct stat st {};
  ASSERT_EQ(::stat(in.c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 0777, 0700u);
}

TEST_F(Keys, FilesThatOthersCanReachAreRefused) {
  fs::permissions(member, fs::perms(0640));
  EXPECT_NE(refusal(member).find("0600"), std::string::npos) << refusal(member);
  fs::permissions(list, fs::perms(0666));
  EXPECT_NE(refusal(hub).find("members.pub"), std::string::npos) << refusal(hub);
  EXPECT_NE(refusal(hub).find("written by others"), std::string::npos) << refusal(hub);
}

TEST_F(Keys, DamageIsNamed) {
  change(member, "owner target:1.2", "owner target:1.3x");
  EXPECT_NE(refusal(member).find("target:1.3x"), std::string::npos) << refusal(member);
  change(list, "source:0.0", "source:00.0");
  EXPECT_NE(refusal(hub).find("source:00.0"), std::string::npos) << refusal(hub);
  EXPECT_NE(refusal(in + "/none.key").find("none.key"), std::string::npos);
  EXPECT_NE(refusal(in).find("not a regular file"), std::string::npos) << refusal(in);
}

TEST_F(Keys, AnotherPairsHalfIsRefused) {
  const std::string other = read_key_file(in + "/source-0.0.key")->keys.own.secret_key;
  const std::string own = read_key_file(member)->keys.own.secret_key;
  change(member, own, other);
  const std::string why = refusal(member);
  EXPECT_NE(why.find("does not belong"), std::string::npos) << why;
  EXPECT_EQ(why.find(other), std::string::npos) << "the message tells a secret";
}

TEST_F(Keys, AnotherJobsListIsRefused) {
  const std::string elsewhere = dir.path() + "/other";
  ASSERT_TRUE(write_key_files(elsewhere, {3, 4}, kMembers).ok());
  fs::copy_file(elsewhere + "/members.pub", list, fs::copy_options::overwrite_existing);
  EXPECT_NE(refusal(hub).find("another job"), std::string::npos) << refusal(hub);
}

TEST_F(Keys, HostileFilesAreRefused) {
  for (const std::string& text :
       {std::string(), std::string("refit-key 2\n"), std::string("refit-key 1\njob"),
        std::string("refit-key 1\njob x\n"), std::string("refit-key 1\njob 00000000000000010000000000000002\njob 1\n"),
        std::string(2 << 20, 'x'), slurp(member) + "extra 1\n"}) {
    std::ofstream(member) << text;
    EXPECT_NE(refusal(member), "accepted") << text.substr(0, 60);
    EXPECT_NE(refusal(member).find("target-1.2.key"), std::string::npos);
  }
}

TEST_F(Keys, KeysAreMadeOnceIntoADirectoryOfTheirOwn) {
  const auto again = write_key_files(in, kJob, kMembers);
  ASSERT_FALSE(again.ok());
  EXPECT_NE(again.error().message.find("not empty"), std::string::npos);
  const std::string open = dir.path() + "/open";
  fs::create_directory(open);
  fs::permissions(open, fs::perms(0755));
  EXPECT_NE(write_key_files(open, kJob, kMembers).error().message.find("0700"), std::string::npos);
}

TEST(Names, AMemberReadsBackFromItsText) {
  for (const MemberName& m : kMembers) EXPECT_EQ(MemberName::parse(m.to_string()), m);
  for (const char* bad : {"", "target", "target:1", "target:1.", "target:.1", "target:01.2", "target:1.2 ", "relay:0.0",
                          "target:-1.0", "target:1.4294967296"})
    EXPECT_FALSE(MemberName::parse(bad)) << bad;
}

}  // namespace
}  // namespace refit::transport
