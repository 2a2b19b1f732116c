#include "kernel/cast.h"

#include <array>

#include "kernel/cast_body.h"

namespace refit::kernel {
namespace {

using casting::Number;
struct Codec {
  Number (*decode)(const void*);
  bool (*encode)(const Number&, void*);
};
template <DType kType>
constexpr Codec kCodec{[](const void* p) { return casting::decode(kType, p); },
                       [](const Number& x, void* p) { return casting::encode(kType, x, p); }};

// In the order of DType: resolved once for a run of elements.
constexpr std::array<Codec, kDTypeCount> kCodecs = {
    kCodec<DType::kBool>, kCodec<DType::kU8>,   kCodec<DType::kI8>,  kCodec<DType::kI16>,
    kCodec<DType::kI32>,  kCodec<DType::kI64>,  kCodec<DType::kF16>, kCodec<DType::kBF16>,
    kCodec<DType::kF32>,  kCodec<DType::kF64>,  kCodec<DType::kF8E4M3>, kCodec<DType::kF8E5M2>};

}  // namespace

bool cast_scalar(DType from, DType to, void* dst, const void* src, std::int64_t n) {
  const Codec& in = kCodecs[static_cast<std::size_t>(from)];
  const Codec& out = kCodecs[static_cast<std::size_t>(to)];
  const std::int64_t in_bytes = item_size(from), out_bytes = item_size(to);
  bool exact = true;
  for (std::int64_t i = 0; i < n; ++i)
    exact &=
        out.encode(in.decode(static_cast<const char*>(src) + i * in_bytes), static_cast<char*>(dst) + i * out_bytes);
  return exact;
}

}  // namespace refit::kernel
