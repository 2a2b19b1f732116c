// Compiles the fast bodies once per instruction set; which one is in force, the kernel room decides.
#define HWY_WANT_AVX3_DL
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codec/isa.cpp"
#include "hwy/foreach_target.h"
//
#include "codec/frame.h"
#include "codec/planes-inl.h"
#include "codec/scan-inl.h"
#include "codec/values-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace refit::codec::HWY_NAMESPACE {
// Where this set lacks an operation, the scalar loop stands in.
Body make_body() {
  Body body = kScalarBody;
  use_scan(body);
  use_planes(body);
  use_values(body);
  return body;
}
}  // namespace refit::codec::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <algorithm>
#include <string>

namespace refit::codec {
namespace {

constexpr Ops kReference = make_ops<kScalarBody>("scalar", "nothing");
#if HWY_TARGETS & HWY_AVX2
const Body kAvx2Body = N_AVX2::make_body();
const Ops kAvx2 = make_ops<kAvx2Body>("avx2", "AVX2");
#endif
#if HWY_TARGETS & HWY_AVX3_DL
const Body kAvx3DlBody = N_AVX3_DL::make_body();
const Ops kAvx3Dl = make_ops<kAvx3DlBody>("avx3_dl", "AVX-512 with VBMI, VBMI2 and BITALG");
#endif

// Names of the kernel room's sets, best first, and the table that serves each. The others run the reference.
struct Served {
  std::string_view isa;
  const Ops* table;
};
constexpr Served kServed[] = {
#if HWY_TARGETS & HWY_AVX3_DL
    {"avx3_dl", &kAvx3Dl},
#endif
#if HWY_TARGETS & HWY_AVX2
    {"avx3", &kAvx2},
    {"avx2", &kAvx2},
#endif
    {"scalar", &kReference},
};

const Ops* serving(std::string_view isa) {
  for (const Served& s : kServed)
    if (s.isa == isa) return s.table;
  return &kReference;
}

}  // namespace

const Ops& reference() { return kReference; }
const Ops& ops() { return *serving(kernel::chosen_isa()); }

std::span<const Ops* const> all_for_this_machine() {
  static const std::vector<const Ops*> kAll = [] {
    std::vector<const Ops*> all;
    for (const std::string& isa : kernel::available_isas())
      if (const Ops* table = serving(isa); std::find(all.begin(), all.end(), table) == all.end()) all.push_back(table);
    return all;
  }();
  return kAll;
}

Scratch::Scratch() : impl_(new Impl) {}
Scratch::~Scratch() = default;
Scratch::Scratch(Scratch&&) noexcept = default;
Scratch& Scratch::operator=(Scratch&&) noexcept = default;

}  // namespace refit::codec
#endif
