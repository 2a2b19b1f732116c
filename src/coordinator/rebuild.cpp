// A coordinator whose journal knows no round, and members that do: the journal was lost. It is rebuilt from their words
// (end of rule C3): first everybody is heard, then everybody promises the new epoch by a Hello under it, so that what
// they say can change no more; then one record says how the last rounds ended, and only after that anybody is told.
#include <algorithm>

#include "coordinator/machine.h"

namespace refit::coordinator {
namespace {

// Epochs and version numbers that nobody here has heard of may have been used: those who heard them are gone.
constexpr std::uint64_t kUnheard = std::uint64_t{1} << 20;

bool serves(const wire::Hello& h) {
  return h.state == wire::MemberState::kServing || h.state == wire::MemberState::kLagging;
}

}  // namespace

bool bound(const wire::Hello& h) {
  return h.word.word != wire::Word::kNone || h.voted || h.last.number > 0 || h.known.counter > 0;
}

// The journal may be given up for what members say only while it knows of no round.
bool Machine::rebuilds(const wire::Envelope& e, const wire::Hello& h) const {
  if (s_.journal.counter > 0 || s_.round || !s_.config.shape.slot(e.name())) return false;
  if (s_.rebuild) return true;
  const bool foreign = h.lineage != Lineage{} && h.lineage != s_.journal.lineage;
  // Who holds nothing takes our lineage with the Welcome, unless it has promised an epoch above ours.
  return (foreign && bound(h)) || e.epoch > s_.epoch;
}

void Machine::hear(std::uint32_t connection, const wire::Envelope& e, const wire::Hello& h) {
  if (!s_.rebuild) {
    s_.rebuild.emplace();
    s_.rebuild->deadline_ns = s_.now_ns + s_.config.rebuild_ns;
    // Whoever was welcomed before says hello anew: its word is needed too.
    for (std::uint32_t m = 0; m < s_.slots.size(); ++m)
      if (s_.slots[m].present())
        refuse(s_.slots[m].connection, Error(Code::kBusy, "the journal is being rebuilt").at_peer("coordinator"), true);
    forget_slots();
  }
  Rebuild& r = *s_.rebuild;
  const std::uint32_t member = *s_.config.shape.slot(e.name());
  const auto at = r.words.find(member);
  if (at != r.words.end() && at->second.incarnation == e.incarnation && e.sequence < at->second.sequence) return;
  if (at != r.words.end() && at->second.incarnation != e.incarnation && at->second.connection != kNoConnection)
    return refuse(connection,
                  Error(Code::kBusy, "the place of " + e.who() + " is held by another process").at_peer(e.who()), true);
  r.words[member] = {connection, e.incarnation, e.epoch, e.sequence, h};
  if (r.writing) return;
  r.blocked = contradiction();
  if (r.blocked) return refuse(connection, *r.blocked, true);
  if (r.asked && e.epoch > s_.epoch) return ask_promises();
  if (r.asked && e.epoch < s_.epoch) ask_promise(connection);
}

void Machine::forget_slots() {
  s_.by_connection.clear();
  for (Slot& slot : s_.slots) slot = {}, slot.gone_ns = s_.now_ns;
  s_.roster = {};
  s_.seated.clear();
}

// Two words that can't both be true; names both members.
std::optional<Error> Machine::contradiction() const {
  for (const auto& [a, x] : s_.rebuild->words)
    for (const auto& [b, y] : s_.rebuild->words) {
      if (a >= b || !bound(x.hello) || !bound(y.hello)) continue;
      const auto differ = [&](const std::string& what) {
        return Error(Code::kMismatch, "the journal was lost and cannot be rebuilt: " + name(a) + " and " + name(b) +
                                          " " + what + "; restart the one that is wrong")
            .at_peer(name(b))
            .at_stage("rebuild");
      };
      if (x.hello.lineage != y.hello.lineage)
        return differ("hold lineages " + x.hello.lineage.hex() + " and " + y.hello.lineage.hex());
      if (x.hello.digest_seed && y.hello.digest_seed && x.hello.digest_seed != y.hello.digest_seed)
        return differ("follow different digest seeds");
      const Version &v = x.hello.known_version, &w = y.hello.known_version;
      const bool related = x.hello.known.counter > 0 &&
                           (x.hello.known == y.hello.known || (v.number == w.number && y.hello.known.counter > 0));
      if (related && (v != w || x.hello.known != y.hello.known))
        return differ("know different versions of number " + std::to_string(v.number));
    }
  return std::nullopt;
}

void Machine::ask_promise(std::uint32_t connection) {
  wire::Refused r;
  r.error = Error(Code::kBusy, "the journal is being rebuilt: promise this epoch").at_peer("coordinator");
  r.hello_again = true;
  r.promise = rebuilt_lineage();
  send(connection, {}, std::move(r));
}

// Above every epoch that anybody may follow: whoever says hello under it refuses all others from then on.
void Machine::ask_promises() {
  Rebuild& r = *s_.rebuild;
  std::uint64_t highest = s_.epoch.value;
  for (const auto& [member, word] : r.words) highest = std::max(highest, word.epoch.value);
  // Another coordinator may be rebuilding on another host, from the same words: a part that is this process' own tells
  // the two apart, and the higher one ends the other as soon as a member has heard both.
  s_.epoch = Epoch(highest + (r.asked ? 1 : kUnheard + s_.config.incarnation.value % kUnheard));
  r.asked = true;
  r.deadline_ns = s_.now_ns + s_.config.rebuild_ns;
  for (const auto& [member, word] : r.words) ask_promise(word.connection);
}

bool Machine::promised(std::uint32_t member) const {
  const auto at = s_.rebuild->words.find(member);
  return at != s_.rebuild->words.end() && at->second.connection != kNoConnection &&
         (!s_.rebuild->asked || at->second.epoch == s_.epoch);
}

void Machine::advance_rebuild() {
  if (!s_.rebuild || s_.rebuild->writing || s_.rebuild->blocked || s_.reading_epoch) return;
  bool all = true;
  for (std::uint32_t m = 0; m < s_.slots.size(); ++m) all = all && promised(m);
  if (!all && s_.now_ns <= s_.rebuild->deadline_ns) return;
  if (!s_.rebuild->asked) return ask_promises();
  s_.rebuild->writing = true;
  SnapshotRecord r = rebuilt();
  std::vector<RecordBody> bodies{r};
  // No commit of it is known, and all who could have acted on one have promised otherwise or are out.
  if (r.open && !r.open_committed) bodies.push_back(AbortRecord{r.open->txn});
  append(Purpose::kRebuild, std::move(bodies));
}

Lineage Machine::rebuilt_lineage() const {
  for (const auto& [member, word] : s_.rebuild->words)
    if (bound(word.hello)) return word.hello.lineage;
  return s_.journal.lineage;
}

// What the words add up to. Any member that knows of a commit decides it; a round above that one has a yes or less and
// is aborted. A place that has not promised is out, whoever holds it.
SnapshotRecord Machine::rebuilt() const {
  SnapshotRecord out;
  out.job = s_.config.job;
  out.lineage = rebuilt_lineage();
  out.digest_seed = s_.journal.digest_seed;     // where nobody knows the old one, nobody holds digests made with it
  out.membership_epoch = s_.epoch.value << 32;  // above all that began under lower epochs, heard of or not
  const Word* voter = nullptr;
  Txn seen;
  for (const auto& [member, word] : s_.rebuild->words) {
    const wire::Hello& h = word.hello;
    if (h.lineage != out.lineage) continue;
    if (h.digest_seed) out.digest_seed = *h.digest_seed;
    out.number = std::max({out.number, h.number, h.last.number, h.known_version.number});
    seen = std::max({seen, h.seen, h.known, h.voted.value_or(Txn{})});
    if (h.known.counter > 0 && (!out.newest || h.known > out.newest->txn))
      out.newest = CommitRecord{h.known, h.known_version, {}};
    if (h.voted && (voter == nullptr || *h.voted > *voter->hello.voted)) voter = &word;
  }
  out.counter = seen.counter;
  if (voter != nullptr && (!out.newest || *voter->hello.voted > out.newest->txn)) {
    BeginRecord open;
    open.txn = *voter->hello.voted;
    open.number = voter->hello.number;
    open.membership_epoch = out.membership_epoch;
    out.open = std::move(open);
    out.counter = std::max(out.counter, out.open->txn.counter);
  }
  out.forgotten = out.open ? Txn{out.lineage, out.open->txn.epoch, out.open->txn.counter - 1} : seen;
  // Also above what a former rebuild began with: those who promised its epoch need not have heard of its numbers.
  out.number = std::max(out.number + kUnheard, s_.epoch.value);
  seat(out);
  return out;
}

// Who takes part in the open round, and who is out.
void Machine::seat(SnapshotRecord& out) const {
  const Shape& shape = s_.config.shape;
  const bool undecided = out.open.has_value();
  BeginRecord finish;
  if (out.newest) {
    finish.txn = out.newest->txn;
    finish.number = out.newest->version.number;
  }
  finish.membership_epoch = out.membership_epoch;
  for (std::uint32_t m = 0; m < shape.sources(); ++m)
    if (promised(m)) finish.members.push_back({m, s_.rebuild->words.at(m).incarnation});
  bool unfinished = false;
  const auto in = [&](std::uint32_t m, const Txn& txn) {
    if (!promised(m)) return false;
    const wire::Hello& h = s_.rebuild->words.at(m).hello;
    return h.voted == txn || (serves(h) && h.known == txn);
  };
  for (std::uint32_t first = shape.sources(); first < shape.members(); first += shape.target_ranks) {
    bool whole = true, open = false;
    for (std::uint32_t m = first; m < first + shape.target_ranks; ++m) {
      whole = whole && in(m, finish.txn);
      open = open || (promised(m) && s_.rebuild->words.at(m).hello.voted == finish.txn);
    }
    const bool finishes = out.newest && !undecided && whole && open;
    unfinished = unfinished || finishes;
    for (std::uint32_t m = first; m < first + shape.target_ranks; ++m) {
      if (!promised(m)) {
        out.evicted.push_back({m, Incarnation{}});
        continue;
      }
      const Word& word = s_.rebuild->words.at(m);
      const std::optional<Txn>& voted = word.hello.voted;
      if (finishes) {
        finish.members.push_back({m, word.incarnation});
      } else if (voted && !(undecided && *voted == out.open->txn)) {
        out.evicted.push_back({m, word.incarnation});  // its round is over without it, or its replica is not whole
      }
    }
  }
  if (!unfinished) return;
  out.open = std::move(finish);
  out.open_committed = true;
}

void Machine::rebuilt_durably() {
  s_.rebuild.reset();
  s_.highest_number = s_.journal.number;
  s_.out = s_.journal.evicted;
  forget_slots();
  if (s_.journal.open && s_.journal.open_committed) s_.round = unfinished(s_.config, s_.journal, s_.now_ns);
}

}  // namespace refit::coordinator
