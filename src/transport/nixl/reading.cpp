// The engine's reading side: from a request to a bucket in its lane's inbox.
#include "transport/nixl/engine.h"

#include <algorithm>

namespace refit::transport::nixl {
namespace {

// Handles of the library under way at a time.
constexpr std::size_t kHandles = 4;
constexpr std::int64_t kLeastStaging = 1 << 20;
constexpr std::size_t kMostStuck = 4;  // agents that are set aside

}  // namespace

void Engine::advance() {
  no_room_ = false;
  for (Work& w : works_) {
    if (w.phase != Phase::kOver && w.ask.lane->ledger.failed()) abandon(w);
    if (w.phase != Phase::kOver) advance(w);
  }
  std::erase_if(works_, [](const Work& w) { return w.phase == Phase::kOver; });
}

void Engine::advance(Work& w) {
  if (w.phase == Phase::kNew) {
    if (w.ask.loan->checked)
      w.phase = Phase::kReady;
    else
      ask_source(w, Phase::kReady);
  }
  if (w.phase == Phase::kReady && begin(w)) w.phase = Phase::kReading;
  if (w.phase == Phase::kReading) {
    look(w);
    while (w.phase == Phase::kReading && w.next_run < w.ask.cut.runs.size() && flying() < kHandles && launch(w)) {
    }
    if (w.phase == Phase::kReading && w.next_run == w.ask.cut.runs.size() && w.flying.empty()) {
      pick_out(w.ask.cut, w.slot.data());
      w.phase = Phase::kRead;
    }
  }
  // What was read counts only if the lend was still open afterwards.
  if (w.phase == Phase::kRead) ask_source(w, Phase::kOver);
}

// Asks whether the lend is open; `then` comes with a yes (kOver: the bucket is handed to its lane).
void Engine::ask_source(Work& w, Phase then) {
  w.phase = then == Phase::kOver ? Phase::kChecking : Phase::kAsking;
  const std::uint64_t ticket = w.ask.ticket;
  const auto lane = w.ask.lane;
  const auto link = link_to(lane->peers.at(w.ask.sender));
  {
    const std::lock_guard lock(w.ask.loan->mutex);
    w.ask.loan->link = link;
  }
  {
    const std::lock_guard lock(lane->mutex);
    lane->waits_for = "an answer from the source";
  }
  link->ask(w.ask.loan->descriptor.epoch, now(), [this, lane, ticket, then](const Result<bool>& answer) {
    const auto found = std::find_if(works_.begin(), works_.end(), [&](const Work& x) {
      return x.ask.lane == lane && x.ask.ticket == ticket && x.phase != Phase::kOver;
    });
    if (found == works_.end()) return;
    Work& asked = *found;
    if (!answer.ok()) return fail(asked, answer.error());
    if (!*answer)
      return fail(asked, Error(Code::kMismatch, "the lend was withdrawn (memory epoch " +
                                                    std::to_string(asked.ask.loan->descriptor.epoch.value) + ")")
                             .at_peer(lane->peers.at(asked.ask.sender).name));
    asked.ask.loan->checked = true;
    if (then == Phase::kOver)
      deliver(asked);
    else
      asked.phase = then;
  });
}

// What a read needs: the agent, the source's metadata, a place in staging. False: not now.
bool Engine::begin(Work& w) {
  if (w.ask.cut.runs.empty()) return true;
  const Peer& peer = w.ask.lane->peers.at(w.ask.sender);
  if (Status s = ready_agent(); !s.ok()) {
    fail(w, std::move(s).error());
    return false;
  }
  Link& link = *link_to(peer);
  const bool known = link.loaded_by == generation_ && link.loaded == w.ask.loan->metadata;
  if (!known && in_flight_to(link)) return false;  // they use what is loaded now
  if (Status s = load(link, *w.ask.loan); !s.ok()) {
    fail(w, std::move(s).error().at_peer(peer.name));
    return false;
  }
  return take_slot(w);
}

Status Engine::ready_agent() {
  if (agent_ != nullptr) return {};
  ++generation_;
  REFIT_ASSIGN(agent_, Agent::make(api_, agent_name("reads-" + std::to_string(generation_)), options_.net.nixl));
  reading_agents_ = static_cast<int>(1 + stuck_.size());
  const std::span<std::byte> arena = staging_->whole();
  if (!arena.empty()) {
    if (Status s = agent_->add(arena); !s.ok()) {
      agent_.reset();
      reading_agents_ = static_cast<int>(stuck_.size());
      return s;
    }
    staged_regions_ = 1;
  }
  return {};
}

Status Engine::load(Link& link, const Loan& loan) {
  if (link.loaded_by == generation_ && link.loaded == loan.metadata) return {};
  forget(link);  // begin() saw that nothing is under way
  link.loaded_by = 0;
  REFIT_ASSIGN(link.name, agent_->load(loan.descriptor.metadata));
  link.loaded_by = generation_;
  link.loaded = loan.metadata;
  return {};
}

// In order: what is small does not keep what is large from ever finding room.
bool Engine::take_slot(Work& w) {
  std::optional<Staging::Slot> slot;
  if (!no_room_ && staged_regions_.load() > 0) slot = staging_->take(w.ask.cut.slot);
  if (!no_room_ && !slot && staging_->idle()) {
    if (Status s = grow(w.ask.cut.slot); !s.ok()) {
      fail(w, std::move(s).error());
      return false;
    }
    slot = staging_->take(w.ask.cut.slot);
  }
  if (!slot) {
    no_room_ = true;
    const std::lock_guard lock(w.ask.lane->mutex);
    w.ask.lane->waits_for = "room in staging, which leases hold";
    return false;
  }
  w.slot = std::move(*slot);
  return true;
}

// Two buckets of this size: one is installed while the next is read.
Status Engine::grow(std::int64_t bytes) {
  if (const std::span<std::byte> old = staging_->whole(); !old.empty() && staged_regions_.load() > 0) {
    agent_->drop(old);
    staged_regions_ = 0;
  }
  // Rounded, so that the second place begins where Staging looks for it.
  REFIT_TRY(staging_->reserve(std::max(2 * ((bytes + 4095) / 4096 * 4096), kLeastStaging)));
  REFIT_TRY(agent_->add(staging_->whole()));
  staged_regions_ = 1;
  return {};
}

// Posts the next handle's runs. False when the request failed.
bool Engine::launch(Work& w) {
  const Descriptor& d = w.ask.loan->descriptor;
  std::vector<Part> parts;
  std::int64_t bytes = 0;
  for (; w.next_run < w.ask.cut.runs.size() && parts.size() < kHandleRuns; ++w.next_run) {
    const Run& r = w.ask.cut.runs[w.next_run];
    if (!parts.empty() && bytes + r.bytes > kHandleBytes) break;
    parts.push_back({w.slot.data() + r.to, d.regions[r.region].at + static_cast<std::uint64_t>(r.from), r.bytes});
    bytes += r.bytes;
  }
  const Peer& peer = w.ask.lane->peers.at(w.ask.sender);
  Link& link = *link_to(peer);
  {
    const std::lock_guard lock(w.ask.lane->mutex);
    w.ask.lane->waits_for = "bytes from the source";
  }
  auto read = agent_->read(link.name, parts);
  if (!read.ok()) {
    fail(w, std::move(read).error().at_peer(peer.name));
    return false;
  }
  w.flying.push_back({std::move(*read), now()});
  return true;
}

void Engine::look(Work& w) {
  for (auto f = w.flying.begin(); f != w.flying.end();) {
    const Moving moving = f->read->look();
    if (moving == Moving::kYes) {
      ++f;
      continue;
    }
    f = w.flying.erase(f);
    if (moving == Moving::kFailed) {
      spoilt_.push_back(std::move(w.slot));
      const Peer& peer = w.ask.lane->peers.at(w.ask.sender);
      return fail(w, Error(Code::kPeerLost, "NIXL lost the source while reading").at_peer(peer.name));
    }
  }
}

void Engine::deliver(Work& w) {
  w.phase = Phase::kOver;
  bytes_in_.fetch_add(static_cast<std::uint64_t>(w.ask.cut.packed));
  const std::lock_guard lock(w.ask.lane->mutex);
  if (w.ask.lane->ledger.failed()) return;
  w.ask.lane->inbox.push_back(
      {w.ask.ticket, w.ask.bucket, w.ask.sender, w.ask.cut.packed, std::move(w.slot), w.ask.loan});
  w.ask.lane->changed.notify_all();
}

void Engine::fail(Work& w, Error error) {
  const bool lost = error.code == Code::kPeerLost;
  (void)w.ask.lane->fail(std::move(error).at_stage("transfer").at_bucket(std::to_string(w.ask.bucket.value)));
  abandon(w);
  const auto link = links_.find(w.ask.sender);
  if (lost && link != links_.end()) forget(*link->second);
}

// An agent that lost a peer does not find it again by itself: what it knows of it is loaded anew. Not while a read is
// under way, which this would break off.
void Engine::forget(Link& link) {
  if (agent_ == nullptr || link.loaded_by != generation_ || in_flight_to(link)) return;
  agent_->forget(link.name);
  link.loaded_by = 0;
}

// The caller is done with it; the library may not be.
void Engine::abandon(Work& w) {
  w.phase = Phase::kOver;
  if (w.flying.empty()) return;
  const auto link = links_.find(w.ask.sender);
  orphans_.push_back({std::move(w.flying), std::move(w.slot), link == links_.end() ? nullptr : link->second});
}

void Engine::look_at_orphans() {
  const auto ended = [](Orphan& o, bool* failed) {
    std::erase_if(o.flying, [&](Flying& f) {
      const Moving moving = f.read->look();
      *failed = *failed || moving == Moving::kFailed;
      return moving != Moving::kYes;
    });
    return o.flying.empty();
  };
  for (auto o = orphans_.begin(); o != orphans_.end();) {
    bool failed = false;
    if (!ended(*o, &failed)) {
      ++o;
      continue;
    }
    const auto link = std::move(o->link);
    if (failed) spoilt_.push_back(std::move(o->slot));
    o = orphans_.erase(o);
    if (failed && link != nullptr) forget(*link);
  }
  for (auto s = stuck_.begin(); s != stuck_.end();) {
    bool failed = false;
    std::erase_if(s->orphans, [&](Orphan& o) {
      const bool gone = ended(o, &failed);
      if (gone) s->spoilt.push_back(std::move(o.slot));
      return gone;
    });
    s = s->orphans.empty() ? stuck_.erase(s) : std::next(s);
  }
  reading_agents_ = static_cast<int>(stuck_.size() + (agent_ != nullptr ? 1 : 0));
}

bool Engine::in_flight_to(const Link& link) const {
  const auto of = [&](const Work& w) {
    const auto at = links_.find(w.ask.sender);
    return !w.flying.empty() && at != links_.end() && at->second.get() == &link;
  };
  return std::any_of(works_.begin(), works_.end(), of) ||
         std::any_of(orphans_.begin(), orphans_.end(), [&](const Orphan& o) { return o.link.get() == &link; });
}

// A read that stalled may write its bytes whenever its peer goes on, and its agent must stay until then. Requests of
// other peers start over with the next agent, into staging of their own; what has been read keeps its place.
void Engine::set_aside() {
  Stuck& stuck = stuck_.emplace_back();
  stuck.agent = std::move(agent_);
  stuck.orphans.swap(orphans_);
  stuck.spoilt.swap(spoilt_);
  stuck.staging = std::move(staging_);
  for (Work& w : works_) {
    if (w.phase != Phase::kReading) continue;
    if (!w.flying.empty()) stuck.orphans.push_back({std::move(w.flying), std::move(w.slot), nullptr});
    w.flying.clear();
    w.slot = {};
    w.next_run = 0;
    w.phase = Phase::kReady;
  }
  if (stuck_.size() > kMostStuck) stuck_.pop_front();
  reading_agents_ = static_cast<int>(stuck_.size());
  staged_regions_ = 0;
  staging_ = std::make_shared<Staging>(options_.staging_bytes, options_.budget, wake_);
}

// `release_after_refit`: with the last request goes the reading side's memory.
void Engine::release_idle() {
  if (!options_.net.nixl.release_after_round || agent_ == nullptr || !works_.empty() || !orphans_.empty()) return;
  if (!staging_->idle()) return;
  agent_.reset();
  reading_agents_ = static_cast<int>(stuck_.size());
  staged_regions_ = 0;
  staging_ = std::make_shared<Staging>(options_.staging_bytes, options_.budget, wake_);
}

}  // namespace refit::transport::nixl
