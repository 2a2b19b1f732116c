#include "install/link.h"

#include <algorithm>

namespace refit::install {

bool accept(const Link& link, const Identity& self, const wire::Envelope& e, Ignored& ignored) {
  if (e.job != self.job) return ++ignored.foreign_job, false;
  if (e.party != wire::Party::kCoordinator) return ++ignored.wrong_party, false;
  if (e.epoch < link.epoch) return ++ignored.old_epoch, false;
  const bool admission = std::holds_alternative<wire::Welcome>(e.message) ||
                         std::holds_alternative<wire::Refused>(e.message) ||
                         std::holds_alternative<wire::Evict>(e.message);
  // Before Welcome nothing but admission counts, and a higher epoch must introduce itself by a Welcome.
  if (!admission && (!link.welcomed || e.epoch != link.epoch)) return ++ignored.unexpected, false;
  if (e.txn.counter > 0 && link.lineage != Lineage{} && e.txn.lineage != link.lineage) return ++ignored.old_txn, false;
  return true;
}

namespace {
// Nothing of the former lineage counts any more.
void move(Link& link, const Lineage& lineage) {
  link.lineage = lineage;
  link.membership_epoch = link.number = 0;
  link.digest_seed.reset();
  link.seen = {};
  link.layout_epoch = {};
  link.planned = false;
}
}  // namespace

bool moves(const Link& link, const Lineage& lineage, bool bound) {
  return !bound && link.lineage != Lineage{} && link.lineage != lineage;
}

bool take_welcome(Link& link, const wire::Envelope& e, const wire::Welcome& w, bool bound) {
  if (moves(link, w.lineage, bound)) move(link, w.lineage);
  if (link.lineage != Lineage{} && link.lineage != w.lineage) {
    link.refused = Error(Code::kMismatch, "the coordinator follows lineage " + w.lineage.hex() +
                                              ", this process holds " + link.lineage.hex() +
                                              ": its journal was lost; restart this process to join as empty");
    link.rejected = true;
    return false;
  }
  if (w.membership_epoch < link.membership_epoch) return false;
  link.welcomed = true;
  link.rejected = false;
  link.refused.reset();
  link.epoch = e.epoch;
  link.member = w.member;
  link.lineage = w.lineage;
  link.digest_seed = w.digest_seed;
  link.membership_epoch = w.membership_epoch;
  link.newest = w.newest;
  link.number = std::max(link.number, w.newest.number);
  return true;
}

bool take_refused(Link& link, const wire::Envelope& e, const wire::Refused& r, bool bound) {
  link.refused = r.error;
  link.welcomed = false;
  link.rejected = !r.hello_again;
  if (r.promise == Lineage{} || !r.hello_again || e.epoch <= link.epoch) return false;
  if (bound && link.lineage != r.promise) return false;
  if (link.lineage != r.promise) move(link, r.promise);
  link.epoch = e.epoch;
  return true;
}

bool take_configure(Link& link, const wire::Configure& c, bool& resend_ready) {
  resend_ready = c.layout_epoch == link.layout_epoch && link.planned;
  if (c.layout_epoch <= link.layout_epoch) return false;
  link.layout_epoch = c.layout_epoch;
  link.planned = false;
  link.plan = {};
  return true;
}

wire::Envelope envelope(const Link& link, const Identity& self, const Txn& txn, std::uint64_t sequence,
                        wire::Message message) {
  wire::Envelope e;
  e.job = self.job;
  e.epoch = link.epoch;
  e.txn = txn;
  e.party = wire::party_of(self.name.role);
  e.instance = self.name.instance;
  e.rank = self.name.rank;
  e.member = link.welcomed ? link.member : wire::kNoMember;
  e.incarnation = self.incarnation;
  e.sequence = sequence;
  e.message = std::move(message);
  return e;
}

bool beat_due(const Link& link, const Identity& self, std::int64_t sent_ns, std::int64_t now_ns) {
  return link.connected && !link.rejected && now_ns - sent_ns >= self.heartbeat_ns;
}

}  // namespace refit::install
