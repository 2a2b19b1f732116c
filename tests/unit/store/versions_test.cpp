// Publishing and following where nothing fails: what travels, and what is refused.
#include <sys/stat.h>

#include <fstream>

#include "unit/store/helpers.h"

namespace refit::store::testing {
namespace {

TEST(StoreVersions, FollowsEveryVersion) {
  MemoryStore store;
  publish_steps(store, 0, 0);
  Reader reader(store);
  ASSERT_TRUE(reader.newest().ok());
  EXPECT_TRUE(reader.holds(0));
  for (std::int64_t s = 1; s <= 7; ++s) {
    const auto p = publish_steps(store, s, s);  // a new process each time: it finds what is committed
    EXPECT_EQ(p[0].number, static_cast<std::uint64_t>(s + 1));
    EXPECT_EQ(p[0].anchor, s % 3 == 0);
    const auto f = reader.newest();
    ASSERT_TRUE(f.ok()) << f.error().to_string();
    EXPECT_TRUE(reader.holds(s));
    EXPECT_EQ(f->manifests, 1);
    EXPECT_EQ(f->deltas, 2);  // the small tensors are shorter whole
    EXPECT_LT(f->payload_bytes, 300);
  }
  EXPECT_EQ(reader.follower->held(), 8u);
}

TEST(StoreVersions, CatchesUpByTheShorterWay) {
  MemoryStore store;
  const auto published = publish_steps(store, 0, 8);
  for (const std::int64_t from : {0, 1, 2, 3, 5, 7}) {
    Reader reader(store);
    ASSERT_TRUE(reader.follower->fetch(static_cast<std::uint64_t>(from + 1), soon()).ok());
    EXPECT_TRUE(reader.holds(from));
    const auto f = reader.newest();
    ASSERT_TRUE(f.ok()) << f.error().to_string();
    EXPECT_TRUE(reader.holds(8));
    std::int64_t whole = 0;
    for (std::size_t t = 0; t < reader.mirror.size(); ++t) whole += std::ssize(reader.mirror[t]);
    EXPECT_LE(f->payload_bytes, whole + published[7].payload_bytes + published[8].payload_bytes);
  }
}

// Larger chunks, where a delta is much shorter than its chunk: then k deltas are the shorter way, also past an anchor.
TEST(StoreVersions, PassesAnAnchorByDeltas) {
  MemoryStore store;
  const Model model{"{}", {{"w", DType::kBF16, {4096}}}};
  PublishOptions options;
  options.chunk_bytes = 4096;
  options.anchor_every = 2;
  auto publisher = Publisher::open(store, model, options, soon());
  ASSERT_TRUE(publisher.ok());
  std::vector<Bytes> versions;
  Bytes now(8192);
  for (int v = 0; v < 6; ++v) {
    now[static_cast<std::size_t>(2 * v)] = std::byte{9};  // the second chunk never changes
    versions.push_back(now);
    const std::vector<Bytes> next{now}, base{v > 0 ? versions[static_cast<std::size_t>(v - 1)] : now};
    ASSERT_TRUE(publisher->publish(v, bytes_of(next), v > 0 ? bytes_of(base) : TensorBytes(), soon()).ok());
  }
  Reader reader(store);
  ASSERT_TRUE(reader.follower->fetch(1, soon()).ok());
  const auto f = reader.newest();
  ASSERT_TRUE(f.ok()) << f.error().to_string();
  EXPECT_EQ(reader.mirror[0], versions[5]);
  EXPECT_EQ(f->deltas, 5);
  EXPECT_EQ(f->complete, 0);
  EXPECT_LT(f->payload_bytes, 1000);
  EXPECT_EQ(f->held, 1);
}

TEST(StoreVersions, FetchesOnlyWhatIsWanted) {
  MemoryStore store;
  publish_steps(store, 0, 2);
  Reader reader(store);
  std::vector<bool> wanted(reader.follower->grid().chunks(), false);
  wanted[1] = wanted[3] = true;  // the end of a.weight, d.scale
  reader.attach(wanted);
  const auto f = reader.newest();
  ASSERT_TRUE(f.ok()) << f.error().to_string();
  EXPECT_EQ(f->wanted, 2);
  const auto right = tensors_at(small_model(), 2);
  for (std::size_t i = 0; i < 400; ++i) {
    EXPECT_EQ(reader.mirror[0][i], i >= 256 ? right[0][i] : std::byte{0}) << i;
  }
  EXPECT_EQ(reader.mirror[3], right[3]);
  EXPECT_EQ(reader.mirror[1], Bytes(28));
}

TEST(StoreVersions, BaseIsBelievedByHashOnly) {
  for (const bool right : {true, false}) {
    MemoryStore store;
    PublishOptions options = small_options();
    options.chunk_bytes = 4096;
    publish_steps(store, 0, 0, options);
    const Model model = small_model();
    auto publisher = Publisher::open(store, model, options, soon());
    ASSERT_TRUE(publisher.ok());
    const auto next = tensors_at(model, 1);
    auto base = tensors_at(model, 0);
    if (!right) base[0][70] ^= std::byte{1};
    const auto p = publisher->publish(1, bytes_of(next), bytes_of(base), soon());
    ASSERT_TRUE(p.ok());
    EXPECT_EQ(p->deltas, right ? 1 : 0);
    Reader reader(store);
    ASSERT_TRUE(reader.follower->fetch(1, soon()).ok());
    const auto f = reader.newest();
    ASSERT_TRUE(f.ok());
    EXPECT_EQ(f->deltas, right ? 1 : 0);
    EXPECT_TRUE(reader.holds(1));
  }
}

TEST(StoreVersions, OverwriteFormToo) {
  MemoryStore store;
  PublishOptions options = small_options();
  options.form = codec::Form::kOverwrite;
  options.chunk_bytes = 4096;
  publish_steps(store, 0, 2, options);
  Reader reader(store);
  ASSERT_TRUE(reader.follower->fetch(1, soon()).ok());
  ASSERT_TRUE(reader.newest().ok());
  EXPECT_TRUE(reader.holds(2));
}

TEST(StoreVersions, OfTwoPublishersOneIsRefused) {
  MemoryStore store;
  publish_steps(store, 0, 0);
  const Model model = small_model();
  auto a = Publisher::open(store, model, small_options(), soon());
  auto b = Publisher::open(store, model, small_options(), soon());
  const auto one = tensors_at(model, 1), two = tensors_at(model, 2);
  ASSERT_TRUE(a->publish(1, bytes_of(one), {}, soon()).ok());
  const auto refused = b->publish(2, bytes_of(two), {}, soon());
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Code::kMismatch);
  EXPECT_THAT(refused.error().message, ::testing::HasSubstr("another publisher"));
  expect_sound(store);
  // It goes on with the number after that one.
  const auto again = b->publish(2, bytes_of(two), {}, soon());
  ASSERT_TRUE(again.ok()) << again.error().to_string();
  EXPECT_EQ(again->number, 3u);
}

TEST(StoreVersions, AnotherModelIsRefused) {
  MemoryStore store;
  publish_steps(store, 0, 0);
  Model other = small_model();
  other.tensors[0].shape = {5, 40};
  const auto p = Publisher::open(store, other, small_options(), soon());
  ASSERT_FALSE(p.ok());
  EXPECT_EQ(p.error().code, Code::kMismatch);
}

TEST(StoreVersions, TrustIsKeptTo) {
  MemoryStore store;
  PublishOptions options = small_options();
  options.key = test_key();
  publish_steps(store, 0, 1, options);
  const PublicKey key = read_public_key(std::string(REFIT_GOLDEN_DIR) + "/public-key.pem").value();
  FollowOptions pinned;
  pinned.trust = {key, true};
  Reader reader(store, pinned), first_seen(store);
  ASSERT_TRUE(reader.newest().ok());
  ASSERT_TRUE(first_seen.newest().ok());
  EXPECT_EQ(first_seen.follower->trust().key, key);
  publish_steps(store, 2, 2);  // without a key
  for (Reader* r : {&reader, &first_seen}) {
    const auto f = r->newest();
    ASSERT_FALSE(f.ok());
    EXPECT_EQ(f.error().code, Code::kMismatch);
    EXPECT_THAT(f.error().message, ::testing::HasSubstr("not signed"));
    EXPECT_TRUE(r->holds(1));
  }
  FollowOptions other;
  other.trust = {PublicKey{std::byte{1}}, true};
  EXPECT_FALSE(Follower::open(store, other, soon()).ok());
}

TEST(StoreVersions, AStoreThatWentBackIsRefused) {
  MemoryStore store;
  publish_steps(store, 0, 1);
  FollowOptions options;
  options.least_number = 3;
  const auto f = Follower::open(store, options, soon());
  ASSERT_FALSE(f.ok());
  EXPECT_THAT(f.error().message, ::testing::HasSubstr("went back"));
}

TEST(StoreVersions, AStoreWithoutConditionalWritesIsRefused) {
  class Careless final : public PassingStore {
   public:
    using PassingStore::PassingStore;
    Result<bool> put_new(const std::string& k, View b, Deadline d) override {
      REFIT_TRY(inner.put(k, b, sha256(b), d));
      return true;
    }
  };
  MemoryStore memory;
  Careless store(memory);
  const auto p = Publisher::open(store, small_model(), small_options(), soon());
  ASSERT_FALSE(p.ok());
  EXPECT_EQ(p.error().code, Code::kUnsupported);
}

TEST(StoreVersions, TheSameInADirectory) {
  const std::string top = ::testing::TempDir() + "/store-" + std::to_string(::getpid());
  auto store = open_directory(top);
  ASSERT_TRUE(store.ok());
  publish_steps(**store, 0, 4);
  Reader reader(**store);
  ASSERT_TRUE(reader.newest().ok());
  EXPECT_TRUE(reader.holds(4));
  EXPECT_EQ((*store)->put_new(kRootKey, Bytes(4), soon()).value(), false);
  EXPECT_FALSE((*store)->get("nothing/here", 10, soon()).value().has_value());
  EXPECT_EQ((*store)->get("../escape", 10, soon()).error().code, Code::kInternal);
  EXPECT_TRUE((*store)->list("absent/", soon()).value().empty());
  // What is no file is not waited for.
  ASSERT_EQ(::mkfifo((top + "/committed/7").c_str(), 0600), 0);
  EXPECT_EQ((*store)->get("committed/7", 10, soon()).error().code, Code::kCorrupt);
  // A version's folder goes with what a writer that died left in it; the folders above stay.
  const auto put = [&](const std::string& key) { return (*store)->put(key, Bytes(3), sha256(Bytes(3)), soon()).ok(); };
  ASSERT_TRUE(put("versions/9-a/manifest") && put("versions/9-a/data-0") && put("leases/me"));
  std::ofstream(top + "/versions/9-a/.abcdef") << "half";
  ASSERT_TRUE((*store)->remove("versions/9-a/manifest", soon()).ok());
  EXPECT_TRUE(std::filesystem::exists(top + "/versions/9-a/.abcdef"));
  ASSERT_TRUE((*store)->remove("versions/9-a/data-0", soon()).ok());
  EXPECT_FALSE(std::filesystem::exists(top + "/versions/9-a"));
  ASSERT_TRUE((*store)->remove("leases/me", soon()).ok());
  EXPECT_TRUE(std::filesystem::exists(top + "/leases"));
  std::filesystem::remove_all(top);
}

TEST(StoreVersions, AChainIsReadUpToABound) {
  MemoryStore store;
  publish_steps(store, 0, 4);  // anchors: versions 1, 4
  History history = History::open(store, {}, soon()).value();
  const auto down = [&](std::uint64_t number, std::int64_t most) {
    return history.chain(*history.load(number, soon()).value(), {}, 0, soon(), most);
  };
  EXPECT_EQ(down(3, 1 << 20).value()->size(), 3u);
  // Exactly the top one fits.
  const auto bounded = down(3, history.load(3, soon()).value()->bytes);
  ASSERT_FALSE(bounded.ok());
  EXPECT_EQ(bounded.error().code, Code::kExhausted);
  EXPECT_EQ(down(5, 1 << 20).value()->size(), 5u);
  EXPECT_EQ(down(4, 1).value()->size(), 1u);  // what lies below an anchor is only a shorter way
}

}  // namespace
}  // namespace refit::store::testing
