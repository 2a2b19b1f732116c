// One text for CPU and GPU: marks of functions that nvcc compiles for both, and thread blocks that a CPU can walk through.
// A kernel is a type with kName, kThreads, Params, Shared (plain data) and run(block, params, shared).
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>

#if defined(__CUDACC__)
#define REFIT_HD __host__ __device__
#define REFIT_COLD __noinline__  // rare and large: once in a GPU's code, however often it is called
#define REFIT_UNROLL _Pragma("unroll")
#else
#define REFIT_HD
#define REFIT_COLD inline
#define REFIT_UNROLL
#endif

namespace refit::grid {

// The CPU walks threads of a region forwards in even blocks and backwards in odd ones, so that a result which depends on
// their order shows.
template <int kThreads>
struct Block {
  std::int64_t index = 0;

  // A region between barriers: fn(thread) for every thread of the block.
  template <typename Fn>
  REFIT_HD void each(const Fn& fn) const {
#if defined(__CUDA_ARCH__)
    fn(static_cast<int>(threadIdx.x));
    __syncthreads();
#else
    for (int t = 0; t < kThreads; ++t) fn(index % 2 == 0 ? t : kThreads - 1 - t);
#endif
  }
};

// What a thread keeps from one region to the next.
template <typename T, int kThreads>
class PerThread {
 public:
#if defined(__CUDA_ARCH__)
  REFIT_HD T& operator[](int) { return own_; }

 private:
  T own_{};
#else
  REFIT_HD T& operator[](int thread) { return all_[thread]; }

 private:
  T all_[static_cast<std::size_t>(kThreads)]{};
#endif
};

// A plain struct of 8 or 16 bytes in one access; nvcc would else take it apart.
template <typename T>
REFIT_HD inline T load_wide(const void* at) {
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(T) == 16) return __builtin_bit_cast(T, *static_cast<const uint4*>(at));
  if constexpr (sizeof(T) == 8) return __builtin_bit_cast(T, *static_cast<const uint2*>(at));
#endif
  return *static_cast<const T*>(at);
}
template <typename T>
REFIT_HD inline void store_wide(void* at, const T& v) {
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(T) == 16) {
    *static_cast<uint4*>(at) = __builtin_bit_cast(uint4, v);
    return;
  }
  if constexpr (sizeof(T) == 8) {
    *static_cast<uint2*>(at) = __builtin_bit_cast(uint2, v);
    return;
  }
#endif
  *static_cast<T*>(at) = v;
}

// *order-free* operations on words that several threads share.
REFIT_HD inline void atomic_add(std::uint32_t* at, std::uint32_t v) {
#if defined(__CUDA_ARCH__)
  atomicAdd(at, v);
#else
  *at += v;
#endif
}
REFIT_HD inline void atomic_add(std::uint64_t* at, std::uint64_t v) {
#if defined(__CUDA_ARCH__)
  atomicAdd(reinterpret_cast<unsigned long long*>(at), static_cast<unsigned long long>(v));
#else
  *at += v;
#endif
}
REFIT_HD inline void atomic_max(std::uint32_t* at, std::uint32_t v) {
#if defined(__CUDA_ARCH__)
  atomicMax(at, v);
#else
  if (v > *at) *at = v;
#endif
}
REFIT_HD inline void atomic_min(std::uint64_t* at, std::uint64_t v) {
#if defined(__CUDA_ARCH__)
  atomicMin(reinterpret_cast<unsigned long long*>(at), static_cast<unsigned long long>(v));
#else
  if (v < *at) *at = v;
#endif
}

// A kernel as the CPU runs it.
struct Emulated {
  const char* name;
  int threads;
  std::size_t param_bytes;
  void (*run)(std::int64_t blocks, const void* params);
};

template <typename Kernel>
void emulate(std::int64_t blocks, const typename Kernel::Params& params) {
  const auto shared = std::make_unique<typename Kernel::Shared>();
  for (std::int64_t b = 0; b < blocks; ++b) {
    std::memset(static_cast<void*>(shared.get()), 0xa5, sizeof *shared);  // a GPU clears nothing either
    Kernel::run(Block<Kernel::kThreads>{b}, params, *shared);
  }
}
template <typename Kernel>
constexpr Emulated emulated() {
  return {Kernel::kName, Kernel::kThreads, sizeof(typename Kernel::Params), [](std::int64_t blocks, const void* params) {
            emulate<Kernel>(blocks, *static_cast<const typename Kernel::Params*>(params));
          }};
}

}  // namespace refit::grid
