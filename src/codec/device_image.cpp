#include "codec/change_kernel.h"
#include "codec/quantise_kernel.h"
#include "memory/memory.h"

namespace refit::codec {

REFIT_DEVICE_CODE(codec)

const memory::KernelImage& device_image() {
  static constexpr grid::Emulated kKernels[] = {grid::emulated<QuantiseKernel>(), grid::emulated<AmaxKernel>(),
                                                grid::emulated<EncodeKernel>(), grid::emulated<ScanKernel>(),
                                                grid::emulated<ApplyKernel>()};
  static const memory::KernelImage kImage{"codec", device_code(), kKernels};
  return kImage;
}

}  // namespace refit::codec
