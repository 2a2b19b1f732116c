#include "coordinator/journal.h"

#include <algorithm>
#include <limits>
#include <string>

namespace refit::coordinator {
namespace {

// Frame: magic 4, frame bytes 4, epoch 8, records…, padding to 8, XXH3-128 of all before it. Little-endian.
constexpr std::uint32_t kMagic = 0x4c4a5452;  // "RTJL"
constexpr std::size_t kFrameHead = 16, kHash = 16;
constexpr std::size_t kMaxFrame = 64u << 20;

class Out {
 public:
  void u8(std::uint8_t v) { bytes.push_back(static_cast<std::byte>(v)); }
  void u32(std::uint32_t v) {
    for (int i = 0; i < 4; ++i) u8(static_cast<std::uint8_t>(v >> (8 * i)));
  }
  void u64(std::uint64_t v) {
    for (int i = 0; i < 8; ++i) u8(static_cast<std::uint8_t>(v >> (8 * i)));
  }
  void hash(const Hash128& h) {
    u64(h.hi);
    u64(h.lo);
  }
  void txn(const Txn& t) {
    hash(t.lineage);
    u64(t.epoch.value);
    u64(t.counter);
  }
  void seats(const std::vector<Seat>& v) {
    u32(static_cast<std::uint32_t>(v.size()));
    for (const Seat& s : v) {
      u32(s.member);
      u64(s.incarnation.value);
    }
  }
  wire::Bytes bytes;
};

class In {
 public:
  explicit In(std::span<const std::byte> b) : b_(b) {}
  std::uint8_t u8() {
    if (at_ == b_.size()) ok_ = false;
    return ok_ ? std::to_integer<std::uint8_t>(b_[at_++]) : std::uint8_t{0};
  }
  std::uint32_t u32() {
    std::uint32_t v = 0;
    for (int i = 0; i < 4; ++i) v |= std::uint32_t{u8()} << (8 * i);
    return v;
  }
  std::uint64_t u64() {
    std::uint64_t v = 0;
    for (int i = 0; i < 8; ++i) v |= std::uint64_t{u8()} << (8 * i);
    return v;
  }
  Hash128 hash() {
    Hash128 h;
    h.hi = u64();
    h.lo = u64();
    return h;
  }
  Txn txn() {
    Txn t;
    t.lineage = hash();
    t.epoch = Epoch(u64());
    t.counter = u64();
    return t;
  }
  std::vector<Seat> seats() {
    const std::uint32_t n = u32();
    if (n > (b_.size() - at_) / 12) ok_ = false;
    std::vector<Seat> v;
    for (std::uint32_t i = 0; ok_ && i < n; ++i) {
      const std::uint32_t member = u32();
      v.push_back({member, Incarnation(u64())});
    }
    return v;
  }
  bool ok() const { return ok_; }
  bool end() const { return at_ == b_.size(); }

 private:
  std::span<const std::byte> b_;
  std::size_t at_ = 0;
  bool ok_ = true;
};

void put(Out& o, const EpochRecord& r) {
  o.hash(r.job);
  o.hash(r.lineage);
  o.u64(r.digest_seed);
}
void put(Out& o, const BeginRecord& r) {
  o.txn(r.txn);
  o.u64(r.number);
  o.u64(r.membership_epoch);
  o.u64(r.layout_epoch.value);
  o.hash(r.plan);
  o.seats(r.members);
}
void put(Out& o, const EvictRecord& r) {
  o.txn(r.txn);
  o.u64(r.membership_epoch);
  o.seats(r.members);
}
void put(Out& o, const CommitRecord& r) {
  o.txn(r.txn);
  o.hash(r.version.lineage);
  o.u64(r.version.number);
  o.hash(r.version.digest);
  o.u64(static_cast<std::uint64_t>(r.version.step));
  for (std::uint32_t w : r.digest.word) o.u32(w);
  o.u64(r.digest.count);
}
void put(Out& o, const AbortRecord& r) { o.txn(r.txn); }
void put(Out& o, const EndRecord& r) { o.txn(r.txn); }
void put(Out& o, const SnapshotRecord& r) {
  o.hash(r.job);
  o.hash(r.lineage);
  for (std::uint64_t v : {r.digest_seed, r.counter, r.number, r.membership_epoch}) o.u64(v);
  o.txn(r.forgotten);
  o.u8(static_cast<std::uint8_t>((r.newest ? 1 : 0) | (r.open ? 2 : 0) | (r.open_committed ? 4 : 0)));
  if (r.newest) put(o, *r.newest);
  if (r.open) put(o, *r.open);
  o.seats(r.evicted);
}

void get(In& in, EpochRecord& r) {
  r.job = in.hash();
  r.lineage = in.hash();
  r.digest_seed = in.u64();
}
void get(In& in, BeginRecord& r) {
  r.txn = in.txn();
  r.number = in.u64();
  r.membership_epoch = in.u64();
  r.layout_epoch = LayoutEpoch(in.u64());
  r.plan = in.hash();
  r.members = in.seats();
}
void get(In& in, EvictRecord& r) {
  r.txn = in.txn();
  r.membership_epoch = in.u64();
  r.members = in.seats();
}
void get(In& in, CommitRecord& r) {
  r.txn = in.txn();
  r.version.lineage = in.hash();
  r.version.number = in.u64();
  r.version.digest = in.hash();
  r.version.step = static_cast<std::int64_t>(in.u64());
  for (std::uint32_t& w : r.digest.word) w = in.u32();
  r.digest.count = in.u64();
}
void get(In& in, AbortRecord& r) { r.txn = in.txn(); }
void get(In& in, EndRecord& r) { r.txn = in.txn(); }
void get(In& in, SnapshotRecord& r) {
  r.job = in.hash();
  r.lineage = in.hash();
  for (std::uint64_t* v : {&r.digest_seed, &r.counter, &r.number, &r.membership_epoch}) *v = in.u64();
  r.forgotten = in.txn();
  const std::uint8_t has = in.u8();
  if ((has & 1) != 0) get(in, r.newest.emplace());
  if ((has & 2) != 0) get(in, r.open.emplace());
  r.open_committed = (has & 4) != 0;
  r.evicted = in.seats();
}

template <std::size_t I = 0>
RecordBody get(In& in, std::uint8_t kind) {
  if constexpr (I + 1 < std::variant_size_v<RecordBody>)
    if (kind != I) return get<I + 1>(in, kind);
  std::variant_alternative_t<I, RecordBody> body;
  get(in, body);
  return body;
}

// The frame at the start of `bytes`, or nothing when it isn't whole and intact.
std::optional<std::span<const std::byte>> frame_at(std::span<const std::byte> bytes) {
  In in(bytes);
  const std::uint32_t magic = in.u32(), length = in.u32();
  if (!in.ok() || magic != kMagic || length < kFrameHead + kHash || length % 8 != 0 || length > bytes.size() ||
      length > kMaxFrame)
    return std::nullopt;
  const auto frame = bytes.first(length);
  In tail(frame.last(kHash));
  if (tail.hash() != hash128(frame.first(length - kHash))) return std::nullopt;
  return frame;
}

Error bad(const std::string& what) { return Error(Code::kCorrupt, "journal: " + what); }

Status apply_frame(JournalState& state, std::span<const std::byte> frame) {
  In head(frame.subspan(8));
  const Epoch epoch(head.u64());
  In in(frame.subspan(kFrameHead, frame.size() - kFrameHead - kHash));
  for (std::uint8_t left = in.u8(); left > 0 && in.ok(); --left) {
    const std::uint8_t kind = in.u8();
    if (kind >= std::variant_size_v<RecordBody>) return bad("record of unknown kind " + std::to_string(kind));
    const Record record{epoch, get(in, kind)};
    if (in.ok()) REFIT_TRY(apply(state, record));
  }
  if (!in.ok()) return bad("a record is longer than its frame");
  return {};
}

template <typename T>
void insert_sorted(std::vector<T>& v, const T& x) {
  auto at = std::lower_bound(v.begin(), v.end(), x);
  if (at == v.end() || *at != x) v.insert(at, x);
}

Status apply_body(JournalState& s, Epoch epoch, const EpochRecord& r) {
  if (epoch <= s.epoch) return {};  // a coordinator that lost its place: nothing of it counts
  if (s.epoch.value > 0 && (r.job != s.job || r.lineage != s.lineage || r.digest_seed != s.digest_seed))
    return bad("an epoch changes the job or the lineage");
  s.epoch = epoch;
  s.job = r.job;
  s.lineage = r.lineage;
  s.digest_seed = r.digest_seed;
  return {};
}
Status apply_body(JournalState& s, Epoch, const BeginRecord& r) {
  if (s.open && s.open_committed)
    return bad("round " + r.txn.to_string() + " begins before " + s.open->txn.to_string() + " ended");
  if (r.txn.counter <= s.counter || r.number <= s.number) return bad("round " + r.txn.to_string() + " reuses a number");
  s.counter = r.txn.counter;
  s.number = r.number;
  s.membership_epoch = std::max(s.membership_epoch, r.membership_epoch);
  s.open = r;
  s.open_committed = false;
  std::erase_if(s.evicted, [&](const Seat& seat) {
    return std::any_of(r.members.begin(), r.members.end(), [&](const Seat& m) {
      return m == seat || (m.member == seat.member && seat.incarnation.value == 0);
    });
  });
  return {};
}
Status apply_body(JournalState& s, Epoch, const EvictRecord& r) {
  s.membership_epoch = std::max(s.membership_epoch, r.membership_epoch);
  for (const Seat& seat : r.members) insert_sorted(s.evicted, seat);
  return {};
}
Status apply_body(JournalState& s, Epoch, const CommitRecord& r) {
  if (!s.open || s.open->txn != r.txn || s.open_committed || r.version.number != s.open->number)
    return bad("commit of " + r.txn.to_string() + " without its open round");
  s.open_committed = true;
  s.newest = r;
  insert_sorted(s.committed, r.txn);
  return {};
}
Status apply_body(JournalState& s, Epoch, const AbortRecord& r) {
  if (!s.open || s.open->txn != r.txn || s.open_committed)
    return bad("abort of " + r.txn.to_string() + ", which is not open");
  s.open.reset();
  return {};
}
Status apply_body(JournalState& s, Epoch, const EndRecord& r) {
  if (!s.open || s.open->txn != r.txn || !s.open_committed)
    return bad("end of " + r.txn.to_string() + ", which is not committed and open");
  s.open.reset();
  s.open_committed = false;
  return {};
}

Status apply_body(JournalState& s, Epoch epoch, const SnapshotRecord& r) {
  if (epoch <= s.epoch) return {};
  if (s.counter > 0) return bad("a snapshot follows round " + std::to_string(s.counter));
  if (s.epoch.value > 0 && r.job != s.job) return bad("a snapshot changes the job");
  if ((r.open && r.open->number > r.number) || (r.newest && r.newest->version.number > r.number) ||
      (r.open_committed && (!r.open || !r.newest || r.open->txn != r.newest->txn)))
    return bad("a snapshot contradicts itself");
  s.job = r.job;
  s.lineage = r.lineage;
  s.digest_seed = r.digest_seed;
  s.epoch = epoch;
  s.counter = r.counter;
  s.number = r.number;
  s.membership_epoch = r.membership_epoch;
  s.forgotten = r.forgotten;
  s.newest = r.newest;
  s.committed.clear();
  if (r.newest) s.committed.push_back(r.newest->txn);
  s.open = r.open;
  s.open_committed = r.open_committed;
  s.evicted = r.evicted;
  return {};
}

}  // namespace

SnapshotRecord snapshot(const JournalState& s) {
  // Everything begun is over but the open round; only the newest commit is still told apart from the aborted.
  Txn forgotten = s.forgotten;
  if (s.newest) forgotten = std::max(forgotten, s.newest->txn);
  return {s.job,     s.lineage, s.digest_seed, s.counter,        s.number, s.membership_epoch,
          forgotten, s.newest,  s.open,        s.open_committed, s.evicted};
}

wire::Bytes encode(std::span<const Record> records) {
  REFIT_CHECK(!records.empty() && records.size() < 256);
  Out o;
  o.u32(kMagic);
  o.u32(0);
  o.u64(records[0].epoch.value);
  o.u8(static_cast<std::uint8_t>(records.size()));
  for (const Record& r : records) {
    REFIT_CHECK(r.epoch == records[0].epoch);
    o.u8(static_cast<std::uint8_t>(r.body.index()));
    std::visit([&](const auto& body) { put(o, body); }, r.body);
  }
  while (o.bytes.size() % 8 != 0) o.u8(0);
  const auto total = static_cast<std::uint32_t>(o.bytes.size() + kHash);
  for (std::size_t i = 0; i < 4; ++i) o.bytes[4 + i] = static_cast<std::byte>((total >> (8 * i)) & 0xff);
  o.hash(hash128(o.bytes));
  return o.bytes;
}

Status apply(JournalState& state, const Record& record) {
  const bool founds =
      std::holds_alternative<EpochRecord>(record.body) || std::holds_alternative<SnapshotRecord>(record.body);
  if (state.epoch.value == 0 && !founds) return bad("does not start with an epoch");
  if (!founds && record.epoch < state.epoch) return {};
  if (!founds && record.epoch > state.epoch) return bad("a record of an epoch that never began");
  return std::visit([&](const auto& body) { return apply_body(state, record.epoch, body); }, record.body);
}

Result<JournalState> recover(std::span<const std::byte> bytes, const Hash128& job) {
  JournalState state;
  std::size_t at = 0;
  while (at < bytes.size()) {
    const auto frame = frame_at(bytes.subspan(at));
    if (!frame) break;
    if (Status s = apply_frame(state, *frame); !s.ok()) {
      s.error().message += " (frame at byte " + std::to_string(at) + ")";
      return std::move(s).error();
    }
    at += frame->size();
  }
  // Every append is synced before the next, so only the last one may be torn. An intact frame behind the damage means
  // that acknowledged records are lost.
  for (std::size_t later = at + 8; later + kFrameHead + kHash <= bytes.size(); later += 8)
    if (frame_at(bytes.subspan(later)))
      return bad("damaged at byte " + std::to_string(at) + ", with intact records behind it at byte " +
                 std::to_string(later));
  if (state.epoch.value > 0 && job != Hash128{} && state.job != job)
    return Error(Code::kMismatch, "journal: belongs to job " + state.job.hex() + ", not to " + job.hex());
  state.valid_bytes = static_cast<std::int64_t>(at);
  state.torn_bytes = static_cast<std::int64_t>(bytes.size() - at);
  return state;
}

std::int64_t round_reserve_bytes(std::size_t members) { return 4096 + 3 * 12 * static_cast<std::int64_t>(members); }

}  // namespace refit::coordinator
