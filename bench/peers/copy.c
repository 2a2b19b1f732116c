// What ctypes has no call for: a copy past the caches and a read of two streams, whole lines.
// Built by ceilings.py: cc -O3 -march=native -shared -fPIC.
#include <stddef.h>
#include <stdint.h>

typedef long long line __attribute__((vector_size(32), aligned(32)));
typedef uint64_t lane __attribute__((vector_size(64), aligned(1), may_alias));

// to and from are multiples of 64 bytes, so is n.
void copy_streaming(char *to, const char *from, size_t n) {
  for (size_t i = 0; i < n; i += 64) {
    __builtin_prefetch(from + i + 2048);
#ifdef __AVX__
    __builtin_ia32_movntdq256((line *)(to + i), *(const line *)(from + i));
    __builtin_ia32_movntdq256((line *)(to + i + 32), *(const line *)(from + i + 32));
#else
    __builtin_memcpy(to + i, from + i, 64);
#endif
  }
  __builtin_ia32_sfence();
}

uint64_t scan_two(const char *a, const char *b, size_t n) {
  lane s[4] = {};
  for (size_t i = 0; i + 128 <= n; i += 128)
    for (int k = 0; k < 2; k++) {
      __builtin_prefetch(a + i + 64 * k + 2048);
      __builtin_prefetch(b + i + 64 * k + 2048);
      s[k] += *(const lane *)(a + i + 64 * k);
      s[2 + k] ^= *(const lane *)(b + i + 64 * k);
    }
  uint64_t sum = 0;
  for (int k = 0; k < 4; k++)
    for (int l = 0; l < 8; l++) sum += s[k][l];
  return sum;
}
