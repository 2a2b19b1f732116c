#include "wire/manifest.h"

#include <algorithm>
#include <string>

#include "wire/bytes.h"

namespace refit::wire {
namespace {

constexpr std::uint32_t kManifestMagic = 0x464d5452;  // "RTMF"
constexpr std::uint16_t kManifestFormat = 1;
constexpr std::size_t kHeader = 160, kRecipient = 24, kBucket = 24, kEntry = 32;
// Magic 4, format 2, header bytes 2, page bytes 8, job 16, txn 32, member 4, reserved 4, incarnation 8, layout epoch 8,
// plan 16, counts 3 × 4, reserved 4, reserved 24, body hash 16.
static_assert(4 + 2 + 2 + 8 + 16 + 32 + 4 + 4 + 8 + 8 + 16 + 12 + 4 + 24 + 16 == kHeader && kHeader % 8 == 0);
constexpr std::size_t kManifestHashAt = 144;

Error bad_manifest(const std::string& what) { return Error(Code::kCorrupt, "manifest: " + what); }

Status check_tables(const Manifest& m) {
  for (std::size_t i = 1; i < m.recipients.size(); ++i)
    if (m.recipients[i].rank <= m.recipients[i - 1].rank)
      return bad_manifest("recipients do not ascend at rank " + std::to_string(m.recipients[i].rank.value));
  std::uint64_t next = 0;
  for (std::size_t i = 0; i < m.buckets.size(); ++i) {
    const ManifestBucket& b = m.buckets[i];
    const std::string name = "bucket " + std::to_string(b.bucket.value);
    if (i > 0 && b.bucket <= m.buckets[i - 1].bucket) return bad_manifest("buckets do not ascend at " + name);
    if (b.first_entry != next)
      return bad_manifest(name + ": entries start at " + std::to_string(b.first_entry) + " instead of " + std::to_string(next));
    next += b.entries;
    if (next > m.entries.size()) return bad_manifest(name + ": entries reach beyond the table");
    if (b.bytes > std::uint64_t{1} << 40) return bad_manifest(name + ": impossible length");
    for (std::uint64_t e = b.first_entry + 1; e < next; ++e)
      if (m.entries[e].tensor <= m.entries[e - 1].tensor)
        return bad_manifest(name + ": tensors do not ascend at entry " + std::to_string(e));
  }
  if (next != m.entries.size()) return bad_manifest("entries that belong to no bucket");
  return {};
}

// The hash covers the page with the hash field left out.
Hash128 page_hash(std::span<const std::byte> page) {
  Hasher h;
  h.add(page.first(kManifestHashAt)).add(page.subspan(kHeader));
  return h.finish();
}

// False when a reserved field is set.
bool read_tables(Reader& r, Manifest& m, std::size_t recipients, std::size_t buckets, std::size_t entries) {
  std::uint32_t reserved = 0;
  m.recipients.resize(recipients);
  for (ManifestRecipient& x : m.recipients) {
    x.rank = Rank(r.get<std::uint32_t>());
    reserved |= r.get<std::uint32_t>();
    x.bucket_list = r.hash();
  }
  m.buckets.resize(buckets);
  for (ManifestBucket& x : m.buckets) {
    x.bucket = BucketId(r.get<std::uint32_t>());
    x.first_entry = r.get<std::uint32_t>();
    x.entries = r.get<std::uint32_t>();
    reserved |= r.get<std::uint32_t>();
    x.bytes = r.get<std::uint64_t>();
  }
  m.entries.resize(entries);
  for (ManifestEntry& x : m.entries) {
    x.tensor = TensorId(r.get<std::uint32_t>());
    for (std::uint32_t& word : x.digest.word) word = r.get<std::uint32_t>();
    reserved |= r.get<std::uint32_t>();
    x.digest.count = r.get<std::uint64_t>();
  }
  return reserved == 0;
}

}  // namespace

const ManifestBucket* Manifest::find(BucketId bucket) const {
  auto at = std::lower_bound(buckets.begin(), buckets.end(), bucket,
                             [](const ManifestBucket& b, BucketId id) { return b.bucket < id; });
  return at != buckets.end() && at->bucket == bucket ? &*at : nullptr;
}

const ManifestRecipient* Manifest::find(Rank rank) const {
  auto at = std::lower_bound(recipients.begin(), recipients.end(), rank,
                             [](const ManifestRecipient& x, Rank id) { return x.rank < id; });
  return at != recipients.end() && at->rank == rank ? &*at : nullptr;
}

std::uint64_t manifest_bytes(std::size_t recipients, std::size_t buckets, std::size_t entries) {
  return kHeader + std::uint64_t{kRecipient} * recipients + std::uint64_t{kBucket} * buckets +
         std::uint64_t{kEntry} * entries;
}

Result<WrittenManifest> write_manifest(const Manifest& m, std::span<std::byte> page) {
  constexpr std::size_t kMost = 0xffffffffu;
  if (m.recipients.size() > kMost || m.buckets.size() > kMost || m.entries.size() > kMost)
    return Error(Code::kInvalid, "manifest: a table has more than 2^32-1 rows");
  if (Status s = check_tables(m); !s.ok()) return Error(Code::kInvalid, s.error().message);
  const std::uint64_t bytes = manifest_bytes(m.recipients.size(), m.buckets.size(), m.entries.size());
  if (bytes > page.size())
    return Error(Code::kExhausted, "the manifest does not fit its page")
        .amounts(static_cast<std::int64_t>(bytes), static_cast<std::int64_t>(page.size()));
  Writer w(page);
  w.put(kManifestMagic).put(kManifestFormat).put(static_cast<std::uint16_t>(kHeader)).put(bytes).put(m.job).put(m.txn);
  w.put(m.member).put(std::uint32_t{0}).put(m.incarnation.value).put(m.layout_epoch.value).put(m.plan);
  w.put(static_cast<std::uint32_t>(m.recipients.size()))
      .put(static_cast<std::uint32_t>(m.buckets.size()))
      .put(static_cast<std::uint32_t>(m.entries.size()));
  w.put(std::uint32_t{0}).put(std::uint64_t{0}).put(std::uint64_t{0}).put(std::uint64_t{0}).put(Hash128{});
  for (const ManifestRecipient& x : m.recipients) w.put(x.rank.value).put(std::uint32_t{0}).put(x.bucket_list);
  for (const ManifestBucket& x : m.buckets)
    w.put(x.bucket.value).put(x.first_entry).put(x.entries).put(std::uint32_t{0}).put(x.bytes);
  for (const ManifestEntry& x : m.entries) {
    w.put(x.tensor.value);
    for (std::uint32_t word : x.digest.word) w.put(word);
    w.put(std::uint32_t{0}).put(x.digest.count);
  }
  const WrittenManifest done{bytes, page_hash(page.first(bytes))};
  Writer(page.subspan(kManifestHashAt, 16)).put(done.hash);
  return done;
}

Result<Manifest> parse_manifest(std::span<const std::byte> page, const Hash128& expected_hash) {
  if (page.size() < kHeader)
    return bad_manifest("needs at least " + std::to_string(kHeader) + " bytes, has " + std::to_string(page.size()));
  Reader r(page);
  if (r.get<std::uint32_t>() != kManifestMagic) return bad_manifest("wrong magic");
  const auto format = r.get<std::uint16_t>();
  if (format != kManifestFormat)
    return Error(Code::kMismatch,
                 "manifest: format " + std::to_string(format) + ", this side speaks " + std::to_string(kManifestFormat));
  if (r.get<std::uint16_t>() != kHeader) return bad_manifest("wrong header length");
  const auto bytes = r.get<std::uint64_t>();
  Manifest m;
  m.job = r.hash();
  m.txn = r.txn();
  m.member = r.get<std::uint32_t>();
  bool reserved_zero = r.get<std::uint32_t>() == 0;
  m.incarnation = Incarnation(r.get<std::uint64_t>());
  m.layout_epoch = LayoutEpoch(r.get<std::uint64_t>());
  m.plan = r.hash();
  const auto recipients = r.get<std::uint32_t>(), buckets = r.get<std::uint32_t>(), entries = r.get<std::uint32_t>();
  reserved_zero = r.get<std::uint32_t>() == 0 && reserved_zero;
  for (int i = 0; i < 3; ++i) reserved_zero = r.get<std::uint64_t>() == 0 && reserved_zero;
  const Hash128 own = r.hash();
  if (!reserved_zero) return bad_manifest("a reserved field is set");
  // The counts can't ask for more than is there: the length is compared before anything is allocated.
  if (bytes != page.size() || manifest_bytes(recipients, buckets, entries) != bytes)
    return bad_manifest("its length, its counts and the " + std::to_string(page.size()) + " bytes at hand disagree");
  if (own != expected_hash) return Error(Code::kMismatch, "manifest: not the page that the source announced");
  if (page_hash(page) != own) return bad_manifest("its own hash does not match");
  if (!read_tables(r, m, recipients, buckets, entries)) return bad_manifest("a reserved field is set");
  REFIT_TRY(check_tables(m));
  return m;
}

Status check_identity(const Manifest& m, const ManifestIdentity& want) {
  auto differs = [](std::string_view field) {
    return Error(Code::kMismatch, "manifest: another " + std::string(field) + " than announced");
  };
  if (m.job != want.job) return differs("job");
  if (m.txn != want.txn) return differs("txn");
  if (m.member != want.member) return differs("member");
  if (m.incarnation != want.incarnation) return differs("incarnation");
  if (m.layout_epoch != want.layout_epoch) return differs("layout epoch");
  if (m.plan != want.plan) return differs("plan id");
  return {};
}

}  // namespace refit::wire
