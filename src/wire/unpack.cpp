#include <utility>

#include "wire/body.h"

namespace refit::wire {
namespace {

// Copies verified fields out. Lengths of copied bytes are charged to `left`: a small frame that refers to one large
// vector many times runs out of it.
class Unpacker {
 public:
  explicit Unpacker(std::size_t frame_bytes) : left_(frame_bytes) {}
  bool ok() const { return ok_; }

  void copy(const flatbuffers::Vector<std::uint8_t>* in, Bytes& out) {
    if (in == nullptr || !charge(in->size())) return;
    const auto* first = reinterpret_cast<const std::byte*>(in->data());
    out.assign(first, first + in->size());
  }
  void copy(const flatbuffers::String* in, std::string& out) {
    if (in != nullptr && charge(in->size())) out.assign(in->c_str(), in->size());
  }
  void copy(const fb::Hash* in, Hash128& out) {
    if (in != nullptr) out = unpack(*in);
  }
  void copy(const fb::TxnId* in, Txn& out) {
    if (in != nullptr) out = unpack(*in);
  }
  void copy(const fb::Digest* in, Digest4& out) {
    if (in != nullptr) out = {{in->w0(), in->w1(), in->w2(), in->w3()}, in->count()};
  }
  void copy(const fb::VersionId* in, Version& out) {
    if (in != nullptr) out = {unpack(in->lineage()), in->number(), unpack(in->digest()), in->step()};
  }
  void copy(const fb::Proof* in, ProofCounts& out) {
    if (in != nullptr) out = {in->placed_staged(), in->placed_live(), in->handed_over(), in->probed()};
  }
  void copy(const fb::ErrorInfo* in, Error& out) {
    if (in == nullptr) return;
    out.code = static_cast<Code>(in->code());
    copy(in->message(), out.message);
    copy(in->peer(), out.peer);
    copy(in->stage(), out.stage);
    copy(in->bucket(), out.bucket);
    copy(in->tensor(), out.tensor);
    if (in->need().has_value()) out.need = *in->need();
    if (in->have().has_value()) out.have = *in->have();
  }
  template <typename F, typename T>
  void copy(const F* in, std::optional<T>& out) {
    if (in != nullptr) copy(in, out.emplace());
  }
  template <typename F, typename T>
  void copy_tables(const flatbuffers::Vector<flatbuffers::Offset<F>>* in, std::vector<T>& out) {
    if (in == nullptr || !charge(std::size_t{4} * in->size())) return;
    for (const F* one : *in) {
      if (!ok_) return;
      copy(one, out.emplace_back());
    }
  }

  void copy(const fb::Hello* in, Hello& out) {
    out.state = static_cast<MemberState>(in->state());
    copy(in->lineage(), out.lineage);
    out.word.word = static_cast<Word>(in->word());
    copy(in->word_txn(), out.word.txn);
    copy(in->voted(), out.voted);
    copy(in->last(), out.last);
    copy(in->live(), out.live);
    copy(in->layout_digest(), out.layout_digest);
    copy(in->layout(), out.layout);
    copy(in->card(), out.card);
    out.staging_bytes = in->staging_bytes();
    if (in->digest_seed().has_value()) out.digest_seed = *in->digest_seed();
    out.number = in->number();
    copy(in->seen(), out.seen);
    copy(in->known(), out.known);
    copy(in->known_version(), out.known_version);
  }
  void copy_base(const fb::TxnId* in, Txn& out) {
    copy(in, out);
    if (out.counter == 0) out = {};  // none, whatever stands beside it
  }
  void copy(const fb::Ready* in, Ready& out) {
    out.layout_epoch = LayoutEpoch(in->layout_epoch());
    copy(in->plan(), out.plan);
    copy_base(in->base(), out.base);
  }
  void copy(const fb::PlanRefused* in, PlanRefused& out) {
    out.layout_epoch = LayoutEpoch(in->layout_epoch());
    copy_tables(in->errors(), out.errors);
  }
  void copy(const fb::Heartbeat* in, Heartbeat& out) {
    out.state = static_cast<MemberState>(in->state());
    out.phase = static_cast<Phase>(in->phase());
    out.progress = in->progress();
    out.buckets_done = in->buckets_done();
    out.bytes_done = in->bytes_done();
    copy(in->bucket(), out.bucket);
    out.published = in->published();
  }
  void copy(const fb::Sealed* in, Sealed& out) {
    out.step = in->step();
    copy(in->weight_set(), out.weight_set);
    copy(in->digest(), out.digest);
    if (in->groups() != nullptr && charge(sizeof(fb::Group) * in->groups()->size()))
      for (const fb::Group* g : *in->groups()) {
        GroupDigest& one = out.groups.emplace_back();
        copy(&g->group(), one.group);
        copy(&g->digest(), one.digest);
      }
    copy(in->descriptor(), out.descriptor);
    out.manifest_bytes = in->manifest_bytes();
    copy(in->manifest_hash(), out.manifest_hash);
  }
  template <typename T>
  void copy(const flatbuffers::Vector<T>* in, std::vector<T>& out) {
    if (in != nullptr && charge(sizeof(T) * in->size())) out.assign(in->begin(), in->end());
  }
  void copy(const fb::BlockAmax* in, BlockAmax& out) {
    copy(in->blocks(), out.blocks);
    copy(in->amax(), out.amax);
  }
  void copy(const fb::BlockAmaxMerged* in, BlockAmaxMerged& out) { copy(in->amax(), out.amax); }
  void copy(const fb::Staged* in, Staged& out) {
    copy(in->counted(), out.counted);
    copy(in->proof(), out.proof);
  }
  void copy(const fb::Vote* in, Vote& out) {
    out.yes = in->yes();
    copy(in->error(), out.error);
  }
  void copy(const fb::Gated*, Gated&) {}
  void copy(const fb::Applied* in, Applied& out) {
    copy(in->counted(), out.counted);
    copy(in->proof(), out.proof);
    out.pause_ns = in->pause_ns();
    out.retained = in->retained();
  }
  void copy(const fb::Reopened* in, Reopened& out) { out.pause_ns = in->pause_ns(); }
  void copy(const fb::Failed* in, Failed& out) {
    out.phase = static_cast<Phase>(in->phase());
    out.fenced = in->fenced();
    copy(in->error(), out.error);
  }
  void copy(const fb::VerifyReport* in, VerifyReport& out) {
    out.nonce = in->nonce();
    out.domain = static_cast<Domain>(in->domain());
    out.full = in->full();
    copy(in->counted(), out.counted);
    out.word.word = static_cast<Word>(in->word());
    copy(in->word_txn(), out.word.txn);
    copy(in->version(), out.version);
    copy(in->proof(), out.proof);
    copy_tables(in->errors(), out.errors);
  }
  void copy(const fb::Goodbye* in, Goodbye& out) { copy(in->reason(), out.reason); }
  void copy(const fb::StatusRequest* in, StatusRequest& out) { out.request = in->request(); }
  void copy(const fb::VerifyRequest* in, VerifyRequest& out) {
    out.request = in->request();
    out.domain = static_cast<Domain>(in->domain());
  }
  void copy(const fb::Welcome* in, Welcome& out) {
    out.member = in->member();
    copy(in->lineage(), out.lineage);
    out.digest_seed = in->digest_seed();
    out.membership_epoch = in->membership_epoch();
    copy(in->newest(), out.newest);
  }
  void copy(const fb::Refused* in, Refused& out) {
    copy(in->error(), out.error);
    out.hello_again = in->hello_again();
    copy(in->promise(), out.promise);
  }
  void copy(const fb::RosterEntry* in, RosterEntry& out) {
    out.member = in->member();
    out.name = {static_cast<Role>(in->role()), in->instance(), in->rank()};
    out.incarnation = Incarnation(in->incarnation());
    copy(in->card(), out.card);
  }
  void copy(const fb::Configure* in, Configure& out) {
    out.layout_epoch = LayoutEpoch(in->layout_epoch());
    copy(in->plan(), out.plan);
    copy(in->source_layout(), out.source_layout);
    copy(in->target_layout(), out.target_layout);
    copy(in->options_json(), out.options_json);
    out.staging_bytes = in->staging_bytes();
    copy_tables(in->roster(), out.roster);
  }
  void copy(const fb::Begin* in, Begin& out) {
    out.number = in->number();
    out.layout_epoch = LayoutEpoch(in->layout_epoch());
    copy(in->plan(), out.plan);
    if (in->step().has_value()) out.step = *in->step();
    out.proof = in->proof();
    out.stall_ns = in->stall_ns();
    out.total_ns = in->total_ns();
    copy_base(in->base(), out.base);
    if (in->without() != nullptr && charge(sizeof(std::uint32_t) * in->without()->size()))
      out.without.assign(in->without()->begin(), in->without()->end());
  }
  void copy(const fb::LendEntry* in, LendEntry& out) {
    out.member = in->member();
    out.incarnation = Incarnation(in->incarnation());
    copy(in->descriptor(), out.descriptor);
    out.manifest_bytes = in->manifest_bytes();
    copy(in->manifest_hash(), out.manifest_hash);
  }
  void copy(const fb::Lend* in, Lend& out) { copy_tables(in->sources(), out.sources); }
  void copy(const fb::ReadersDone*, ReadersDone&) {}
  void copy(const fb::Gate* in, Gate& out) {
    copy(in->version(), out.version);
    out.gate_ns = in->gate_ns();
  }
  void copy(const fb::Copy*, Copy&) {}
  void copy(const fb::Open*, Open&) {}
  void copy(const fb::Abort* in, Abort& out) { copy(in->reason(), out.reason); }
  void copy(const fb::Committed* in, Committed& out) { copy(in->version(), out.version); }
  void copy(const fb::End* in, End& out) {
    out.outcome = static_cast<Outcome>(in->outcome());
    copy(in->version(), out.version);
  }
  void copy(const fb::Evict* in, Evict& out) {
    out.membership_epoch = in->membership_epoch();
    copy(in->reason(), out.reason);
  }
  void copy(const fb::VerifyAsk* in, Verify& out) {
    out.nonce = in->nonce();
    out.domain = static_cast<Domain>(in->domain());
  }
  void copy(const fb::StatusReply* in, StatusReply& out) {
    out.request = in->request();
    out.ok = in->ok();
    copy(in->json(), out.json);
  }

 private:
  bool charge(std::size_t n) {
    ok_ = ok_ && n <= left_;
    if (ok_) left_ -= n;
    return ok_;
  }
  std::size_t left_;
  bool ok_ = true;
};

}  // namespace

Hash128 unpack(const fb::Hash& h) { return {h.hi(), h.lo()}; }
Txn unpack(const fb::TxnId& t) { return {unpack(t.lineage()), Epoch(t.epoch()), t.counter()}; }

// X(ours, theirs): a table may not be called Verify in generated code.
#define REFIT_WIRE_KINDS(X)                                                                                       \
  X(Hello, Hello)                                                                                                 \
  X(Ready, Ready)                                                                                                 \
  X(PlanRefused, PlanRefused)                                                                                     \
  X(Heartbeat, Heartbeat)                                                                                         \
  X(Sealed, Sealed)                                                                                               \
  X(Staged, Staged) X(Vote, Vote) X(Gated, Gated) X(Applied, Applied) X(Reopened, Reopened) X(Failed, Failed)     \
      X(VerifyReport, VerifyReport) X(Goodbye, Goodbye) X(StatusRequest, StatusRequest)                           \
          X(VerifyRequest, VerifyRequest) X(Welcome, Welcome) X(Refused, Refused) X(Configure, Configure)         \
              X(Begin, Begin) X(Lend, Lend) X(ReadersDone, ReadersDone) X(Gate, Gate) X(Copy, Copy) X(Open, Open) \
                  X(Abort, Abort) X(Committed, Committed) X(End, End) X(Evict, Evict) X(StatusReply, StatusReply) \
                      X(Verify, VerifyAsk) X(BlockAmax, BlockAmax) X(BlockAmaxMerged, BlockAmaxMerged)

Result<Message> unpack(const fb::Envelope& envelope, std::size_t frame_bytes) {
  Unpacker unpacker(frame_bytes);
  Message message;
  if (envelope.body() == nullptr) return Error(Code::kCorrupt, "control message: empty");
  switch (envelope.body_type()) {
#define X(ours, theirs)                                                  \
  case fb::Body::theirs:                                                 \
    unpacker.copy(envelope.body_as_##theirs(), message.emplace<ours>()); \
    break;
    REFIT_WIRE_KINDS(X)
#undef X
    case fb::Body::NONE:
      return Error(Code::kCorrupt, "control message: no kind");
  }
  if (!unpacker.ok()) return Error(Code::kCorrupt, "control message: holds more bytes than its frame");
  return message;
}

}  // namespace refit::wire
