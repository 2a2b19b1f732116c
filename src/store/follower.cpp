#include "store/follower.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>

namespace refit::store {
namespace {

Cost spent(const Cost& now, const Cost& before) {
  return {now.requests - before.requests, now.retries - before.retries, now.bytes_up - before.bytes_up,
          now.bytes_down - before.bytes_down};
}

Error collected(std::uint64_t number, const std::string& store) {
  return Error(Code::kBusy, "version " + std::to_string(number) + " was collected while it was read").at_peer(store);
}

// Entries of one chunk in a manifest.
std::span<const Entry> entries_of(const Manifest& m, std::uint32_t chunk) {
  const auto [lo, hi] = std::equal_range(m.entries.begin(), m.entries.end(), Entry{.chunk = chunk},
                                         [](const Entry& a, const Entry& b) { return a.chunk < b.chunk; });
  return {lo, hi};
}

}  // namespace

Result<Follower> Follower::open(ObjectStore& store, FollowOptions options, Deadline deadline) {
  Follower out(store, std::move(options));
  REFIT_ASSIGN(History history, History::open(store, out.options_.trust, deadline));
  out.history_ = std::make_unique<History>(std::move(history));
  out.highest_ = out.options_.least_number;
  std::array<std::byte, 8> random{};  // a lease of an earlier process must not look as if it stood still
  REFIT_TRY(system_env().random(random));
  std::memcpy(&out.lease_.counter, random.data(), random.size());
  REFIT_ASSIGN(const std::uint64_t number, out.newest(deadline));
  if (number == 0) return Error(Code::kBusy, "no version is committed there yet").at_peer(store.name());
  REFIT_ASSIGN(const std::optional<Link> top, out.history_->load(number, deadline));
  if (!top) return collected(number, store.name());
  REFIT_ASSIGN(out.model_, out.history_->model_of(top->manifest, deadline));
  return out;
}

void Follower::attach(std::vector<std::byte*> tensors, std::vector<bool> wanted) {
  REFIT_CHECK(tensors.size() == grid().tensors() && wanted.size() == grid().chunks());
  tensors_ = std::move(tensors);
  wanted_ = std::move(wanted);
  held_.assign(grid().chunks(), {});
  const auto hash = [&](std::int64_t i) {
    const auto c = static_cast<std::size_t>(i);
    if (!wanted_[c]) return;
    const Grid::Place& p = grid()[c];
    held_[c] = hash128(View(tensors_[p.tensor] + p.offset, static_cast<std::size_t>(p.bytes)));
  };
  if (options_.pool != nullptr) return options_.pool->parallel_for(std::ssize(held_), hash);
  for (std::int64_t c = 0; c < std::ssize(held_); ++c) hash(c);
}

Result<std::uint64_t> Follower::newest(Deadline deadline) {
  REFIT_ASSIGN(const std::vector<std::uint64_t> numbers, history_->committed(deadline));
  const std::uint64_t number = numbers.empty() ? 0 : numbers.back();
  if (number < highest_)
    return Error(Code::kMismatch, "the store's newest version is " + std::to_string(number) + ", and version " +
                                      std::to_string(highest_) + " was served already: it went back")
        .at_peer(store_->name())
        .at_stage("marker");
  REFIT_TRY(renew(number, deadline));
  return number;
}

Status Follower::renew(std::uint64_t to, Deadline deadline) {
  const std::int64_t now = monotonic_ns();
  const bool same = lease_.from == content_.number && lease_.to == to;
  if (options_.lease.empty() || (same && now - renewed_ns_ < options_.renew_ns)) return {};
  lease_ = {lease_.counter + 1, content_.number, to};
  renewed_ns_ = now;
  const Bytes bytes = write_lease(lease_);
  return store_->put(kLeasesPrefix + options_.lease, bytes, sha256(bytes), deadline);
}

Status Follower::end(Deadline deadline) {
  if (options_.lease.empty()) return {};
  return store_->remove(kLeasesPrefix + options_.lease, deadline);
}

Result<Fetched> Follower::fetch(std::uint64_t number, Deadline deadline) {
  REFIT_CHECK(!tensors_.empty() || grid().tensors() == 0);
  Fetched report;
  const Cost before = store_->cost();
  REFIT_TRY(renew(number, deadline));
  REFIT_ASSIGN(std::optional<Link> top, history_->load(number, deadline));
  if (!top) return collected(number, store_->name());
  // Below an anchor only deltas from what is held are of use.
  const std::uint64_t held_number = content_.number != 0 ? content_.number : options_.least_number;
  REFIT_ASSIGN(const auto chain, history_->chain(std::move(*top), content_,
                                                 held_number != 0 ? held_number : ~std::uint64_t{0}, deadline));
  if (!chain) return collected(number, store_->name());
  Result<Content> target = content_at(*chain, content_, grid());
  if (!target.ok()) return Error(target.error()).at_peer(store_->name());
  REFIT_ASSIGN(const auto ways, choose(*chain, *target));
  const Manifest& m = chain->front().manifest;
  report.number = m.number;
  report.epoch = m.epoch;
  report.step = m.step;
  report.content = m.content;
  report.manifests = std::ssize(*chain);
  report.is_signed = m.signer.has_value();
  for (std::size_t c = 0; c < wanted_.size(); ++c) {
    report.wanted += wanted_[c] ? 1 : 0;
    report.held += wanted_[c] && held_[c] == target->chunks[c] ? 1 : 0;
  }
  whole_ = false;
  for (std::size_t i = chain->size(); i-- > 0;) REFIT_TRY(take((*chain)[i], ways[i], report, deadline));
  content_ = std::move(*target);
  highest_ = std::max(highest_, content_.number);
  whole_ = true;
  report.cost = spent(store_->cost(), before);
  return report;
}

// Per link of the chain, what to download: for each wanted chunk the way that costs fewest bytes.
Result<std::vector<std::vector<const Entry*>>> Follower::choose(const std::vector<Link>& chain,
                                                                const Content& target) const {
  std::vector<std::vector<const Entry*>> out(chain.size());
  std::vector<const Entry*> deltas, best;  // of one chunk; deltas[i] belongs to chain[at[i]]
  std::vector<std::size_t> at, best_at;
  for (std::uint32_t c = 0; c < wanted_.size(); ++c) {
    if (!wanted_[c] || held_[c] == target.chunks[c]) continue;
    deltas.clear(), at.clear(), best.clear(), best_at.clear();
    std::int64_t cost = 0, least = 0;
    const auto consider = [&](const Entry* last, std::size_t link, std::int64_t bytes) {
      if (!best.empty() && bytes >= least) return;
      best = deltas, best_at = at, least = bytes;
      if (last != nullptr) best.push_back(last), best_at.push_back(link);
    };
    Hash128 need = target.chunks[c];  // what the chunk must be just above link i
    for (std::size_t i = 0; i < chain.size(); ++i) {
      const Entry* delta = nullptr;
      for (const Entry& e : entries_of(chain[i].manifest, c)) {
        if (e.next != need) continue;
        if (e.encoding == Encoding::kComplete) consider(&e, i, cost + e.bytes);
        if (e.encoding == Encoding::kDelta) delta = &e;
      }
      if (delta == nullptr) continue;  // unchanged here; or another way to the same bytes lies further down
      deltas.push_back(delta), at.push_back(i);
      cost += delta->bytes;
      need = delta->base;
      if (need != held_[c]) continue;
      consider(nullptr, i, cost);
      break;
    }
    if (best.empty())
      return Error(Code::kCorrupt,
                   "no way leads to chunk " + std::to_string(c) + " of version " + std::to_string(target.number))
          .at_peer(store_->name())
          .at_stage("manifest")
          .at_tensor(model_->tensors[grid()[c].tensor].name);
    for (std::size_t i = 0; i < best.size(); ++i) out[best_at[i]].push_back(best[i]);
  }
  return out;
}

Status Follower::take(const Link& link, std::vector<const Entry*> entries, Fetched& report, Deadline deadline) {
  std::sort(entries.begin(), entries.end(), [](const Entry* a, const Entry* b) {
    return std::pair(a->object, a->offset) < std::pair(b->object, b->offset);
  });
  std::vector<std::span<const Entry* const>> ranges;
  for (std::size_t i = 0, first = 0; i < entries.size(); ++i) {
    const Entry& e = *entries[i];
    (e.encoding == Encoding::kDelta ? report.deltas : report.complete) += 1;
    report.payload_bytes += e.bytes;
    const bool last = i + 1 == entries.size() || entries[i + 1]->object != e.object ||
                      entries[i + 1]->offset > e.offset + e.bytes + options_.gap_bytes ||
                      entries[i + 1]->offset + entries[i + 1]->bytes - entries[first]->offset > options_.range_bytes;
    if (!last) continue;
    ranges.push_back(std::span(entries).subspan(first, i + 1 - first));
    first = i + 1;
  }
  std::mutex mutex;
  Status first_error;
  std::atomic<bool> failed{false};
  const auto one = [&](std::int64_t i) {
    if (failed) return;
    Status s;
    {  // a long download outlives a lease that nobody renews
      const std::lock_guard lock(mutex);
      s = renew(lease_.to, deadline);
    }
    if (s.ok()) s = take_range(link, ranges[static_cast<std::size_t>(i)], deadline);
    if (s.ok()) return;
    const std::lock_guard lock(mutex);
    if (first_error.ok()) first_error = std::move(s);
    failed = true;
  };
  if (options_.pool != nullptr) {
    options_.pool->parallel_for(std::ssize(ranges), one);
  } else {
    for (std::int64_t i = 0; i < std::ssize(ranges); ++i) one(i);
  }
  return first_error;
}

Status Follower::take_range(const Link& link, std::span<const Entry* const> entries, Deadline deadline) {
  const Manifest& m = link.manifest;
  const Entry& front = *entries.front();
  const std::string key = data_key(m.number, m.epoch, front.object);
  std::int64_t end = front.offset;
  for (const Entry* e : entries) end = std::max(end, e->offset + e->bytes);
  Bytes bytes(static_cast<std::size_t>(end - front.offset));
  codec::Workspace work;
  const auto payload_of = [&](const Entry& e) {
    return View(bytes).subspan(static_cast<std::size_t>(e.offset - front.offset), static_cast<std::size_t>(e.bytes));
  };
  // Damage on the way is asked for once more; damage that stays is the store's.
  for (int attempt = 0;; ++attempt) {
    Result<bool> there = store_->read(key, front.offset, bytes, deadline);
    if (!there.ok()) return std::move(there).error().at_peer(store_->name()).at_stage("download");
    if (!*there) {
      // Collected, or lost? A committed version whose marker still stands has all its objects.
      REFIT_ASSIGN(const std::optional<Bytes> marker, store_->get(committed_key(m.number), kMarkerBytes, deadline));
      if (!marker) return collected(m.number, store_->name());
      return Error(Code::kCorrupt, "object " + key + " of a committed version is missing")
          .at_peer(store_->name())
          .at_stage("download");
    }
    const auto wrong = std::find_if(entries.begin(), entries.end(),
                                    [&](const Entry* e) { return sha256(payload_of(*e)) != e->sha256; });
    if (wrong == entries.end()) break;
    if (attempt == 0) continue;
    return Error(Code::kCorrupt, "object " + key + " is damaged: bytes from " + std::to_string((*wrong)->offset) +
                                     " are not what their SHA-256 says")
        .at_peer(store_->name())
        .at_stage("download")
        .at_bucket(std::to_string((*wrong)->chunk))
        .at_tensor(model_->tensors[grid()[(*wrong)->chunk].tensor].name);
  }
  for (const Entry* e : entries)
    if (Status s = use(link, *e, payload_of(*e), work); !s.ok())
      return Error(s.error())
          .at_peer(store_->name())
          .at_stage("download")
          .at_bucket(std::to_string(e->chunk))
          .at_tensor(model_->tensors[grid()[e->chunk].tensor].name);
  return {};
}

Status Follower::use(const Link& link, const Entry& e, View payload, codec::Workspace& work) {
  const Grid::Place& p = grid()[e.chunk];
  const std::span<std::byte> place(tensors_[p.tensor] + p.offset, static_cast<std::size_t>(p.bytes));
  if (e.encoding == Encoding::kComplete) {
    std::memcpy(place.data(), payload.data(), place.size());
  } else {
    REFIT_ASSIGN(const codec::Delta delta, codec::check(work, payload));
    const codec::Header& h = delta.header();
    if (h.shape.width != p.width || h.shape.bytes() != p.bytes || h.identity.base != e.base ||
        h.identity.next != e.next)
      return Error(Code::kMismatch,
                   "the delta is not the one that version " + std::to_string(link.manifest.number) + " announces");
    REFIT_TRY(codec::admit(delta, held_[e.chunk]));
    codec::apply(work, delta, place);
  }
  held_[e.chunk] = hash128(place);
  if (held_[e.chunk] != e.next)
    return Error(Code::kCorrupt,
                 "the result has another hash than version " + std::to_string(link.manifest.number) + " announces");
  return {};
}

}  // namespace refit::store
