// The GPU's entries of this room; see kernel/kernels.cu.
#include "codec/change_kernel.h"
#include "codec/quantise_kernel.h"

using namespace refit;

#define REFIT_ENTRY(symbol, Kernel)                                             \
  extern "C" __global__ void __launch_bounds__(Kernel::kThreads)                \
      symbol(const __grid_constant__ Kernel::Params p) {                        \
    __shared__ Kernel::Shared shared;                                           \
    Kernel::run({blockIdx.x}, p, shared);                                       \
  }
REFIT_ENTRY(refit_quantise, codec::QuantiseKernel)
REFIT_ENTRY(refit_amax, codec::AmaxKernel)
REFIT_ENTRY(refit_encode, codec::EncodeKernel)
REFIT_ENTRY(refit_scan, codec::ScanKernel)
REFIT_ENTRY(refit_apply, codec::ApplyKernel)
