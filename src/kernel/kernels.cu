// The GPU's entries; bodies and index arithmetic are in the headers, which the CPU walks too.
#include "kernel/move_kernel.h"
#include "kernel/transpose_kernel.h"

using namespace refit;

extern "C" __global__ void __launch_bounds__(kernel::MoveKernel::kThreads)
    refit_move(const __grid_constant__ kernel::MoveKernel::Params p) {
  __shared__ kernel::MoveKernel::Shared shared;
  kernel::MoveKernel::run({blockIdx.x}, p, shared);
}

extern "C" __global__ void __launch_bounds__(kernel::TransposeKernel::kThreads)
    refit_transpose(const __grid_constant__ kernel::TransposeKernel::Params p) {
  __shared__ kernel::TransposeKernel::Shared shared;
  kernel::TransposeKernel::run({blockIdx.x}, p, shared);
}
