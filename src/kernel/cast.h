// Scalar casts between all element types: the specification. Round to nearest even; exact means that nothing of the
// value was lost, the sign of a zero and the payload of a NaN included.
#pragma once
#include <cstdint>

#include "core/core.h"

namespace refit::kernel {

// Casts n packed items; false when one was not exact. Values are written either way: overflow gives infinity (NaN in
// f8_e4m3, which has none), integers saturate, a NaN becomes integer 0, and bool is "not zero".
bool cast_scalar(DType from, DType to, void* dst, const void* src, std::int64_t n);

}  // namespace refit::kernel
