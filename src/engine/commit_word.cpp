#include "engine/commit_word.h"

namespace refit::engine {
namespace {

template <typename F>
void visit(WordValue& v, F f) {
  std::uint64_t state = static_cast<std::uint64_t>(v.state);
  std::uint64_t step = static_cast<std::uint64_t>(v.version.step);
  std::uint64_t* fields[] = {&state,
                             &v.txn.lineage.hi,
                             &v.txn.lineage.lo,
                             &v.txn.epoch.value,
                             &v.txn.counter,
                             &v.version.lineage.hi,
                             &v.version.lineage.lo,
                             &v.version.number,
                             &v.version.digest.hi,
                             &v.version.digest.lo,
                             &step};
  for (std::size_t i = 0; i < std::size(fields); ++i) f(i, *fields[i]);
  v.state = static_cast<WordState>(state);
  v.version.step = static_cast<std::int64_t>(step);
}

}  // namespace

void CommitWord::store(const WordValue& value) {
  // `| 1`: a writer that died inside store() left an odd number, and the next whole store opens the word again.
  const std::uint64_t odd = (sequence_.load(std::memory_order_relaxed) + 1) | 1u;
  sequence_.store(odd, std::memory_order_seq_cst);
  WordValue v = value;
  visit(v, [&](std::size_t i, std::uint64_t& field) { body_[i].store(field, std::memory_order_seq_cst); });
  sequence_.store(odd + 1, std::memory_order_seq_cst);
}

WordValue CommitWord::load() const {
  WordValue closed;
  closed.state = WordState::kCopying;
  // A writer that died inside store() leaves an odd number: closed for good, as it must be.
  for (int attempt = 0; attempt < 64; ++attempt) {
    const std::uint64_t before = sequence_.load(std::memory_order_seq_cst);
    if (before & 1u) continue;
    WordValue v;
    visit(v, [&](std::size_t i, std::uint64_t& field) { field = body_[i].load(std::memory_order_seq_cst); });
    if (sequence_.load(std::memory_order_seq_cst) == before) return v;
  }
  return closed;
}

}  // namespace refit::engine
