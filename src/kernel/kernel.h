// Front header of kernel: moving and digesting strided bytes. Each body exists as a scalar reference and as SIMD forms
// chosen at run time; all give the same bytes and digests.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/core.h"
#include "memory/memory.h"

namespace refit::kernel {

// Told on the calling thread after every window of a batch, so that a long scan is seen to move. Windows end where the
// bytes say, inside a job too; they cost no pass and no allocation.
struct Progress {
  std::int64_t every_bytes = 64 << 20;  // of the widest dtype of a job; ≥ 1
  std::function<void(std::int64_t bytes)> done;
};

// Where a kernel runs on the CPU. On a GPU the same jobs run as a DeviceBatch on the caller's stream.
struct Exec {
  ThreadPool* pool = nullptr;          // null: the calling thread
  const Progress* progress = nullptr;  // null: a batch is one window
};

// Placement digest: four keyed inner products mod 2^32 and a count of elements. Linear in the values, additive over
// boxes in any cut and any storage order. Formula in docs/design/digest.md. Guards against faults, not attackers.
struct Digest {
  std::array<std::uint32_t, 4> word{};
  std::uint64_t count = 0;
  Digest& operator+=(const Digest& o);
  Digest& operator-=(const Digest& o);
  friend Digest operator+(Digest a, const Digest& b) { return a += b; }
  friend Digest operator-(Digest a, const Digest& b) { return a -= b; }
  friend bool operator==(const Digest&, const Digest&) = default;
  Hash128 fold() const;  // the four words as 128 bits
  std::string hex() const;
};

// Keys of one tensor: made once per (seed, tensor) and reused. The seed is drawn per lineage. *pure after make*.
class DigestKeys {
 public:
  // `shape` is logical; axes of length 1 are left out of the product. Key blocks are computed on demand or up front.
  static DigestKeys make(std::uint64_t seed, std::string_view tensor, const Dims& shape);
  ~DigestKeys();
  DigestKeys(DigestKeys&&) noexcept;
  DigestKeys& operator=(DigestKeys&&) noexcept;
  struct Impl;
  const Impl& impl() const { return *impl_; }

 private:
  explicit DigestKeys(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// One strided piece. Loop k runs over extents[k] with byte strides on either side; on axis axis[k] of the logical
// tensor one step is steps[k] indices; origin[a] is the logical index of axis a at loop index 0.
struct Job {
  const void* src = nullptr;
  void* dst = nullptr;  // null: digest only
  std::span<const std::int64_t> extents, src_strides, dst_strides;
  std::span<const int> axis;             // needed for a digest only
  std::span<const std::int64_t> steps;   // likewise
  std::span<const std::int64_t> origin;  // likewise, per logical axis
  DType src_dtype = DType::kBF16, wire_dtype = DType::kBF16, dst_dtype = DType::kBF16;
  const DigestKeys* keys = nullptr;  // null: no digest
};

// A cast that changed a value: first place found per job.
struct Inexact {
  std::size_t job = 0;
  std::int64_t linear = 0;  // row-major position inside the piece
};

// The listed refusal: tensors of which a cast would change values, without permission. *thread-compatible*.
class LossyCasts {
 public:
  void add(const std::string& tensor) { tensors_.insert(tensor); }
  bool empty() const { return tensors_.empty(); }
  void clear() { tensors_.clear(); }
  // kMismatch with the count, the names (the first 20) and the permission that would allow them.
  Error error(const std::string& what) const;

 private:
  std::set<std::string> tensors_;
};

// Copies (src → wire → dst dtype) and, where keys are given, digests the wire values: one pass over the bytes.
// digests[i] belongs to jobs[i] (ignored when empty). Jobs may overlap as sources, never as destinations.
// Returns casts that were not exact (values were still written: the caller decides). Streaming stores where they win.
std::vector<Inexact> run(const Exec& exec, std::span<const Job> jobs, std::span<Digest> digests);

// The GPU's kernels of this room, and the same bodies for the host double.
const memory::KernelImage& device_image();

// Jobs over device memory, lowered once and run as often as wanted: tables, results and their pinned copy are allocated
// in make(), launch() allocates nothing, waits for nothing and queues at most four things on the caller's stream. Same
// bytes, digests and findings as run_reference, and the same rules for overlaps. *thread-compatible*.
class DeviceBatch {
 public:
  // Queues the upload of the tables on `stream`; launches on other streams must come behind it. Addresses are the
  // device's; keys must outlive nothing. `digests` false: keys are ignored.
  static Result<DeviceBatch> make(memory::Stream& stream, std::span<const Job> jobs, bool digests);
  Status launch(const memory::Module& module, memory::Stream& stream);
  // Of the last launch, once the caller knows that it ran. Places as run_reference reports them.
  std::vector<Inexact> results(std::span<Digest> digests) const;
  std::int64_t device_bytes() const;

 private:
  struct Impl;
  struct Gone {
    void operator()(Impl* p) const;
  };
  std::unique_ptr<Impl, Gone> impl_;
};

// memcpy by all threads of the pool, streaming where it wins.
void copy_flat(const Exec& exec, void* dst, const void* src, std::int64_t bytes);
// dst[j][i] = src[i][j] for `item`-byte elements; row strides in bytes.
void transpose(const Exec& exec, void* dst, std::int64_t dst_stride, const void* src, std::int64_t src_stride,
               std::int64_t rows, std::int64_t columns, std::int64_t item);

// The scalar reference of run(): short, obviously right, the specification.
std::vector<Inexact> run_reference(std::span<const Job> jobs, std::span<Digest> digests);

// Instruction sets this machine can choose, and the one in force. REFIT_FORCE_ISA names one ("scalar", "avx2",
// "avx3"…).
std::vector<std::string> available_isas();
std::string chosen_isa();
Status force_isa(std::string_view name);  // tests; kInvalid for a name this machine lacks
// kInvalid when REFIT_FORCE_ISA names what this machine lacks: check it at start, run() stops the process otherwise.
Status isa_status();

}  // namespace refit::kernel
