#include <gtest/gtest.h>

#include <filesystem>

#include "sync/sync.h"

namespace refit::sync {
namespace {

JobCard a_card() {
  JobCard c;
  c.job = {1, 2};
  c.shape.source_ranks = 4;
  c.shape.target_instances = 2;
  c.shape.target_ranks = 3;
  c.transport = "tcp";
  c.staging_bytes = 12345;
  c.snapshot = true;
  c.net.security = "none";
  c.net.streams = 3;
  return c;
}

TEST(JobCard, TravelsWhole) {
  const std::string text = write_card(a_card());
  const Result<JobCard> back = parse_card(text);
  ASSERT_TRUE(back.ok()) << back.error().to_string();
  EXPECT_EQ(write_card(*back), text);
  EXPECT_EQ(back->shape.members(), 10u);
  EXPECT_TRUE(back->snapshot);
}

TEST(JobCard, NamesTheKeyThatIsWrong) {
  const std::string text = write_card(a_card());
  EXPECT_EQ(parse_card("{").error().code, Code::kCorrupt);
  const std::pair<const char*, const char*> bad[] = {
      {R"("source_ranks":4)", R"("source_ranks":0)"},     {R"("target_ranks":3)", R"("target_ranks":"3")"},
      {R"("staging_bytes":12345)", R"("staging":12345)"}, {R"("snapshot":true)", R"("snapshot":1)"},
      {R"("transport":"tcp")", R"("transport":7)"},       {R"("job":"0000)", R"("job":"zz00)"}};
  for (const auto& [from, to] : bad) {
    std::string broken = text;
    const auto at = broken.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    broken.replace(at, std::string(from).size(), to);
    const std::string key = std::string(from).substr(1, std::string(from).find('"', 1) - 1);
    const Result<JobCard> r = parse_card(broken);
    ASSERT_FALSE(r.ok()) << key;
    EXPECT_NE(r.error().message.find("'" + key + "'"), std::string::npos) << r.error().message;
  }
}

TEST(Host, LeavesItsCardAndTakesItAway) {
  HostOptions o;
  o.sync.shape.source_ranks = 2;
  o.sync.plan.staging_bytes = 4096;
  std::string dir;
  {
    const auto host = Host::make(o);
    ASSERT_TRUE(host.ok()) << host.error().to_string();
    dir = (*host)->runtime_dir();
    const Result<JobCard> card = read_card((*host)->address());
    ASSERT_TRUE(card.ok()) << card.error().to_string();
    EXPECT_EQ(card->staging_bytes, 4096);
    const auto seat = seat_options(*card, (*host)->address(), {Role::kTarget, 0, 0});
    ASSERT_TRUE(seat.ok());
    EXPECT_EQ(seat->member, 2u);
    EXPECT_EQ(seat->runtime_dir, dir);
    EXPECT_EQ(seat_options(*card, (*host)->address(), {Role::kTarget, 1, 0}).error().peer, "target:1.0");
  }
  EXPECT_FALSE(std::filesystem::exists(dir));
  EXPECT_EQ(read_card("ipc://" + dir + "/control").error().code, Code::kPeerLost);
  EXPECT_EQ(read_card("tcp://127.0.0.1:1").error().code, Code::kUnsupported);
  o.transport = "pigeon";
  EXPECT_EQ(Host::make(o).error().code, Code::kUnsupported);
}

}  // namespace
}  // namespace refit::sync
