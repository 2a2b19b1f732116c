// The specification of run(): element by element, in row-major order of the loops.
#include <cstring>

#include "kernel/cast.h"
#include "kernel/keys.h"

namespace refit::kernel {
namespace {

// Product over the tensor's axes of the key of this element's index, per word.
Words element_key(const Job& job, std::span<const std::int64_t> at) {
  const DigestKeys::Impl& keys = job.keys->impl();
  Words out{1, 1, 1, 1};
  for (std::size_t a = 0; a < keys.key_axis.size(); ++a) {
    if (keys.key_axis[a] < 0) continue;
    std::int64_t index = job.origin[a];
    for (std::size_t k = 0; k < at.size(); ++k)
      if (job.axis[k] == static_cast<int>(a)) index += at[k] * job.steps[k];
    const Words key = keys.keys(keys.key_axis[a], index);
    for (std::size_t w = 0; w < kWords; ++w) out[w] *= key[w];
  }
  return out;
}

// One element: source → wire → destination. Returns whether both casts were exact.
bool move_element(const Job& job, std::span<const std::int64_t> at, Digest* digest) {
  const char* src = static_cast<const char*>(job.src);
  std::int64_t dst_offset = 0;
  for (std::size_t k = 0; k < at.size(); ++k) {
    src += at[k] * job.src_strides[k];
    if (job.dst != nullptr) dst_offset += at[k] * job.dst_strides[k];
  }
  unsigned char wire[8] = {}, out[8] = {};
  const std::int64_t wire_bytes = item_size(job.wire_dtype), out_bytes = item_size(job.dst_dtype);
  bool exact = true;
  if (job.src_dtype == job.wire_dtype)
    std::memcpy(wire, src, static_cast<std::size_t>(wire_bytes));
  else
    exact = cast_scalar(job.src_dtype, job.wire_dtype, wire, src, 1);
  if (digest != nullptr && job.keys != nullptr) {
    const Words key = element_key(job, at);
    for (std::size_t w = 0; w < kWords; ++w)
      digest->word[w] += key[w] * item_value(job.keys->impl().halves(), static_cast<int>(w), wire, wire_bytes);
    ++digest->count;
  }
  if (job.dst == nullptr) return exact;
  if (job.wire_dtype == job.dst_dtype)
    std::memcpy(out, wire, static_cast<std::size_t>(wire_bytes));
  else
    exact &= cast_scalar(job.wire_dtype, job.dst_dtype, out, wire, 1);
  std::memcpy(static_cast<char*>(job.dst) + dst_offset, out, static_cast<std::size_t>(out_bytes));
  return exact;
}

}  // namespace

std::vector<Inexact> run_reference(std::span<const Job> jobs, std::span<Digest> digests) {
  std::vector<Inexact> found;
  for (std::size_t j = 0; j < jobs.size(); ++j) {
    const Job& job = jobs[j];
    Digest* digest = digests.empty() ? nullptr : &(digests[j] = Digest{});
    std::int64_t total = 1;
    for (const std::int64_t e : job.extents) total *= e;
    std::vector<std::int64_t> at(job.extents.size(), 0);
    bool reported = false;
    for (std::int64_t linear = 0; linear < total; ++linear) {
      if (!move_element(job, at, digest) && !reported) {
        found.push_back({j, linear});
        reported = true;
      }
      for (std::size_t k = at.size(); k-- > 0;) {
        if (++at[k] < job.extents[k]) break;
        at[k] = 0;
      }
    }
  }
  return found;
}

}  // namespace refit::kernel
