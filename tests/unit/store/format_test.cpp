// The objects' bytes: golden files of this and every earlier release, and bytes that lie.
// REFIT_WRITE_GOLDEN=1 writes files that are missing; tests/golden/decode_store.py reads them on its own.
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "unit/store/helpers.h"

namespace refit::store::testing {
namespace {

Bytes file_bytes(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(in)), {});
  const View view = std::as_bytes(std::span(text));
  return {view.begin(), view.end()};
}

// A store as it is written with a fixed lineage: an anchor, two versions on it, an anchor, all signed but the first.
void write_whole(MemoryStore& store) {
  ASSERT_TRUE(store.put_new(kRootKey, write_root({0x0123456789abcdef, 0xfedcba9876543210}), soon()).ok());
  publish_steps(store, 0, 0);
  PublishOptions options = small_options();
  options.key = test_key();
  publish_steps(store, 1, 3, options);
  const Bytes lease = write_lease({7, 2, 4});
  ASSERT_TRUE(store.put("leases/reader-1", lease, sha256(lease), soon()).ok());
}

TEST(StoreFormat, WritesTheSameBytes) {
  MemoryStore store;
  write_whole(store);
  const std::filesystem::path top = std::filesystem::path(REFIT_GOLDEN_DIR) / "v1";
  std::size_t found = 0;
  for (const auto& [key, bytes] : store.objects) {
    const auto path = top / key;
    if (!std::filesystem::exists(path) && std::getenv("REFIT_WRITE_GOLDEN") != nullptr) {
      std::filesystem::create_directories(path.parent_path());
      std::ofstream(path, std::ios::binary)
          .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    }
    EXPECT_TRUE(file_bytes(path) == bytes) << key;
  }
  for (const auto& e : std::filesystem::recursive_directory_iterator(top)) found += e.is_regular_file() ? 1u : 0u;
  EXPECT_EQ(found, store.objects.size());
}

TEST(StoreFormat, ReadsWhatEarlierReleasesWrote) {
  auto store = open_directory(std::string(REFIT_GOLDEN_DIR) + "/v1");
  ASSERT_TRUE(store.ok());
  for (const std::int64_t number : {1, 2, 3, 4}) {
    Reader fresh(**store);
    // The first manifest is not signed, the newest is: who saw that one refuses every way that leads to the first.
    const auto f = fresh.follower->fetch(static_cast<std::uint64_t>(number), soon());
    if (number != 4) {
      ASSERT_FALSE(f.ok());
      EXPECT_THAT(f.error().message, ::testing::HasSubstr("is not signed"));
      continue;
    }
    ASSERT_TRUE(f.ok()) << f.error().to_string();
    EXPECT_TRUE(fresh.holds(number - 1));
  }
}

TEST(StoreFormat, RefusesEveryCutAndMostChanges) {
  MemoryStore store;
  write_whole(store);
  for (const auto& [key, bytes] : store.objects) {
    if (key.starts_with("versions/") && !key.ends_with("/manifest")) continue;
    const auto parse = [&](View v) -> Status {
      if (key == kRootKey) return read_root(v).ok() ? Status() : Status(Error(Code::kCorrupt, ""));
      if (key.starts_with("leases/")) return read_lease(v).ok() ? Status() : Status(Error(Code::kCorrupt, ""));
      if (key.starts_with("committed/")) return read_marker(v).ok() ? Status() : Status(Error(Code::kCorrupt, ""));
      if (key.starts_with("models/")) return read_model(v).ok() ? Status() : Status(Error(Code::kCorrupt, ""));
      return read_manifest(v).ok() ? Status() : Status(Error(Code::kCorrupt, ""));
    };
    EXPECT_TRUE(parse(bytes).ok()) << key;
    for (std::size_t n = 0; n < bytes.size(); ++n)
      EXPECT_FALSE(parse(View(bytes).first(n)).ok()) << key << " cut at " << n;
    const bool sealed = !key.starts_with("models/") && !key.ends_with("/manifest");
    for (std::size_t n = 0; n < bytes.size(); ++n)
      for (const unsigned flip : {1u, 128u}) {
        Bytes other = bytes;
        other[n] ^= static_cast<std::byte>(flip);
        const bool fine = parse(other).ok();  // must not crash; sealed and signed ones must refuse
        EXPECT_FALSE(sealed && fine) << key << " at " << n;
      }
  }
}

TEST(StoreFormat, SignatureCoversEveryByte) {
  MemoryStore store;
  write_whole(store);
  for (const auto& [key, bytes] : store.objects) {
    if (!key.ends_with("/manifest") || !key.starts_with("versions/00000000000000000004")) continue;
    ASSERT_TRUE(read_manifest(bytes)->signer.has_value());
    for (std::size_t n = 0; n < bytes.size(); ++n) {
      Bytes other = bytes;
      other[n] ^= std::byte{4};
      const auto m = read_manifest(other);
      EXPECT_TRUE(!m.ok() || !m->signer.has_value()) << "byte " << n;
    }
  }
}

TEST(StoreFormat, KeysAndMarks) {
  EXPECT_EQ(number_of_committed(committed_key(12345)), 12345u);
  EXPECT_EQ(number_of_committed("committed/12345"), std::nullopt);
  const Attempt a{7, 0x00ff00ff00ff00ff};
  EXPECT_EQ(attempt_of(data_key(a.number, a.epoch, 3)), a);
  EXPECT_EQ(attempt_of("versions/x"), std::nullopt);
  EXPECT_TRUE(is_lease_key("leases/a-1") && !is_lease_key("leases/") && !is_lease_key("leases/../x"));
  FollowMark mark{{1, 2}, 9, {PublicKey{std::byte{3}}, true}};
  EXPECT_EQ(read_mark(write_mark(mark)).value(), mark);
  Bytes damaged = write_mark(mark);
  damaged[12] ^= std::byte{1};
  EXPECT_FALSE(read_mark(damaged).ok());
}

TEST(StoreFormat, GridRefusesWhatOverflows) {
  const auto grid = [](Dims shape, std::int64_t chunk) {
    return Grid::make({"", {{"t", DType::kF64, std::move(shape)}}}, chunk).ok();
  };
  EXPECT_TRUE(grid({100, 3}, 64));
  EXPECT_FALSE(grid({100, 3}, 60));
  EXPECT_FALSE(grid({100, 3}, 8));
  EXPECT_FALSE(grid({100, 3}, kMaxChunkBytes * 2));
  EXPECT_FALSE(grid({std::int64_t{1} << 62, 4}, 64));
  EXPECT_FALSE(grid({std::int64_t{1} << 58}, 64));
  EXPECT_FALSE(grid({8 * 5'500'001}, 64));  // its manifest would be longer than readers take
}

}  // namespace
}  // namespace refit::store::testing
