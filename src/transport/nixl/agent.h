// Agent: one NIXL agent with one backend, and reads through it. The raw calls end here.
#pragma once
#include <memory>
#include <span>
#include <string>

#include "transport/nixl/api.h"
#include "transport/transport.h"

namespace refit::transport::nixl {

// A run of bytes that is read from a peer's memory into ours.
struct Part {
  std::byte* to = nullptr;
  std::uint64_t from = 0;  // an address in the peer
  std::int64_t bytes = 0;
};

enum class Moving : std::uint8_t { kYes, kDone, kFailed };

// *thread-compatible*: the library does not serialise calls to one agent.
class Agent {
 public:
  // kUnsupported when the library lacks the backend, kExhausted when it cannot start it.
  static Result<std::unique_ptr<Agent>> make(const Api& api, const std::string& name, const NixlOptions& options);
  // Waits for the library's threads; afterwards nothing of a read that was under way is written any more.
  ~Agent();
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;

  Status add(std::span<const std::byte> region);  // registers
  void drop(std::span<const std::byte> region);
  // What a peer loads to read the regions that are registered now.
  Result<Bytes> metadata() const;
  // Returns the peer's name in the library. The bytes are the library's to parse: only from members of the job.
  Result<std::string> load(std::span<const std::byte> metadata);
  void forget(const std::string& peer);

  // A read under way. Dropping it gives the library's handle back, which over a network does not stop bytes that are
  // still coming: only the agent's end does.
  class Read {
   public:
    Read(const Agent& agent, Handle request) : agent_(agent), request_(request) {}
    ~Read();
    Read(const Read&) = delete;
    Read& operator=(const Read&) = delete;
    Moving look();

   private:
    friend class Agent;
    const Agent& agent_;
    Handle request_;
    int status_ = kInProgress;
  };
  // Over shared memory the whole copy may happen in this call.
  Result<std::unique_ptr<Read>> read(const std::string& peer, std::span<const Part> parts);

 private:
  explicit Agent(const Api& api) : api_(api) {}
  const Api& api_;
  Handle agent_ = nullptr, backend_ = nullptr, args_ = nullptr;
};

}  // namespace refit::transport::nixl
