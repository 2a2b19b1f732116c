// Compiles the bodies once per instruction set and chooses among them.
#define HWY_DISABLED_TARGETS HWY_SSSE3
#define HWY_WANT_AVX3_DL
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernel/isa.cpp"
#include "hwy/foreach_target.h"
//
#include "hwy/highway.h"
#include "kernel/cast-inl.h"
#include "kernel/copy-inl.h"
#include "kernel/digest-inl.h"
#include "kernel/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace refit::kernel::HWY_NAMESPACE {
const Ops* table() {
  static const Ops kOps{.name = hwy::TargetName(HWY_TARGET),
                        .copy_rows = copy_rows,
                        .digest_rows = digest_rows,
                        .digest_items = digest_items,
                        .transpose_tile = transpose_tile,
                        .transpose_strip = kTransposeStrip,
                        .fast_cast = fast_cast,
                        .fence = fence};
  return &kOps;
}
}  // namespace refit::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <algorithm>
#include <atomic>
#include <cctype>
#include <cstdlib>
#include <mutex>

namespace refit::kernel {
namespace {

HWY_EXPORT(table);

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

struct Isa {
  std::string name;
  std::int64_t target;
};

// Best first. Targets that were compiled and that this processor and system can run.
const std::vector<Isa>& machine_isas() {
  static const std::vector<Isa> list = [] {
    std::vector<Isa> out;
    const std::int64_t usable = hwy::SupportedTargets() & HWY_TARGETS;
    for (int bit = 0; bit < 63; ++bit)
      if ((usable >> bit & 1) != 0)
        out.push_back({lower(hwy::TargetName(std::int64_t{1} << bit)), std::int64_t{1} << bit});
    return out;
  }();
  return list;
}

std::atomic<const Ops*> current{nullptr};
std::mutex choosing;

// Points highway's dispatch at one target and reads the table it then finds.
const Ops* choose(std::int64_t target) {
  hwy::SetSupportedTargetsForTest(target);
  hwy::GetChosenTarget().DeInit();
  const Ops* found = HWY_DYNAMIC_DISPATCH(table)();
  hwy::SetSupportedTargetsForTest(0);
  return found;
}

Status force(std::string_view name, std::string_view origin) {
  const std::lock_guard lock(choosing);
  std::string known;
  for (const Isa& isa : machine_isas()) {
    if (isa.name == name) {
      current.store(choose(isa.target));
      return {};
    }
    known += (known.empty() ? "" : ", ") + isa.name;
  }
  return Error(Code::kInvalid, std::string(origin) + "'" + std::string(name) +
                                   "' is not an instruction set of this machine; it has " + known);
}

Status choose_default() {
  if (const char* forced = std::getenv("REFIT_FORCE_ISA"); forced != nullptr && *forced != '\0')
    return force(forced, "REFIT_FORCE_ISA=");
  return force(machine_isas().front().name, "");
}

}  // namespace

Status isa_status() {
  static const Status first = choose_default();
  return first;
}

const Ops& ops() {
  const Ops* found = current.load(std::memory_order_acquire);
  if (found == nullptr) [[unlikely]] {
    REFIT_CHECK(isa_status().ok());
    found = current.load();
  }
  return *found;
}

std::vector<std::string> available_isas() {
  std::vector<std::string> out;
  for (const Isa& isa : machine_isas()) out.push_back(isa.name);
  return out;
}
std::string chosen_isa() { return lower(ops().name); }
Status force_isa(std::string_view name) { return force(lower(name), "instruction set "); }

}  // namespace refit::kernel
#endif
