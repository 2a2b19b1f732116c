#include "kernel/move_kernel.h"
#include "kernel/transpose_kernel.h"
#include "memory/memory.h"

namespace refit::kernel {

REFIT_DEVICE_CODE(kernel)

const memory::KernelImage& device_image() {
  static constexpr grid::Emulated kKernels[] = {grid::emulated<MoveKernel>(), grid::emulated<TransposeKernel>()};
  static const memory::KernelImage kImage{"kernel", device_code(), kKernels};
  return kImage;
}

}  // namespace refit::kernel
