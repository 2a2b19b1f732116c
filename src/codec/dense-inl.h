#if defined(REFIT_CODEC_DENSE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef REFIT_CODEC_DENSE_INL_H_
#undef REFIT_CODEC_DENSE_INL_H_
#else
#define REFIT_CODEC_DENSE_INL_H_
#endif
#include "codec/body.h"
#include "hwy/highway.h"
HWY_BEFORE_NAMESPACE();
namespace refit::codec::HWY_NAMESPACE {
inline void use_planes(Body&) {}
}
HWY_AFTER_NAMESPACE();
#endif
