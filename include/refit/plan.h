// Plan: what goes where between two layouts, with its proof that every byte of every target rank has a source.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "refit/layout.h"

namespace refit::api {

struct PlanOptions {
  std::int64_t bucket_bytes = 32 << 20;    // `refit.bucket_bytes`
  std::int64_t staging_bytes = 256 << 20;  // `refit.staging_bytes`: the smallest of any target
  bool list_unwanted = false;              // names that no target wants are listed, not refused
  std::vector<std::string> allow_cast;     // name patterns (* = any text) whose casts may lose values
};

struct Link {
  std::uint32_t from = 0, to = 0;  // ranks, or ordinals of `hosts` where by_host
  std::int64_t bytes = 0;
};

struct PlanSummary {
  std::string id;  // 32 hex digits
  std::int64_t bytes_needed = 0, bytes_moved = 0, bytes_local = 0, bound_bytes = 0;
  std::int64_t segments = 0, buckets = 0;
  double coverage = 0;  // 1.0, or there is no plan
  std::vector<Link> links;
  bool by_host = false;
  std::vector<std::string> hosts, unwanted;
};

// A value; copies share what is inside. *thread-safe*.
class Plan {
 public:
  // Proves the whole. Errors (kMismatch, kInvalid, kUnsupported) list holes, overlaps, unknown names, disagreements of
  // shape and dtype, with both owners.
  static Plan make(const Layout& source, const Layout& target, const PlanOptions& options = {});
  const PlanSummary& summary() const;
  // Every piece of one tensor, from whom to whom and where. kInvalid for an unknown name.
  std::string explain(const std::string& tensor) const;

 private:
  struct Impl;
  explicit Plan(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<const Impl> impl_;  // shared by copies
};

}  // namespace refit::api
