// Front header of transport: moving opaque buckets (push), reading lent memory (pull), small messages (control).
// A transport never learns what a tensor is. Nobody outside transport/<mover> includes its headers, only this one.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/core.h"
#include "memory/memory.h"
#include "transport/keys.h"

namespace refit::transport {

using Bytes = std::vector<std::byte>;

struct Capabilities {
  bool push = false, pull = false, control = false;
  bool mapped = false;       // a pull lease views the source's memory; else it holds packed bytes
  bool multicast = false;    // one post reaches several recipients
  bool total_order = false;  // follows the plan's sequence
  bool runs_device_kernels = false;
  bool host = true;  // moves host memory
  // How bulk bytes are authenticated on the way: "mac", "curve" or "none"; empty where they never leave the host.
  std::string_view security{};
};

// Identity of a lane: every frame and descriptor carries it; foreign ones are dropped and counted.
struct LaneId {
  Hash128 job;
  Txn txn;
  Incarnation incarnation;  // of the process that opened the lane
  friend bool operator==(const LaneId&, const LaneId&) = default;
};

struct Peer {
  std::uint32_t member = 0;  // member number agreed at the coordinator
  Incarnation incarnation;
  Bytes card;        // how to find it: from its Mover::card()
  std::string name;  // for errors
};

struct Counters {
  std::uint64_t frames_foreign = 0, frames_bad = 0;
  std::uint64_t bytes_in = 0, bytes_out = 0;
  std::uint64_t frames_duplicate = 0;  // dropped: the bucket had already arrived
  std::uint32_t threads = 0;           // that the mover runs now
  // Connections that were cut because they proved nothing in time, or were too many (zmq_sparse).
  std::uint64_t connections_refused = 0;
  std::uint64_t registrations = 0;  // regions that a vendor library knows now (nixl)
};

// The ticket of an expose: its completion says that the lend has ended (withdraw, close, abort).
inline constexpr std::uint64_t kExposeTicket = 0;

// Exactly one per posted (bucket, recipient), request or expose, also after abort, close and peer death. A post is
// complete when the recipient has its own copy; a request when its lease was handed out by next().
struct Completion {
  std::uint64_t ticket = 0;
  std::optional<Error> error;
  std::uint32_t member = 0;  // recipient of the post, sender of the request; own number for an expose
};

// One bucket's bytes, valid until the lease is dropped. Packed bytes, or (mapped) one base pointer per segment.
class Lease {
 public:
  struct Hold {
    virtual ~Hold() = default;
  };
  Lease() = default;
  Lease(BucketId bucket, std::uint32_t sender, std::span<const std::byte> packed, std::vector<const std::byte*> bases,
        std::unique_ptr<Hold> hold)
      : bucket_(bucket), sender_(sender), packed_(packed), bases_(std::move(bases)), hold_(std::move(hold)) {}
  BucketId bucket() const { return bucket_; }
  std::uint32_t sender() const { return sender_; }               // member number
  std::span<const std::byte> packed() const { return packed_; }  // empty when mapped
  // Mapped: address of segment k's first element (its offset already added), in the order of the request.
  std::span<const std::byte* const> bases() const { return bases_; }

 private:
  BucketId bucket_;
  std::uint32_t sender_ = 0;
  std::span<const std::byte> packed_;
  std::vector<const std::byte*> bases_;
  std::unique_ptr<Hold> hold_;
};

struct Expected {
  BucketId bucket;
  std::uint32_t sender = 0;  // member number
  std::int64_t max_bytes = 0;
};

// All lanes: *thread-compatible* except abort(), which any thread may call, any number of times. The first error is
// sticky: later calls return it. A call that is refused for its arguments (kInvalid, kUnsupported, kMismatch or
// kCorrupt of a descriptor) opens no ticket and leaves the lane as it was. A lane lives one round; close() returns
// within its deadline and completes what is open; afterwards poll() still hands out completions and every other call is
// refused.
class Lane {
 public:
  virtual ~Lane() = default;
  // Waits for the next lease. kTimeout leaves the lane usable; any other error is sticky.
  virtual Result<Lease> next(Deadline deadline) = 0;
  // Moves finished completions into `done`; returns how many. Never waits.
  virtual std::size_t poll(std::span<Completion> done) = 0;
  virtual void abort(Error error) = 0;
  virtual Status close(Deadline deadline) = 0;
};

class PushLane : public Lane {
 public:
  // Once a round, before the first next(): everything this side will receive.
  virtual Status expect(std::span<const Expected> buckets) = 0;
  // Lends `parts` until the completions of all recipients are polled. Returns the ticket; one completion per recipient.
  virtual Result<std::uint64_t> post(BucketId bucket, std::span<const std::span<const std::byte>> parts,
                                     std::span<const std::uint32_t> recipients) = 0;
};

class PullLane : public Lane {
 public:
  // Source: lends regions (in this order: Segment::region indexes them). The descriptor is opaque bytes for readers.
  virtual Result<Bytes> expose(std::span<const memory::RegionRef> regions) = 0;
  // Source: revokes: the memory epoch rises, later requests and re-checks of the old descriptor fail. One lend at a
  // time: a second expose without withdraw is kBusy. kUnsupported for memory that this mover cannot lend, saying what
  // to do.
  virtual Status withdraw() = 0;
  // Target: asks for a bucket; it arrives through next(). kMismatch for a descriptor of another job, txn, incarnation
  // or epoch; kInvalid for a segment outside its region. Returns the ticket.
  virtual Result<std::uint64_t> request(BucketId bucket, std::uint32_t sender, std::span<const std::byte> descriptor,
                                        std::span<const Segment> segments) = 0;
  // Target, after the last read of a bucket: true only if its descriptor was still valid throughout.
  virtual Status recheck(std::uint32_t sender) = 0;
};

// Largest control message. A peer that sends more is cut off.
inline constexpr std::int64_t kMaxControlBytes = 8 << 20;
// The bounded queue to one peer: messages, and their bytes.
inline constexpr std::size_t kControlQueueMessages = 1024;
inline constexpr std::int64_t kControlQueueBytes = 64 << 20;

struct ControlMessage {
  std::uint32_t peer = 0;  // connection number, never reused: a process that comes back is a new peer
  Bytes bytes;
  // Listening with keys: whose key the sender holds. Absent where the runtime directory is the guard.
  std::optional<MemberName> proven{};
};
enum class PeerEvent : std::uint8_t { kConnected, kGone };
struct Liveness {
  std::uint32_t peer = 0;
  PeerEvent event = PeerEvent::kConnected;
};

// Small opaque messages with liveness, apart from bulk; ordered per peer. send() queues and never waits; kExhausted
// when the bounded queue to that peer is full, kPeerLost when it is gone. A member may send before it is connected.
// kGone is reported within about 1 s of a process' death or close, and after `silent_after_ms` of a process that stands
// still. A member whose coordinator is gone opens a new lane to come back. *thread-safe*.
class ControlLane {
 public:
  virtual ~ControlLane() = default;
  virtual Status send(std::uint32_t peer, std::span<const std::byte> bytes) = 0;
  virtual Result<ControlMessage> next(Deadline deadline) = 0;  // kTimeout when nothing came
  virtual std::vector<Liveness> liveness() = 0;                // events since the last call
  // Where members connect: of a TCP listener with the port it has and the host it advertises.
  virtual std::string address() const = 0;
  // Connections that were turned away: no key, a key that is not admitted, too many or too slow before they proved one.
  virtual std::uint64_t refused() const { return 0; }
  virtual void abort(Error error) = 0;
  virtual Status close(Deadline deadline) = 0;
};

struct ControlAddress {
  // "ipc:///…" in a private directory, or with keys "tcp://HOST:PORT". A listener may give PORT as LOW-HIGH (a taken
  // port is passed over) or as 0 (the system chooses); an IPv6 number stands in brackets.
  std::string address;
  bool listen = false;  // the coordinator listens (peers 1, 2, …), members connect (to peer 0)
  std::int64_t silent_after_ms = 10'000;
  std::optional<ControlKeys> keys{};  // tcp:// does not work without, ipc:// not with
  std::string advertise{};            // a TCP listener's host as members know it; empty: the one listened on
};

class Mover {
 public:
  virtual ~Mover() = default;
  virtual Capabilities capabilities() const = 0;
  virtual Bytes card() const = 0;
  // Symmetric, tried for real. kUnsupported with the reason when the peer cannot be reached this way.
  virtual Status reach(const Peer& peer, Deadline deadline) = 0;
  // A capability that is absent gives kUnsupported.
  virtual Result<std::unique_ptr<PushLane>> open_push(const LaneId& id, std::span<const Peer> peers) = 0;
  virtual Result<std::unique_ptr<PullLane>> open_pull(const LaneId& id, std::span<const Peer> peers) = 0;
  virtual Result<std::unique_ptr<ControlLane>> open_control(const ControlAddress& address) = 0;
  virtual Counters counters() const = 0;
  virtual Status shutdown(Deadline deadline) = 0;
};

// Of the nixl mover: where the library lies, which of its plugins moves bytes, and how long registrations stay.
struct NixlOptions {
  std::string library;          // libnixl_capi.so; empty: searched for, transport/nixl/README.md says where
  std::string backend = "UCX";  // `backend_name`
  std::vector<std::pair<std::string, std::string>> params{};  // `backend_init_params`, over the plugin's defaults
  bool release_after_round = false;                            // `release_after_refit`
};

// Options of movers that use the network.
struct NetOptions {
  std::string advertise_address;  // `refit.advertise_address`: listened on and told to peers; empty: 127.0.0.1
  std::string port_range;         // `refit.port_range`, "LOW-HIGH" or one port; empty: the system chooses
  std::string security = "mac";   // `refit.security.bulk`: mac, or none (spelled out); aes_gcm is not built
  int streams = 2;                // connections to one recipient, 1…16
  std::int64_t stall_ns = 30 * kNsPerSecond;  // no progress for so long ends what waits for it
  NixlOptions nixl{};
};

struct MoverOptions {
  std::string runtime_dir;  // private (0700) directory for sockets
  Hash128 job;
  std::uint32_t member = 0;
  Incarnation incarnation;
  std::string name;  // "target:0.2"
  Env* env = &system_env();
  std::int64_t staging_bytes = 256 << 20;  // for leases that hold packed bytes
  memory::Budget* budget = nullptr;        // staging counts against it; must outlive the mover and its leases
  std::uint64_t seed = 0;                  // sim only
  NetOptions net{};                        // tcp, zmq_sparse and nixl only
};

// Factory. Names: "loopback", "sim", "shm", "zmq", "tcp", "zmq_sparse", "nixl", and "nixl_host_double", which runs nixl's
// code over a stand-in for the library inside one process. kUnsupported for others, listing what is built.
Result<std::unique_ptr<Mover>> make_mover(std::string_view name, const MoverOptions& options);
std::vector<std::string> mover_names();
// Does this mover's pull lane view the source's memory, so that targets need no staging? False for unknown names.
bool mover_maps(std::string_view name);

// The network of the "sim" movers of one job: seeded by the first mover's `seed`, moved only by sim_step() and next(),
// in virtual time. Frames overtake each other; the rest happens if asked, with these chances per frame. Same seed and
// same calls, same history.
struct SimFaults {
  double drop = 0, duplicate = 0, corrupt = 0;
  std::uint32_t max_delay = 8;  // steps of virtual time; 0 keeps the order
};
// For frames sent from now on. kInvalid before the job's first sim mover is made.
Status sim_faults(const Hash128& job, const SimFaults& faults);
// Delivers the next frame that can be delivered. False when none can.
bool sim_step(const Hash128& job);

// The private directory that guards sockets: made with mode 0700 when missing. `hint` is an absolute path; empty means
// refit-<uid> under XDG_RUNTIME_DIR, else TMPDIR, else /tmp. Returns the path. Errors: kInvalid when it is not a
// directory, belongs to somebody else, is open to others, or is too long for socket names inside it.
Result<std::string> make_runtime_dir(Env& env, std::string_view hint);

}  // namespace refit::transport
