// Who is expected, who is here: one slot per (role, instance, rank). Sources come first, then targets by instance.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/core.h"
#include "wire/wire.h"

namespace refit::coordinator {

inline constexpr std::uint32_t kNoConnection = 0xffffffffu;

struct Shape {
  std::uint32_t source_instances = 1, source_ranks = 1;  // ranks per instance
  std::uint32_t target_instances = 1, target_ranks = 1;
  std::uint32_t sources() const { return source_instances * source_ranks; }
  std::uint32_t members() const { return sources() + target_instances * target_ranks; }
  std::optional<std::uint32_t> slot(const MemberName& name) const;  // absent: not expected in this job
  MemberName name(std::uint32_t member) const;
};

struct Slot {
  std::uint32_t connection = kNoConnection;  // kNoConnection: nobody is here
  Incarnation incarnation;                   // of the present or the last holder; 0: never held
  wire::Hello hello;                         // as last said
  std::int64_t heard_ns = 0;
  std::uint64_t sequence = 0;  // highest heard of this incarnation
  wire::Heartbeat heartbeat;
  Version holds;                      // applied (target) as last said
  std::optional<wire::Digest4> live;  // its folded digest
  Txn inside;                         // round it last said to be in
  std::int64_t gone_ns = 0;           // since when nobody is here
  std::int64_t configured_ns = 0;     // when Configure was last sent
  bool ready = false;                 // Ready for the current layout epoch
  PlanId plan;
  Txn base;  // target: the round whose bytes can be the base of its deltas, as far as it and we know; counter 0: none
  std::vector<Error> refused;  // PlanRefused for the current layout epoch
  bool present() const { return connection != kNoConnection; }
};

}  // namespace refit::coordinator
