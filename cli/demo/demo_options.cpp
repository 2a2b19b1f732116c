#include "cli/demo/demo_options.h"

#include <fmt/format.h>

#include <charconv>
#include <fstream>

#include "cli/layouts.h"
#include "transport/transport.h"

namespace refit::cli {

Result<Kill> parse_kill(const std::string& text) {
  const auto bad = [&](const std::string& why) {
    std::string phases;
    for (int p = 0; p < kPhaseCount; ++p) phases += (p ? ", " : "") + std::string(to_string(static_cast<Phase>(p)));
    return Error(Code::kInvalid, "--kill '" + text + "': " + why +
                                     "; the form is ROLE:INDEX[.RANK]@STEP, ROLE source or target, STEP one of " +
                                     phases);
  };
  const auto colon = text.find(':'), at = text.find('@');
  if (colon == std::string::npos || at == std::string::npos || at < colon) return bad("parts are missing");
  Kill out;
  const std::string role = text.substr(0, colon);
  if (role != "source" && role != "target") return bad("unknown role '" + role + "'");
  out.who.role = role == "source" ? Role::kSource : Role::kTarget;
  const std::string index = text.substr(colon + 1, at - colon - 1);
  const auto dot = index.find('.');
  const auto number = [](std::string_view s, std::uint32_t& v) {
    const auto [end, err] = std::from_chars(s.data(), s.data() + s.size(), v);
    return err == std::errc() && end == s.data() + s.size();
  };
  std::uint32_t first = 0, second = 0;
  if (!number(index.substr(0, dot), first) || (dot != std::string::npos && !number(index.substr(dot + 1), second)))
    return bad("the index is not a number");
  // A lone source index is its rank (there is one trainer); a lone target index is a replica, whose rank 0 dies.
  if (out.who.role == Role::kSource && dot == std::string::npos)
    out.who.rank = first;
  else
    out.who.instance = first, out.who.rank = second;
  out.phase = text.substr(at + 1);
  // In the live copy a byte may be named: the process dies when that many are copied.
  if (const auto bytes = out.phase.find(':'); bytes != std::string::npos) {
    std::uint32_t n = 0;
    if (out.phase.substr(0, bytes) != "copying" || !number(std::string_view(out.phase).substr(bytes + 1), n) || n == 0)
      return bad("only 'copying' takes a number of bytes, as in copying:4097");
    out.bytes = n;
    out.phase.resize(bytes);
  }
  Phase ignored{};
  if (!phase_from_string(out.phase, ignored)) return bad("unknown step '" + out.phase + "'");
  return out;
}

std::string MemoryBill::to_string() const {
  return fmt::format(
      "memory: trainer shards {} + snapshots {} + rollout shards {} + shadows {} + staging {} + baselines {} + "
      "processes {} = "
      "{}; available {}",
      human_bytes(source_shards), human_bytes(snapshots), human_bytes(target_shards), human_bytes(shadows),
      human_bytes(staging), human_bytes(baselines), human_bytes(other), human_bytes(total()), human_bytes(have));
}

namespace {

Result<std::int64_t> available_memory() {
  std::ifstream in("/proc/meminfo");
  std::string key, unit;
  std::int64_t kib = 0;
  while (in >> key >> kib) {
    std::getline(in, unit);
    if (key == "MemAvailable:") return kib * 1024;
  }
  return Error(Code::kUnsupported, "/proc/meminfo does not tell the available memory");
}

Result<std::int64_t> shard_bytes(const model::Layout& layout) {
  std::int64_t sum = 0;
  for (std::int64_t r = 0; r < layout.world(); ++r) {
    REFIT_ASSIGN(const model::RankLayout rank, layout.expand(Rank(static_cast<std::uint32_t>(r))));
    REFIT_ASSIGN(const std::int64_t bytes, rank_bytes(rank));
    const auto next = checked_add(sum, bytes);
    if (!next) return Error(Code::kInvalid, "the layout's ranks overflow 63 bits");
    sum = *next;
  }
  return sum;
}

}  // namespace

Result<MemoryBill> make_bill(const DemoOptions& options, const model::Layout& source, const model::Layout& target) {
  constexpr std::int64_t kProcessBytes = 24
                                         << 20;  // code, stacks, plan, control: measured order of magnitude per process
  constexpr std::int64_t kReserve = 512 << 20;
  MemoryBill bill;
  REFIT_ASSIGN(bill.source_shards, shard_bytes(source));
  REFIT_ASSIGN(bill.target_shards, shard_bytes(target));
  bill.snapshots = options.snapshot ? bill.source_shards : 0;
  bill.shadows = bill.target_shards;
  bill.staging = transport::mover_maps(options.transport) ? 0 : target.world() * options.staging_bytes;
  // The base of deltas, deltas of one round, and work space.
  if (options.encoding_in_use() != "raw")
    bill.baselines = (options.baseline_dir.empty() ? bill.source_shards : 0) + bill.source_shards / 4 +
                     6 * source.world() * options.bucket_bytes + target.world() * options.bucket_bytes;
  bill.other = (source.world() + target.world() + 1) * kProcessBytes;
  REFIT_ASSIGN(const std::int64_t available, available_memory());
  bill.have = std::max<std::int64_t>(0, available - kReserve);
  return bill;
}

}  // namespace refit::cli
