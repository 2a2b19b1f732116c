// Intake: how a round's manifests and buckets reach a target rank. One form per capability of the mover: reads that the
// target schedules (pull, mapped or packed), or packed buckets that the sources send (push).
#pragma once
#include <memory>

#include "agent/planning.h"
#include "install/install.h"

namespace refit::agent {

// A source that sends to this rank, as its Lend tells.
struct Supplier {
  const wire::LendEntry* lend = nullptr;
  std::uint32_t page_region = 0;  // where its manifest page lies among its regions
  std::int64_t page_bytes = 0;
};

// *thread-compatible*: used by the worker, one round long.
class Intake {
 public:
  struct Context {
    transport::Mover* mover = nullptr;
    transport::LaneId id;
    const Planned* planned = nullptr;
    const std::vector<install::BucketTable>* buckets = nullptr;
    std::map<std::uint32_t, Supplier> suppliers;  // by member
  };
  // Whether targets read or sources send: both ends must choose alike.
  static bool pulls(const transport::Mover& mover, const Planned& planned);
  // True when buckets arrive packed: landing tables are lowered for that.
  static bool packed(const transport::Mover& mover);
  // Opens the lane and asks for what it must ask for first. Errors name the peer.
  static Result<std::unique_ptr<Intake>> open(Context context);
  virtual ~Intake() = default;

  // The next manifest page (bucket kManifestBucket) or bucket. kTimeout leaves everything as it was.
  virtual Result<transport::Lease> next(Deadline deadline) = 0;
  // The bytes of a page, or of a bucket that travels with its header; an address per segment of one without.
  virtual Result<std::span<const std::byte>> page(const transport::Lease& lease) const = 0;
  virtual Result<std::span<const std::byte* const>> bases(const transport::Lease& lease,
                                                          const install::BucketTable& bucket) = 0;
  // One bucket has been staged.
  virtual Status staged() = 0;
  // After the last bucket: what was read from this member counts (rule Z8).
  virtual Status recheck(std::uint32_t member) = 0;
  virtual Status close(Deadline deadline) = 0;
};

}  // namespace refit::agent
