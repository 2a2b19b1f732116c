// Outlet: how a source's sealed bytes leave its process. One form per capability of the mover: lent memory that targets
// read (pull), or buckets that the source sends from where they lie (push).
#pragma once
#include <atomic>
#include <memory>

#include "agent/planning.h"
#include "kernel/kernel.h"
#include "memory/memory.h"

namespace refit::agent {

struct TaskProgress;

// *thread-compatible*: used by the worker.
class Outlet {
 public:
  struct Context {
    transport::Mover* mover = nullptr;
    const Planned* planned = nullptr;         // of the epoch in force
    std::span<const memory::RegionRef> lent;  // weights in buffer order, then the manifest page
    kernel::Exec exec;
    memory::Budget* budget = nullptr;
  };
  // kUnsupported for a mover that can neither lend nor send.
  static Result<std::unique_ptr<Outlet>> make(const Context& context);
  // True when `mover` reads the source's memory from other processes: regions must be shareable then.
  static bool needs_shared(const transport::Mover& mover);
  virtual ~Outlet() = default;

  // Opens the round's lane. Returns the descriptor that targets are told; empty where they need none.
  virtual Result<wire::Bytes> open(const transport::LaneId& id) = 0;
  // Sends, until all recipients have their copies or `stop`. The page holds `page_bytes` of manifest. An error names
  // the peer and the bucket.
  virtual Status send(std::int64_t page_bytes, TaskProgress& progress, const std::atomic<bool>& stop) = 0;
  // Afterwards no byte of the lent memory is read any more.
  virtual void withdraw() = 0;
  virtual Status close(Deadline deadline) = 0;
};

}  // namespace refit::agent
