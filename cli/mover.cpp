#include "cli/mover.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>
#include <thread>

#include "kernel/kernel.h"

namespace refit::cli {
namespace {
namespace fs = std::filesystem;

constexpr std::size_t kJobsAtOnce = 4096;

// Logical index of the element at a row-major position of a piece.
std::string index_text(const plan::Geometry& g, const Dims& origin, std::int64_t linear) {
  Dims at = origin;
  for (std::size_t k = g.extents.size(); k-- > 0;) {
    at[static_cast<std::size_t>(g.axis[k])] += linear % g.extents[k] * g.steps[k];
    linear /= g.extents[k];
  }
  std::string out = "[";
  for (std::size_t a = 0; a < at.size(); ++a) out += (a ? ", " : "") + std::to_string(at[a]);
  return out + "]";
}

kernel::Job job_of(const plan::Geometry& g, const void* src, void* dst) {
  return {.src = src,
          .dst = dst,
          .extents = g.extents,
          .src_strides = g.src_strides,
          .dst_strides = g.dst_strides,
          .axis = {},
          .steps = {},
          .origin = {},
          .src_dtype = g.src_dtype,
          .wire_dtype = g.wire_dtype,
          .dst_dtype = g.dst_dtype,
          .keys = nullptr};
}

// A box in one source's memory, for comparing owners.
struct Copy {
  plan::Geometry geometry;
  const std::byte* at = nullptr;
  Dims origin;
  Rank rank;
};

// Compares the wire values of two copies in parts of at most `budget` bytes each.
class Comparer {
 public:
  Comparer(const kernel::Exec& exec, std::int64_t budget) : exec_(exec), budget_(budget) {}

  // False where they differ.
  bool equal(const Copy& a, const Copy& b, const Dims& extents) { return walk(a, b, extents, 0, a.at, b.at); }

 private:
  bool walk(const Copy& a, const Copy& b, const Dims& extents, std::size_t k, const std::byte* x, const std::byte* y) {
    const std::int64_t item = item_size(a.geometry.wire_dtype);
    std::int64_t slab = item;
    for (std::size_t j = k + 1; j < extents.size(); ++j) slab *= extents[j];
    if (k == extents.size()) return part(a, b, {}, k, x, y);
    const std::int64_t step = std::max<std::int64_t>(1, budget_ / slab);
    for (std::int64_t lo = 0; lo < extents[k]; lo += step) {
      const std::int64_t n = std::min(step, extents[k] - lo);
      const std::byte* xs = x + lo * a.geometry.src_strides[k];
      const std::byte* ys = y + lo * b.geometry.src_strides[k];
      if (slab > budget_) {
        if (!walk(a, b, extents, k + 1, xs, ys)) return false;
        continue;
      }
      Dims some(extents.begin() + static_cast<std::ptrdiff_t>(k), extents.end());
      some[0] = n;
      if (!part(a, b, some, k, xs, ys)) return false;
    }
    return true;
  }

  bool part(const Copy& a, const Copy& b, const Dims& extents, std::size_t k, const std::byte* x, const std::byte* y) {
    return pack(a, extents, k, x, left_) == pack(b, extents, k, y, right_) && left_ == right_;
  }

  std::size_t pack(const Copy& c, const Dims& extents, std::size_t k, const std::byte* from,
                   std::vector<std::byte>& to) {
    Dims packed(extents.size());
    std::int64_t bytes = item_size(c.geometry.wire_dtype);
    for (std::size_t j = extents.size(); j-- > 0;) {
      packed[j] = bytes;
      bytes *= extents[j];
    }
    to.resize(static_cast<std::size_t>(bytes));
    const auto strides = std::span(c.geometry.src_strides).subspan(k);
    const kernel::Job job{.src = from,
                          .dst = to.data(),
                          .extents = extents,
                          .src_strides = strides,
                          .dst_strides = packed,
                          .axis = {},
                          .steps = {},
                          .origin = {},
                          .src_dtype = c.geometry.src_dtype,
                          .wire_dtype = c.geometry.wire_dtype,
                          .dst_dtype = c.geometry.wire_dtype,
                          .keys = nullptr};
    (void)kernel::run(exec_, std::span(&job, 1), {});
    return to.size();
  }

  const kernel::Exec& exec_;
  std::int64_t budget_;
  std::vector<std::byte> left_, right_;
};

class Mover {
 public:
  Mover(const model::Layout& source, const SourceMemory& memory, const model::Layout& target, TargetFiles& files,
        const plan::Options& options)
      : source_(source),
        memory_(memory),
        target_(target),
        files_(files),
        options_(options),
        pool_(static_cast<int>(std::max(1u, std::thread::hardware_concurrency()))),
        exec_{&pool_} {}

  Result<ReshardReport> run(const std::string& directory) {
    REFIT_ASSIGN(const plan::World world, plan::make_world(source_, target_, options_));
    report_.id = world.id;
    report_.bytes_needed = world.bytes_needed;
    report_.unwanted = world.unwanted;
    REFIT_ASSIGN(const plan::Plans plans, plan::Plans::make(source_, target_, options_));
    REFIT_TRY(compare_owners(plans));
    for (std::int64_t r = 0; r < target_.world(); ++r) {
      REFIT_ASSIGN(const plan::RankPlan plan, plans.of(plan::Side::kTarget, Rank(static_cast<std::uint32_t>(r))));
      REFIT_TRY(write_rank(plan, directory));
    }
    report_.inexact.assign(inexact_.begin(), inexact_.end());
    return std::move(report_);
  }

 private:
  // Two owners of one box must hold equal values.
  Status compare_owners(const plan::Plans& plans) {
    std::map<std::tuple<std::uint32_t, Dims, std::uint64_t>, Copy> first;
    Comparer comparer(exec_, std::max<std::int64_t>(options_.staging_bytes / 2, 1));
    for (std::int64_t r = 0; r < source_.world(); ++r) {
      REFIT_ASSIGN(const plan::RankPlan plan, plans.of(plan::Side::kSource, Rank(static_cast<std::uint32_t>(r))));
      for (std::size_t i = 0; i < plan.seal.size(); ++i) {
        const plan::SealBox& s = plan.seal[i];
        const Copy mine = copy_of(plan, s);
        if (s.twin != plan::kNoTwin) {
          REFIT_TRY(
              compare(comparer, copy_of(plan, plan.seal[s.twin]), mine, plan.catalogue->tensors[s.tensor.value].name));
        } else if (s.group != 0) {
          const auto [at, fresh] = first.try_emplace({s.tensor.value, mine.origin, s.group}, mine);
          if (!fresh) REFIT_TRY(compare(comparer, at->second, mine, plan.catalogue->tensors[s.tensor.value].name));
        }
      }
    }
    return {};
  }

  Copy copy_of(const plan::RankPlan& plan, const plan::SealBox& s) const {
    return {plan.geometries[s.geometry], memory_.at(plan.rank, s.buffer, s.offset), plan.origins[s.origin], plan.rank};
  }

  Status compare(Comparer& comparer, const Copy& a, const Copy& b, const std::string& tensor) {
    // Owners may nest their loops differently: bring both to the finer of the two.
    const auto [x, y] = common_loops(a, b);
    if (comparer.equal(x, y, x.geometry.extents)) return {};
    std::string origin;
    for (std::int64_t i : a.origin) origin += (origin.empty() ? "" : ", ") + std::to_string(i);
    return Error(Code::kMismatch, "source ranks " + std::to_string(a.rank.value) + " and " +
                                      std::to_string(b.rank.value) + " hold different values of the box at [" + origin +
                                      "]")
        .at_tensor(tensor);
  }

  // The same box as loops of equal extents on both copies.
  static std::pair<Copy, Copy> common_loops(const Copy& a, const Copy& b) {
    Copy x = a, y = b;
    const auto split = [](plan::Geometry& g, std::size_t k, std::int64_t inner) {
      const auto at = static_cast<std::ptrdiff_t>(k);
      g.extents.insert(g.extents.begin() + at + 1, inner);
      g.extents[k] /= inner;
      g.src_strides.insert(g.src_strides.begin() + at, g.src_strides[k] * inner);
      g.axis.insert(g.axis.begin() + at, g.axis[k]);
      g.steps.insert(g.steps.begin() + at, g.steps[k] * inner);
    };
    // From the innermost loop outwards; where extents differ the longer loop is cut at the shorter one.
    std::size_t i = x.geometry.extents.size(), j = y.geometry.extents.size();
    while (i > 0 && j > 0) {
      const std::int64_t m = x.geometry.extents[i - 1], n = y.geometry.extents[j - 1];
      if (m > n)
        split(x.geometry, i - 1, n);
      else if (n > m)
        split(y.geometry, j - 1, m);
      else
        --i, --j;
      if (m > n) ++i;
      if (n > m) ++j;
    }
    return {std::move(x), std::move(y)};
  }

  Status write_rank(const plan::RankPlan& plan, const std::string& directory) {
    REFIT_ASSIGN(const model::RankLayout held, target_.expand(plan.rank));
    REFIT_ASSIGN(const std::unique_ptr<RankFiles> out, files_.open(held, directory));
    report_.bytes_written += out->bytes();
    std::vector<kernel::Job> jobs;
    std::vector<std::size_t> piece_of;
    for (const plan::Bucket& bucket : plan.buckets)
      for (std::size_t i = bucket.first_piece; i < bucket.first_piece + bucket.pieces; ++i) {
        const plan::Piece& p = plan.pieces[i];
        for (std::uint32_t l = p.first_landing; l < p.first_landing + p.landings; ++l) {
          const plan::Landing& to = plan.landings[l];
          jobs.push_back(job_of(plan.geometries[to.geometry], memory_.at(bucket.sender, p.src_buffer, p.src_offset),
                                out->at(held.holdings[to.holding].buffer, to.dst_offset)));
          piece_of.push_back(i);
        }
        if (jobs.size() >= kJobsAtOnce) REFIT_TRY(run_jobs(plan, jobs, piece_of));
      }
    REFIT_TRY(run_jobs(plan, jobs, piece_of));
    REFIT_TRY(out->commit());
    report_.pieces += static_cast<std::int64_t>(plan.pieces.size());
    ++report_.ranks;
    return {};
  }

  Status run_jobs(const plan::RankPlan& plan, std::vector<kernel::Job>& jobs, std::vector<std::size_t>& piece_of) {
    for (const kernel::Inexact& bad : kernel::run(exec_, jobs, {})) {
      const plan::Piece& p = plan.pieces[piece_of[bad.job]];
      const std::string& name = plan.catalogue->tensors[p.tensor.value].name;
      if (plan::cast_allowed(options_, name)) {
        inexact_.insert(name);
        continue;
      }
      const plan::Geometry& g = plan.geometries[p.geometry];
      const kernel::Job& job = jobs[bad.job];
      const std::string way = std::string(to_string(job.src_dtype)) + " to " + std::string(to_string(job.wire_dtype)) +
                              " to " + std::string(to_string(job.dst_dtype));
      return Error(Code::kInvalid, "the cast from " + way + " changes the value at index " +
                                       index_text(g, plan.origins[p.origin], bad.linear) + " for target rank " +
                                       std::to_string(plan.rank.value) + ": permit it with --allow-cast '" + name + "'")
          .at_tensor(name);
    }
    jobs.clear();
    piece_of.clear();
    return {};
  }

  const model::Layout& source_;
  const SourceMemory& memory_;
  const model::Layout& target_;
  TargetFiles& files_;
  const plan::Options& options_;
  ThreadPool pool_;
  kernel::Exec exec_;
  ReshardReport report_;
  std::set<std::string> inexact_;
};

// A fresh directory beside `out`, removed unless it is kept.
class TemporaryDirectory {
 public:
  explicit TemporaryDirectory(std::string path) : path_(std::move(path)) {}
  ~TemporaryDirectory() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  const std::string& path() const { return path_; }
  void keep() { path_.clear(); }

 private:
  std::string path_;
};

Error cannot(const std::string& path, const char* what, const std::error_code& error) {
  return {Code::kInvalid, path + ": cannot " + what + ": " + error.message()};
}

}  // namespace

Status check_out(const std::string& out) {
  std::error_code error;
  if (fs::exists(out, error) && !(fs::is_directory(out, error) && fs::is_empty(out, error)))
    return Error(Code::kInvalid, "--out " + out + " exists and is not an empty directory");
  return {};
}

Result<ReshardReport> move_files(const model::Layout& source, const SourceMemory& memory, const model::Layout& target,
                                 TargetFiles& files, const std::string& out, const plan::Options& options) {
  REFIT_TRY(check_out(out));
  std::error_code error;
  fs::path final_path = fs::path(out).lexically_normal();
  if (!final_path.has_filename()) final_path = final_path.parent_path();
  std::string pattern = final_path.string() + ".partial-XXXXXX";
  if (!::mkdtemp(pattern.data()))
    return cannot(pattern, "create a directory beside --out", std::error_code(errno, std::generic_category()));
  TemporaryDirectory temporary(pattern);
  Mover work(source, memory, target, files, options);
  REFIT_ASSIGN(ReshardReport report, work.run(temporary.path()));
  REFIT_TRY(files.finish(temporary.path()));
  fs::permissions(temporary.path(), fs::perms(0755), error);
  if (error) return cannot(temporary.path(), "set permissions", error);
  fs::rename(temporary.path(), final_path, error);
  if (error) return cannot(out, "put the result in place", error);
  temporary.keep();
  return report;
}

}  // namespace refit::cli
