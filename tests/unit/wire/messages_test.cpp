#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "unit/wire/samples.h"

namespace refit::wire {
namespace {

TEST(Messages, EveryKindRoundTrips) {
  const auto all = samples();
  ASSERT_EQ(all.size(), static_cast<std::size_t>(kMessageKinds));
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i].message.index(), i);
    const auto bytes = encode(all[i]);
    ASSERT_TRUE(bytes.ok()) << bytes.error().to_string();
    const auto back = decode(*bytes);
    ASSERT_TRUE(back.ok()) << kind_name(all[i].message) << ": " << back.error().to_string();
    EXPECT_EQ(*back, all[i]) << kind_name(all[i].message);
  }
}

TEST(Messages, AnyAlignmentIsRead) {
  const auto bytes = *encode(samples()[0]);
  for (std::size_t shift = 0; shift < 8; ++shift) {
    Bytes moved(bytes.size() + shift);
    std::copy(bytes.begin(), bytes.end(), moved.begin() + static_cast<std::ptrdiff_t>(shift));
    EXPECT_TRUE(decode(std::span(moved).subspan(shift)).ok()) << shift;
  }
}

TEST(Messages, EveryFlippedBitAndEveryTruncationIsRefused) {
  for (const Envelope& e : samples()) {
    const auto bytes = *encode(e);
    for (std::size_t n = 0; n < bytes.size(); ++n) EXPECT_FALSE(decode(std::span(bytes).first(n)).ok());
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      Bytes bad = bytes;
      bad[i] ^= std::byte{0x10};
      EXPECT_FALSE(decode(bad).ok()) << kind_name(e.message) << " byte " << i;
    }
  }
}

// Bytes of the payload changed under a right hash: the verifier and the semantic checks alone must keep us safe.
TEST(Messages, HostilePayloadsNeverCrash) {
  std::mt19937_64 rng(20240607);
  std::uint64_t accepted = 0;
  for (int round = 0; round < 20000; ++round) {
    const auto all = samples();
    Bytes bytes = *encode(all[rng() % all.size()]);
    for (std::uint64_t k = 1 + rng() % 4; k > 0; --k)
      bytes[56 + rng() % (bytes.size() - 56)] = static_cast<std::byte>(rng() & 0xff);
    Hasher h;
    h.add(std::span<const std::byte>(bytes).first(24)).add(std::span<const std::byte>(bytes).subspan(56));
    const Hash128 hash = h.finish();
    for (int i = 0; i < 8; ++i) {
      bytes[static_cast<std::size_t>(40 + i)] = static_cast<std::byte>((hash.hi >> (56 - 8 * i)) & 0xff);
      bytes[static_cast<std::size_t>(48 + i)] = static_cast<std::byte>((hash.lo >> (56 - 8 * i)) & 0xff);
    }
    const auto back = decode(bytes);
    if (!back.ok()) continue;
    ++accepted;
    EXPECT_TRUE(encode(*back).ok());  // what is accepted keeps every rule
  }
  EXPECT_GT(accepted, 0u);
}

TEST(Messages, WhoMaySendWhat) {
  for (Envelope e : samples()) {
    const bool rank = e.party == Party::kSource || e.party == Party::kTarget;
    e.party = rank ? Party::kCoordinator : Party::kTarget;
    e.instance = e.rank = 0;
    e.member = rank ? kNoMember : 4;
    const auto bytes = encode(e);
    ASSERT_FALSE(bytes.ok()) << kind_name(e.message);
    EXPECT_EQ(bytes.error().code, Code::kInvalid);
  }
}

TEST(Messages, SemanticRulesNameTheField) {
  auto refused = [](std::size_t kind, auto change) {
    Envelope e = samples()[kind];
    change(e);
    const auto r = encode(e);
    return r.ok() ? std::string("accepted") : r.error().message;
  };
  EXPECT_THAT(refused(6, [](Envelope& e) { std::get<Vote>(e.message).yes = true; }), testing::HasSubstr("vote"));
  EXPECT_THAT(refused(7, [](Envelope& e) { e.txn = {}; }), testing::HasSubstr("txn"));
  EXPECT_THAT(refused(0, [](Envelope& e) { std::get<Hello>(e.message).word.txn = {}; }), testing::HasSubstr("word"));
  EXPECT_THAT(refused(17, [](Envelope& e) { std::get<Configure>(e.message).roster[1].member = 0; }),
              testing::HasSubstr("roster"));
  EXPECT_THAT(refused(18, [](Envelope& e) { std::get<Begin>(e.message).number = 0; }), testing::HasSubstr("number"));
  EXPECT_THAT(refused(2, [](Envelope& e) { std::get<PlanRefused>(e.message).errors.clear(); }),
              testing::HasSubstr("errors"));
  EXPECT_THAT(refused(5, [](Envelope& e) { e.mac = {1, 1}; }), testing::HasSubstr("MAC"));
  EXPECT_THAT(refused(5, [](Envelope& e) { e.incarnation = {}; }), testing::HasSubstr("incarnation"));
}

// A member that says it has heard of an epoch or a number near the end of the range would make its coordinator wrap.
TEST(Messages, WhatAHelloHasHeardEndsFarBelowTheRange) {
  constexpr std::uint64_t kMost = std::uint64_t{1} << 62;
  const auto heard = [](auto change) {
    Envelope e = samples()[0];
    change(e, std::get<Hello>(e.message));
    return encode(e).ok();
  };
  for (const std::uint64_t past : {0ull, 1ull}) {
    const std::uint64_t v = kMost + past;
    const bool fits = past == 0;
    EXPECT_EQ(heard([&](Envelope& e, Hello&) { e.epoch = Epoch(v); }), fits);
    EXPECT_EQ(heard([&](Envelope&, Hello& h) { h.word.txn.epoch = Epoch(v); }), fits);
    EXPECT_EQ(heard([&](Envelope&, Hello& h) { h.seen.counter = v; }), fits);
    EXPECT_EQ(heard([&](Envelope&, Hello& h) { h.last.number = v; }), fits);
    EXPECT_EQ(heard([&](Envelope&, Hello& h) { h.number = v; }), fits);
  }
}

}  // namespace
}  // namespace refit::wire
