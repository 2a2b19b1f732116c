// One filled-in envelope of every kind, for round trips and golden files.
#pragma once
#include <string>
#include <vector>

#include "wire/wire.h"

namespace refit::wire {

inline Bytes sample_bytes(std::size_t n) {
  Bytes b(n);
  for (std::size_t i = 0; i < n; ++i) b[i] = static_cast<std::byte>(i * 7 + 3);
  return b;
}

inline std::vector<Envelope> samples() {
  const Hash128 h{0x0102030405060708u, 0x1112131415161718u};
  const Txn txn{h, Epoch(3), 9};
  const Version version{h, 12, {5, 6}, 1200};
  const Digest4 digest{{1, 2, 3, 0xffffffffu}, 77};
  const ProofCounts proof{1, 2, 3, 4};
  const Error error = Error(Code::kPeerLost, "gone")
                          .at_peer("target:0.1")
                          .at_stage("transfer")
                          .at_bucket("17")
                          .at_tensor("lm_head")
                          .amounts(10, 4);
  Hello hello;
  hello.state = MemberState::kVoted;
  hello.lineage = h;
  hello.word = {Word::kApplied, txn};
  hello.voted = txn;
  hello.last = version;
  hello.live = digest;
  hello.layout_digest = h;
  hello.layout = sample_bytes(33);
  hello.card = sample_bytes(5);
  hello.staging_bytes = 1 << 20;
  hello.digest_seed = 43;
  hello.number = 13;
  hello.seen = txn;
  hello.known = txn;
  hello.known_version = version;
  const Configure configure{
      LayoutEpoch(4),
      PlanId{8, 9},
      sample_bytes(9),
      sample_bytes(3),
      "{}",
      4096,
      {{0, {Role::kSource, 0, 0}, Incarnation(5), {}}, {1, {Role::kTarget, 0, 0}, Incarnation(6), sample_bytes(4)}}};
  struct One {
    Party party;
    bool txn;
    Message message;
  };
  const std::vector<One> all = {
      {Party::kTarget, false, hello},
      {Party::kSource, false, Ready{LayoutEpoch(4), h, txn}},
      {Party::kTarget, false, PlanRefused{LayoutEpoch(4), {error, Error(Code::kInvalid, "")}}},
      {Party::kTarget, true, Heartbeat{MemberState::kReceiving, Phase::kTransfer, 5, 6, 7, "3 from source:0.0", 1200}},
      {Party::kSource, true, Sealed{7, "policy", digest, {{h, digest}, {{1, 1}, digest}}, sample_bytes(21), 640, h}},
      {Party::kTarget, true, Staged{digest, proof}},
      {Party::kTarget, true, Vote{false, error}},
      {Party::kTarget, true, Gated{}},
      {Party::kTarget, true, Applied{digest, proof, 1000, true}},
      {Party::kTarget, true, Reopened{2000}},
      {Party::kTarget, true, Failed{Phase::kCopying, true, error}},
      {Party::kTarget, false,
       VerifyReport{99, Domain::kLive, true, digest, {Word::kApplied, txn}, version, proof, {error}}},
      {Party::kSource, false, Goodbye{"done"}},
      {Party::kClient, false, StatusRequest{1}},
      {Party::kClient, false, VerifyRequest{2, Domain::kLive}},
      {Party::kCoordinator, false, Welcome{3, h, 42, 5, version}},
      {Party::kCoordinator, false, Refused{error, true, h}},
      {Party::kCoordinator, false, configure},
      {Party::kCoordinator, true, Begin{12, LayoutEpoch(4), h, 1200, true, 30, 600, txn, {3, 9}}},
      {Party::kCoordinator, true,
       Lend{{{0, Incarnation(5), sample_bytes(21), 640, h}, {1, Incarnation(6), {}, 0, {}}}}},
      {Party::kCoordinator, true, ReadersDone{}},
      {Party::kCoordinator, true, Gate{version, 5}},
      {Party::kCoordinator, true, Copy{}},
      {Party::kCoordinator, true, Open{}},
      {Party::kCoordinator, true, Abort{error}},
      {Party::kCoordinator, true, Committed{version}},
      {Party::kCoordinator, true, End{Outcome::kCommitted, version}},
      {Party::kCoordinator, false, Evict{6, error}},
      {Party::kCoordinator, false, Verify{99, Domain::kStaged}},
      {Party::kCoordinator, false, StatusReply{1, true, "{\"a\":1}"}},
      {Party::kSource, true, BlockAmax{{3, std::uint64_t{7} << 32}, {0.5F, 448}}},
      {Party::kCoordinator, true, BlockAmaxMerged{{0.75F, 448}}},
  };
  std::vector<Envelope> out;
  for (const One& one : all) {
    Envelope e;
    e.job = {0xaa, 0xbb};
    e.epoch = Epoch(3);
    if (one.txn) e.txn = txn;
    e.party = one.party;
    e.incarnation = Incarnation(0x1234);
    if (one.party == Party::kSource || one.party == Party::kTarget) e.instance = 1, e.rank = 2, e.member = 4;
    e.message = one.message;
    out.push_back(std::move(e));
  }
  return out;
}

// As the release before wrote it: fields that were added since are absent.
inline Envelope without_added_fields(Envelope e) {
  if (auto* hello = std::get_if<Hello>(&e.message)) {
    hello->digest_seed.reset();
    hello->number = 0;
    hello->seen = hello->known = {};
    hello->known_version = {};
  }
  if (auto* refused = std::get_if<Refused>(&e.message)) refused->promise = {};
  if (auto* heartbeat = std::get_if<Heartbeat>(&e.message)) heartbeat->published = -1;
  if (auto* ready = std::get_if<Ready>(&e.message)) ready->base = {};
  if (auto* applied = std::get_if<Applied>(&e.message)) applied->retained = false;
  if (auto* begin = std::get_if<Begin>(&e.message)) begin->base = {}, begin->without.clear();
  return e;
}

inline Manifest sample_manifest() {
  Manifest m;
  m.job = {0xaa, 0xbb};
  m.txn = {{1, 2}, Epoch(3), 9};
  m.member = 4;
  m.incarnation = Incarnation(0x1234);
  m.layout_epoch = LayoutEpoch(4);
  m.plan = {8, 9};
  m.recipients = {{Rank(0), {1, 1}}, {Rank(2), {2, 2}}};
  m.buckets = {{BucketId(0), 0, 2, 100}, {BucketId(5), 2, 1, 50}};
  m.entries = {{TensorId(1), {{1, 2, 3, 4}, 10}}, {TensorId(7), {{5, 6, 7, 8}, 20}}, {TensorId(0), {{9, 9, 9, 9}, 30}}};
  return m;
}

inline BucketHeader sample_bucket(std::span<const std::byte> payload) {
  BucketHeader b;
  b.job = {0xaa, 0xbb};
  b.txn = {{1, 2}, Epoch(3), 9};
  b.bucket = BucketId(5);
  b.sender = 4;
  b.incarnation = Incarnation(0x1234);
  b.payload_bytes = b.logical_bytes = payload.size();
  b.payload_hash = hash128(payload);
  return b;
}

inline BucketHeader sample_delta_bucket(std::span<const std::byte> payload) {
  BucketHeader b = sample_bucket(payload);
  b.encoding = Encoding::kDelta;
  b.base = {0xcc, 0xdd};
  b.logical_bytes = 1000;
  return b;
}

}  // namespace refit::wire
