// Outlet: how a source's sealed bytes leave its process. One form per capability of the mover: lent memory that targets
// read (pull), or buckets that the source sends from where they lie (push).
#pragma once
#include <atomic>
#include <memory>

#include "agent/agent.h"
#include "agent/baseline.h"
#include "agent/planning.h"
#include "kernel/kernel.h"
#include "memory/memory.h"

namespace refit::agent {

struct TaskProgress;

// What one round sends.
struct Shipment {
  std::int64_t page_bytes = 0;  // of manifest on the page
  wire::Begin begin;            // tells who gets deltas
  // Of every bucket, where buckets have headers: job, txn, sender, incarnation.
  wire::BucketHeader header;
};

// *thread-compatible*: used by the worker.
class Outlet {
 public:
  struct Context {
    transport::Mover* mover = nullptr;
    const Planned* planned = nullptr;         // of the epoch in force
    std::span<const memory::RegionRef> lent;  // weights in buffer order, then the manifest page
    kernel::Exec exec;
    memory::Budget* budget = nullptr;
    Baseline* baseline = nullptr;  // of the plan, where buckets go as deltas
  };
  // kUnsupported for a mover that can neither lend nor send.
  static Result<std::unique_ptr<Outlet>> make(const Context& context);
  // True when `mover` reads the source's memory from other processes: regions must be shareable then.
  static bool needs_shared(const transport::Mover& mover);
  virtual ~Outlet() = default;

  // Regions of the context's `lent` lie elsewhere from now on; no lane is open.
  virtual Status rebind() { return {}; }
  // Opens the round's lane. Returns the descriptor that targets are told; empty where they need none.
  virtual Result<wire::Bytes> open(const transport::LaneId& id) = 0;
  // Sends, until all recipients have their copies or `stop`. An error names the peer and the bucket.
  virtual Status send(const Shipment& shipment, TaskProgress& progress, const std::atomic<bool>& stop) = 0;
  // Of the last send(); zeros where nothing was encoded.
  virtual EncodeReport encoded() const { return {}; }
  // What is read to bring a baseline to a committed round; null for a mover that does not send.
  virtual const Packer* packer() const { return nullptr; }
  // Afterwards no byte of the lent memory is read any more.
  virtual void withdraw() = 0;
  virtual Status close(Deadline deadline) = 0;
};

}  // namespace refit::agent
