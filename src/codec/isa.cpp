// Compiles the fast bodies once per instruction set; which one is in force, the kernel room decides.
#define HWY_WANT_AVX3_DL
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codec/isa.cpp"
#include "hwy/foreach_target.h"
//
#include "codec/frame.h"
#include "codec/planes-inl.h"
#include "codec/quantise-inl.h"
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

constexpr char kNeedsNothing[] = "nothing", kNeedsAvx2[] = "AVX2",
               kNeedsAvx3Dl[] = "AVX-512 with VBMI, VBMI2 and BITALG";
constexpr Ops kReference = make_ops<kScalarBody>("scalar", kNeedsNothing);
constexpr QuantOps kQuantReference = make_quant_ops<kScalarQuantBody>("scalar", kNeedsNothing);
#if HWY_TARGETS & HWY_AVX2
const Body kAvx2Body = N_AVX2::make_body();
const Ops kAvx2 = make_ops<kAvx2Body>("avx2", kNeedsAvx2);
const QuantBody kAvx2QuantBody = N_AVX2::make_quant_body();
const QuantOps kAvx2Quant = make_quant_ops<kAvx2QuantBody>("avx2", kNeedsAvx2);
#endif
#if HWY_TARGETS & HWY_AVX3_DL
const Body kAvx3DlBody = N_AVX3_DL::make_body();
const Ops kAvx3Dl = make_ops<kAvx3DlBody>("avx3_dl", kNeedsAvx3Dl);
const QuantBody kAvx3DlQuantBody = N_AVX3_DL::make_quant_body();
const QuantOps kAvx3DlQuant = make_quant_ops<kAvx3DlQuantBody>("avx3_dl", kNeedsAvx3Dl);
#endif

// Names of the kernel room's sets, best first, and the tables that serve each. The others run the reference.
struct Served {
  std::string_view isa;
  const Ops* table;
  const QuantOps* quant;
};
constexpr Served kServed[] = {
#if HWY_TARGETS & HWY_AVX3_DL
    {"avx3_dl", &kAvx3Dl, &kAvx3DlQuant},
#endif
#if HWY_TARGETS & HWY_AVX2
    {"avx3", &kAvx2, &kAvx2Quant},
    {"avx2", &kAvx2, &kAvx2Quant},
#endif
    {"scalar", &kReference, &kQuantReference},
};

const Served& serving(std::string_view isa) {
  for (const Served& s : kServed)
    if (s.isa == isa) return s;
  return kServed[std::size(kServed) - 1];
}

// Each table once.
template <typename Table>
std::vector<const Table*> tables(const Table* Served::*which) {
  std::vector<const Table*> all;
  for (const std::string& isa : kernel::available_isas())
    if (const Table* table = serving(isa).*which; std::find(all.begin(), all.end(), table) == all.end())
      all.push_back(table);
  return all;
}

}  // namespace

const Ops& reference() { return kReference; }
const Ops& ops() { return *serving(kernel::chosen_isa()).table; }
const QuantOps& quant_reference() { return kQuantReference; }
const QuantOps& quant_ops() { return *serving(kernel::chosen_isa()).quant; }

std::span<const Ops* const> all_for_this_machine() {
  static const std::vector<const Ops*> kAll = tables(&Served::table);
  return kAll;
}
std::span<const QuantOps* const> all_quant_for_this_machine() {
  static const std::vector<const QuantOps*> kAll = tables(&Served::quant);
  return kAll;
}

Scratch::Scratch() : impl_(new Impl) {}
Scratch::~Scratch() = default;
Scratch::Scratch(Scratch&&) noexcept = default;
Scratch& Scratch::operator=(Scratch&&) noexcept = default;

}  // namespace refit::codec
#endif
