#include <bit>
#include <bitset>
#include <cstring>
#include <map>
#include <mutex>

#include "kernel/keys.h"

namespace refit::kernel {
namespace {

constexpr std::uint64_t kTableDomain = 0x7461626c65u, kHalfDomain = 0x68616c66u, kBlockDomain = 0x626c6f636bu;

std::int16_t odd16(std::uint64_t r) { return static_cast<std::int16_t>(static_cast<std::uint16_t>(r >> 48) | 1u); }

void fill_axis(AxisTables& out, std::uint64_t seed, int axis) {
  std::memset(&out, 0, sizeof out);
  for (int k = 0; k < kWords; ++k) {
    std::uint64_t state = mix(mix(seed ^ kTableDomain) + static_cast<std::uint64_t>(axis * kWords + k));
    std::bitset<65536> used;
    for (int i = 0; i < kBlock;) {
      state += kGolden;
      const std::int16_t v = odd16(mix(state));
      const auto slot = static_cast<std::uint16_t>(v);
      if (used[slot]) continue;
      used[slot] = true;
      out.t16[k][i] = v;
      out.t32[k][i] = v;
      out.t64[k][2 * i] = out.t64[k][2 * i + 1] = v;
      ++i;
    }
  }
}

// Determinant mod 2^32 of the leading n x n part, by expansion along the first row.
std::uint32_t determinant(const HalfKeys& m, int n, int row, unsigned columns) {
  if (row == n) return 1;
  std::uint32_t sum = 0, sign = 1;
  for (int c = 0; c < n; ++c) {
    if ((columns >> c & 1u) == 0) continue;
    sum += sign * static_cast<std::uint32_t>(m.h[row][c]) * determinant(m, n, row + 1, columns & ~(1u << c));
    sign = 0u - sign;
  }
  return sum;
}

// A change of one item moves its parts by less than 2^16 each. With a determinant that 2^17 does not divide, the four
// (or two) words cannot all stay the same then: that is what makes one wrong item certain to be seen.
bool separates(const HalfKeys& m) {
  for (int n : {2, 4})
    if (std::countr_zero(determinant(m, n, 0, (1u << n) - 1)) > 16) return false;
  return true;
}

}  // namespace

// *thread-safe*: axes are filled on first use.
class SeedTables {
 public:
  explicit SeedTables(std::uint64_t seed) : seed_(seed) {
    std::uint64_t state = mix(seed ^ kHalfDomain);
    do {
      for (auto& word : half_.h)
        for (std::int16_t& h : word) h = odd16(mix(state += kGolden));
    } while (!separates(half_));
  }
  const AxisTables& axis(int a) {
    const auto slot = static_cast<std::size_t>(a % kTableAxes);
    std::call_once(once_[slot], [&] {
      axes_[slot] = std::make_unique<AxisTables>();
      fill_axis(*axes_[slot], seed_, static_cast<int>(slot));
    });
    return *axes_[slot];
  }
  const HalfKeys& halves() const { return half_; }

  static std::shared_ptr<SeedTables> of(std::uint64_t seed) {
    static std::mutex mutex;
    static std::map<std::uint64_t, std::weak_ptr<SeedTables>> live;
    const std::lock_guard lock(mutex);
    if (auto it = live.find(seed); it != live.end())
      if (auto found = it->second.lock()) return found;
    std::erase_if(live, [](const auto& e) { return e.second.expired(); });
    auto made = std::make_shared<SeedTables>(seed);
    live[seed] = made;
    return made;
  }

 private:
  std::uint64_t seed_;
  HalfKeys half_{};
  std::array<std::once_flag, kTableAxes> once_;
  std::array<std::unique_ptr<AxisTables>, kTableAxes> axes_;
};

const HalfKeys& half_keys(const SeedTables& tables) { return tables.halves(); }

Words DigestKeys::Impl::block_keys(int a, std::int64_t block) const {
  Words out;
  const auto& seeds = block_seed[static_cast<std::size_t>(a)];
  for (std::size_t k = 0; k < kWords; ++k)
    out[k] = block_key(seeds[k], block);
  return out;
}

Words DigestKeys::Impl::keys(int a, std::int64_t index) const {
  Words out = block_keys(a, index >> kBlockShift);
  for (std::size_t k = 0; k < kWords; ++k) out[k] *= static_cast<std::uint32_t>(table(a).t32[k][index & (kBlock - 1)]);
  return out;
}

DigestKeys::DigestKeys(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
DigestKeys::~DigestKeys() = default;
DigestKeys::DigestKeys(DigestKeys&&) noexcept = default;
DigestKeys& DigestKeys::operator=(DigestKeys&&) noexcept = default;

DigestKeys DigestKeys::make(std::uint64_t seed, std::string_view tensor, const Dims& shape) {
  auto impl = std::make_unique<Impl>();
  impl->tables = SeedTables::of(seed);
  const Hash128 name = hash128(tensor);
  const std::uint64_t tensor_seed = mix(mix(mix(seed ^ kBlockDomain) ^ name.hi) ^ name.lo);
  for (const std::int64_t length : shape) {
    if (length == 1) {
      impl->key_axis.push_back(-1);
      continue;
    }
    const int a = static_cast<int>(impl->axis.size());
    impl->key_axis.push_back(a);
    impl->axis.push_back(&impl->tables->axis(a));
    auto& seeds = impl->block_seed.emplace_back();
    for (std::size_t k = 0; k < kWords; ++k) seeds[k] = mix(tensor_seed + static_cast<std::uint64_t>(a) * kWords + k);
  }
  return DigestKeys(std::move(impl));
}

Digest& Digest::operator+=(const Digest& o) {
  for (std::size_t k = 0; k < word.size(); ++k) word[k] += o.word[k];
  count += o.count;
  return *this;
}
Digest& Digest::operator-=(const Digest& o) {
  for (std::size_t k = 0; k < word.size(); ++k) word[k] -= o.word[k];
  count -= o.count;
  return *this;
}
Hash128 Digest::fold() const {
  return {static_cast<std::uint64_t>(word[0]) << 32 | word[1], static_cast<std::uint64_t>(word[2]) << 32 | word[3]};
}
std::string Digest::hex() const { return fold().hex(); }

}  // namespace refit::kernel
