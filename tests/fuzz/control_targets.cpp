// Control messages, bucket headers, manifest pages, journals: each sealed anew, so that the checks behind the hash
// work.
#include "coordinator/journal.h"
#include "fuzz/fuzz.h"
#include "wire/wire.h"

namespace refit::fuzz {
namespace {

const std::string kWire = REFIT_GOLDEN "/wire";

bool message(View in) {
  constexpr std::size_t kHead = 56;
  Bytes bytes(in.begin(), in.end());
  if (bytes.size() < kHead) return wire::decode(bytes).ok();
  put_little(bytes, 8, bytes.size() - kHead);
  Hasher hasher;
  hasher.add(View(bytes).first(24)).add(View(bytes).subspan(kHead));
  put_canonical(bytes, 40, hasher.finish());
  const auto read = wire::decode(bytes);
  if (!read.ok()) return false;
  const auto again = wire::encode(*read);
  REFIT_FUZZ_CHECK(again.ok());
  const auto same = wire::decode(*again);
  REFIT_FUZZ_CHECK(same.ok() && *same == *read);
  return true;
}

bool bucket(View in) {
  Bytes bytes(in.begin(), in.end());
  if (bytes.size() != wire::kBucketHeaderBytes) return wire::decode_bucket_header(bytes).ok();
  put_canonical(bytes, 144, hash128(View(bytes).first(144)));
  const auto read = wire::decode_bucket_header(bytes);
  if (!read.ok()) return false;
  const auto again = wire::encode(*read);
  // Format 1 is read and written again as the newest.
  const auto same = wire::decode_bucket_header(again);
  REFIT_FUZZ_CHECK(same.ok() && *same == *read);
  return true;
}

bool manifest(View in) {
  Bytes bytes(in.begin(), in.end());
  if (bytes.size() < 160) return wire::parse_manifest(bytes, {}).ok();
  Hasher hasher;
  hasher.add(View(bytes).first(144)).add(View(bytes).subspan(160));
  const Hash128 hash = hasher.finish();
  put_canonical(bytes, 144, hash);
  const auto read = wire::parse_manifest(bytes, hash);
  if (!read.ok()) return false;
  Bytes page(bytes.size());
  const auto written = wire::write_manifest(*read, page);
  REFIT_FUZZ_CHECK(written.ok() && written->hash == hash && page == bytes);
  return true;
}

bool journal(View in) {
  Bytes bytes(in.begin(), in.end());
  for (std::size_t at = 0; at + 8 <= bytes.size();) {
    std::size_t length = 0;
    for (std::size_t i = 0; i < 4; ++i) length |= std::to_integer<std::size_t>(bytes[at + 4 + i]) << (8 * i);
    if (length < 24 || length > bytes.size() - at) break;
    const Hash128 hash = hash128(View(bytes).subspan(at, length - 16));
    put_little(bytes, at + length - 16, hash.hi);
    put_little(bytes, at + length - 8, hash.lo);
    at += length;
  }
  const auto state = coordinator::recover(bytes, {});
  if (!state.ok() || state->epoch.value == 0) return false;
  REFIT_FUZZ_CHECK(state->valid_bytes + state->torn_bytes == static_cast<std::int64_t>(bytes.size()));
  // What compaction would write says the same.
  const coordinator::SnapshotRecord kept = coordinator::snapshot(*state);
  const coordinator::Record record{state->epoch, kept};
  const auto again = coordinator::recover(coordinator::encode({&record, 1}), {});
  REFIT_FUZZ_CHECK(again.ok() && coordinator::snapshot(*again) == kept);
  return true;
}

std::vector<Bytes> messages() { return files(kWire, ".msg"); }
std::vector<Bytes> buckets() { return files(kWire, ".bucket"); }
std::vector<Bytes> manifests() { return files(kWire, ".manifest"); }

std::vector<Bytes> journals() {
  using namespace coordinator;
  const Lineage lineage{3, 4};
  Bytes all;
  std::vector<Bytes> out;
  const auto write = [&](RecordBody body) {
    const Record record{Epoch(1), std::move(body)};
    const wire::Bytes frame = encode({&record, 1});
    all.insert(all.end(), frame.begin(), frame.end());
    out.push_back(all);
  };
  write(EpochRecord{{1, 2}, lineage, 42});
  for (std::uint64_t n = 1; n <= 3; ++n) {
    const Txn txn{lineage, Epoch(1), n};
    write(BeginRecord{txn, n, n, LayoutEpoch(1), {5, 5}, {{0, Incarnation(10)}, {1, Incarnation(11)}}});
    if (n == 2) {
      write(AbortRecord{txn});
      continue;
    }
    write(CommitRecord{txn, {lineage, n, {9, n}, 3}, {}});
    write(EvictRecord{txn, n, {{2, Incarnation(12)}}});
    write(EndRecord{txn});
  }
  return out;
}

}  // namespace

std::vector<Target> control_targets() {
  return {{"message", message, messages},
          {"bucket", bucket, buckets},
          {"manifest", manifest, manifests},
          {"journal", journal, journals}};
}

}  // namespace refit::fuzz
