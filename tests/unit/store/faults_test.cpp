// Death and damage at every step: who publishes dies at each call, who reads at each call, every object is changed.
#include <functional>

#include "unit/store/helpers.h"

namespace refit::store::testing {
namespace {

// One attempt to publish step `step` through a store that dies at call `at`. True: it outlived the attempt.
bool attempt(MemoryStore& memory, std::int64_t step, std::int64_t at, bool after) {
  MortalStore store(memory, at, after);
  const Model model = small_model();
  const auto next = tensors_at(model, step), base = tensors_at(model, step - 1);
  auto publisher = Publisher::open(store, model, small_options(), soon());
  if (publisher.ok()) {
    const auto p = publisher->publish(step, bytes_of(next), step > 0 ? bytes_of(base) : TensorBytes(), soon());
    EXPECT_EQ(p.ok(), !store.died());
  }
  return !store.died();
}

TEST(StoreFaults, PublisherDiesAtEveryStep) {
  for (const std::int64_t step : {0, 2, 3}) {  // the first, a delta, an anchor
    for (const bool after : {false, true}) {
      std::int64_t resumed = 0;
      for (std::int64_t at = 0;; ++at) {
        ASSERT_LT(at, 100);
        MemoryStore memory;
        if (step > 0) publish_steps(memory, 0, step - 1);
        if (attempt(memory, step, at, after)) break;
        SCOPED_TRACE("step " + std::to_string(step) + ", dies " + (after ? "after" : "before") + " call " +
                     std::to_string(at));
        expect_sound(memory);
        if (step > 0) {  // a reader meanwhile: the version before, or this one
          Reader reader(memory);
          ASSERT_TRUE(reader.newest().ok());
          EXPECT_TRUE(reader.holds(step - 1) || reader.holds(step));
        }
        // Whoever comes after finds it committed, or goes on with what is there.
        const Model model = small_model();
        auto again = Publisher::open(memory, model, small_options(), soon());
        ASSERT_TRUE(again.ok()) << again.error().to_string();
        if (again->newest_step() != step) {
          const auto next = tensors_at(model, step), base = tensors_at(model, step - 1);
          const auto p = again->publish(step, bytes_of(next), step > 0 ? bytes_of(base) : TensorBytes(), soon());
          ASSERT_TRUE(p.ok()) << p.error().to_string();
          EXPECT_EQ(p->number, static_cast<std::uint64_t>(step + 1));
          resumed = std::max(resumed, p->resumed);
        }
        Reader reader(memory);
        ASSERT_TRUE(reader.newest().ok());
        EXPECT_TRUE(reader.holds(step));
        expect_sound(memory);
      }
      EXPECT_GE(resumed, step == 2 ? 1 : 2) << "nothing was gone on with";
    }
  }
}

// The answer to one write is lost; the store lives on.
class Hiccup final : public PassingStore {
 public:
  Hiccup(ObjectStore& s, std::int64_t n) : PassingStore(s), at(n) {}
  Status put(const std::string& k, View b, const Sha256& s, Deadline d) override {
    return once([&] { return inner.put(k, b, s, d); });
  }
  Result<bool> put_new(const std::string& k, View b, Deadline d) override {
    return once([&] { return inner.put_new(k, b, d); });
  }
  template <typename F>
  auto once(F f) -> decltype(f()) {
    auto result = f();
    if (calls++ == at) return Error(Code::kPeerLost, "the answer was lost");
    return result;
  }
  const std::int64_t at;
  std::int64_t calls = 0;
};

TEST(StoreFaults, ALostAnswerToTheMarkerIsNoSecondVersion) {
  MemoryStore memory;
  publish_steps(memory, 0, 0);
  const Model model = small_model();
  const auto one = tensors_at(model, 1), two = tensors_at(model, 2);
  for (std::int64_t at = 0;; ++at) {
    MemoryStore copy;
    copy.objects = memory.objects;
    // The same process goes on after its store came back: the number that it may have used is not used twice.
    Hiccup store(copy, at);
    auto publisher = Publisher::open(store, model, small_options(), soon());
    if (!publisher.ok()) continue;  // an answer of open() was lost
    const auto p = publisher->publish(1, bytes_of(one), {}, soon());
    if (p.ok()) break;
    const auto q = publisher->publish(2, bytes_of(two), {}, soon());
    ASSERT_TRUE(q.ok()) << "write " << at << ": " << q.error().to_string();
    expect_sound(copy);
    Reader reader(copy);
    ASSERT_TRUE(reader.newest().ok());
    EXPECT_TRUE(reader.holds(2));
  }
}

TEST(StoreFaults, ReaderFailsAtEveryCallAndGoesOn) {
  MemoryStore memory;
  publish_steps(memory, 0, 4);
  for (std::int64_t at = 0;; ++at) {
    ASSERT_LT(at, 200);
    Reader reader(memory);
    ASSERT_TRUE(reader.follower->fetch(2, soon()).ok());
    // The rest of this reader's life goes through a store that fails; its mirror and hashes stay.
    MortalStore mortal(memory, at, false);
    auto follower = Follower::open(mortal, {}, soon());
    bool whole = false;
    if (follower.ok()) {
      std::vector<std::byte*> tensors;
      for (Bytes& b : reader.mirror) tensors.push_back(b.data());
      follower->attach(tensors, std::vector<bool>(follower->grid().chunks(), true));
      const auto f = follower->fetch(5, soon());
      EXPECT_EQ(f.ok(), !mortal.died());
      EXPECT_EQ(follower->held(), f.ok() ? 5u : 0u);
      whole = f.ok();
    }
    if (!whole) {
      // What lies in the mirror now is a mixture; a new process takes it over, as after a crash.
      Reader next(memory);
      next.mirror = reader.mirror;
      next.attach(std::vector<bool>(next.follower->grid().chunks(), true));
      const auto f = next.newest();
      ASSERT_TRUE(f.ok()) << f.error().to_string();
      EXPECT_TRUE(next.holds(4));
      continue;
    }
    EXPECT_TRUE(reader.holds(4));
    break;
  }
}

TEST(StoreFaults, EveryFlippedBitAndEveryCutIsRefusedOrHarmless) {
  MemoryStore memory;
  publish_steps(memory, 0, 4);
  std::int64_t refused = 0, harmless = 0;
  const Objects whole = memory.objects;
  for (const auto& [key, bytes] : whole) {
    for (std::size_t i = 0; i <= 25; ++i) {
      const std::size_t n = i * bytes.size() / 25;  // the last one cuts
      memory.objects = whole;
      if (n < bytes.size())
        memory.objects[key][n] ^= std::byte{16};
      else
        memory.objects[key].resize(bytes.size() / 2);
      auto follower = Follower::open(memory, {}, soon());
      if (!follower.ok()) {
        EXPECT_TRUE(follower.error().code == Code::kCorrupt || follower.error().code == Code::kUnsupported)
            << key << ": " << follower.error().to_string();
        EXPECT_FALSE(follower.error().peer.empty());
        ++refused;
        continue;
      }
      Reader reader(memory);
      const auto f = reader.newest();
      if (f.ok()) {
        EXPECT_TRUE(reader.holds(4)) << key << " at " << n;
        ++harmless;
        continue;
      }
      EXPECT_TRUE(f.error().code == Code::kCorrupt || f.error().code == Code::kUnsupported)
          << key << ": " << f.error().to_string();
      ++refused;
      // Once it is whole again the same reader goes on.
      memory.objects = whole;
      const auto again = reader.newest();
      ASSERT_TRUE(again.ok()) << again.error().to_string();
      EXPECT_TRUE(reader.holds(4));
    }
  }
  EXPECT_GT(refused, 100);
  EXPECT_GT(harmless, 10);  // objects of versions that nobody needed to read
}

TEST(StoreFaults, MissingObjects) {
  MemoryStore memory;
  publish_steps(memory, 0, 4);
  const Objects whole = memory.objects;
  for (const auto& [key, bytes] : whole) {
    memory.objects = whole;
    memory.objects.erase(key);
    auto follower = Follower::open(memory, {}, soon());
    if (!follower.ok()) continue;
    Reader reader(memory);
    const auto f = reader.newest();
    if (f.ok()) {
      EXPECT_TRUE(reader.holds(4) || key == committed_key(5)) << key;
    } else {
      EXPECT_TRUE(f.error().code == Code::kCorrupt || f.error().code == Code::kBusy) << f.error().to_string();
    }
  }
}

// Manifests rewritten under fresh hashes: what they say must still be true.
TEST(StoreFaults, ManifestsThatLie) {
  MemoryStore memory;
  publish_steps(memory, 0, 4);
  const Objects whole = memory.objects;
  const auto lie = [&](const std::function<void(Manifest&)>& change) -> Error {
    memory.objects = whole;
    Reader reader(memory);
    const Marker marker = read_marker(memory.objects[committed_key(5)]).value();
    Bytes& bytes = memory.objects[manifest_key(5, marker.epoch)];
    Manifest m = read_manifest(bytes).value();
    change(m);
    bytes = write_manifest(m, nullptr);
    memory.objects[committed_key(5)] = write_marker({m.lineage, 5, marker.epoch, std::ssize(bytes), sha256(bytes)});
    const auto f = reader.newest();
    EXPECT_FALSE(f.ok());
    return f.ok() ? Error() : f.error();
  };
  using ::testing::HasSubstr;
  EXPECT_THAT(lie([](Manifest& m) { m.entries.pop_back(); }).message, HasSubstr("content digest"));
  EXPECT_THAT(lie([](Manifest& m) { m.entries[0].next.lo ^= 1; }).message, HasSubstr("content digest"));
  EXPECT_THAT(lie([](Manifest& m) { m.content.hi ^= 1; }).message, HasSubstr("content digest"));
  EXPECT_THAT(lie([](Manifest& m) { m.entries[0].sha256.bytes[0] ^= std::byte{1}; }).message, HasSubstr("damaged"));
  EXPECT_THAT(lie([](Manifest& m) { m.entries[0].offset = m.objects[0]; }).message, HasSubstr("outside of its object"));
  EXPECT_THAT(lie([](Manifest& m) { m.entries[2].bytes = 1; }).message, HasSubstr("another length"));
  EXPECT_THAT(lie([](Manifest& m) { std::swap(m.entries[0], m.entries[1]); }).message, HasSubstr("out of order"));
  EXPECT_THAT(lie([](Manifest& m) { m.entries[0].chunk = 1000; }).message, HasSubstr("does not exist"));
  EXPECT_THAT(lie([](Manifest& m) { m.parent.bytes[3] ^= std::byte{1}; }).message, HasSubstr("SHA-256"));
  EXPECT_THAT(lie([](Manifest& m) { m.lineage.lo ^= 1; }).message, HasSubstr("lineage"));
}

}  // namespace
}  // namespace refit::store::testing
