// Strong identities. A number of one kind cannot be passed for another.
#pragma once
#include <compare>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "core/hash.h"

namespace refit {

template <typename Tag, typename Rep>
struct Id {
  Rep value{};
  constexpr Id() = default;
  constexpr explicit Id(Rep v) : value(v) {}
  friend constexpr auto operator<=>(const Id&, const Id&) = default;
};

using Rank = Id<struct RankTag, std::uint32_t>;                // rank inside one layout
using TensorId = Id<struct TensorTag, std::uint32_t>;          // ordinal of the name in byte order
using BucketId = Id<struct BucketTag, std::uint32_t>;          // unique per (sender) stream of a plan
using Epoch = Id<struct EpochTag, std::uint64_t>;              // coordinator epoch
using LayoutEpoch = Id<struct LayoutEpochTag, std::uint64_t>;  // changes when a layout or the membership does
using MemoryEpoch = Id<struct MemoryEpochTag, std::uint64_t>;  // changes when memory is re-registered or a lend revoked
using Incarnation = Id<struct IncarnationTag, std::uint64_t>;  // random per process start
using Lineage = Hash128;                                       // random per lineage of versions
using PlanId = Hash128;

// The identity of one round, carried by every message, lend, vote and ack.
struct Txn {
  Lineage lineage;
  Epoch epoch;
  std::uint64_t counter = 0;
  friend auto operator<=>(const Txn&, const Txn&) = default;
  std::string to_string() const;  // "lineage8/epoch/counter"
};

// A committed state of the model. Numbers are never reused in a lineage; steps may go back.
struct Version {
  Lineage lineage;
  std::uint64_t number = 0;  // 0: none yet
  Hash128 digest;
  std::int64_t step = -1;
  friend bool operator==(const Version&, const Version&) = default;
};

enum class Role : std::uint8_t { kSource = 0, kTarget = 1, kClient = 2 };
std::string_view to_string(Role role);

// Who a process is: rank `rank` of `instance` in a role. A target instance is a replica.
struct MemberName {
  Role role = Role::kSource;
  std::uint32_t instance = 0, rank = 0;
  friend auto operator<=>(const MemberName&, const MemberName&) = default;
  std::string to_string() const;                                  // "target:0.2"
  static std::optional<MemberName> parse(std::string_view text);  // the same form
};

}  // namespace refit

template <typename Tag, typename Rep>
struct std::hash<refit::Id<Tag, Rep>> {
  std::size_t operator()(const refit::Id<Tag, Rep>& id) const noexcept { return std::hash<Rep>{}(id.value); }
};
