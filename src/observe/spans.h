// Spans: two phase events of one member and one round, and what lies between them.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/core.h"

namespace refit::observe {

// Who an observer hears: the coordinator, whose events carry a client's name, or a member.
enum class Side : std::uint8_t { kCoordinator, kSource, kTarget };
std::string_view to_string(Side side);
Side side_of(const MemberName& who);
std::string name_of(const MemberName& who);  // "coordinator", "target:0.2"

// `whole`: spans others of the same table, which a time line would draw twice.
struct SpanKind {
  Side side;
  std::string_view name;
  Phase from, to;
  bool whole;
  std::string_view means;
};
std::span<const SpanKind> span_kinds();

// Ids in the form of OpenTelemetry, the same in every process of a job: a round is a trace, a member's part in it a
// span.
std::string trace_id(const Txn& txn);                         // 32 hex digits
std::string span_id(const Txn& txn, const MemberName& who);  // 16 hex digits

struct Span {
  const SpanKind* kind = nullptr;
  MemberName who;
  Txn txn;
  std::int64_t start_ns = 0, end_ns = 0;    // monotonic
  std::int64_t bytes = 0, buckets = 0;      // as last told in the phase that it began with
  double seconds() const { return static_cast<double>(end_ns - start_ns) * 1e-9; }
};

// Keeps, per member, when each phase of its round was first seen. *thread-safe*.
class Spans {
 public:
  struct Seen {
    bool first = false;  // of this phase in this round; later ones are progress
    std::vector<Span> ended;
  };
  Seen on(const PhaseEvent& event);

 private:
  struct Round {
    Txn txn;
    std::array<std::int64_t, kPhaseCount> at{};  // 0: not yet
    std::array<std::int64_t, kPhaseCount> bytes{}, buckets{};
  };
  std::mutex mutex_;
  std::map<MemberName, Round> rounds_;
};

}  // namespace refit::observe
