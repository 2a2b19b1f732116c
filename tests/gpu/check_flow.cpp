// The colocated flow on device memory, between two processes: a trainer gathers its shard into a lent block, the engine's
// process opens the block and places it in its own layout, both digest, the engine digests again where the bytes lie.
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

#include "gpu/bench.h"

namespace refit::gpu {
namespace {

using namespace refit::memory;
using kernel::Digest;
using kernel::DigestKeys;
using kernel::Job;

struct Request {
  DeviceHandle handle;
  std::int64_t rows, cols, pitch;  // of the block: packed rows `pitch` bytes apart
  std::uint64_t seed;
};
struct Answer {
  Digest placed, live;
  char fault[400];
};

bool send_with_fd(int socket, const Request& r, int fd) {
  iovec part{const_cast<Request*>(&r), sizeof r};
  alignas(cmsghdr) char room[CMSG_SPACE(sizeof(int))] = {};
  msghdr m{};
  m.msg_iov = &part;
  m.msg_iovlen = 1;
  if (fd >= 0) {
    m.msg_control = room;
    m.msg_controllen = sizeof room;
    cmsghdr* const c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(c), &fd, sizeof fd);
  }
  return ::sendmsg(socket, &m, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof r);
}
bool receive_with_fd(int socket, Request& r, Fd& fd) {
  iovec part{&r, sizeof r};
  alignas(cmsghdr) char room[CMSG_SPACE(sizeof(int))] = {};
  msghdr m{};
  m.msg_iov = &part;
  m.msg_iovlen = 1;
  m.msg_control = room;
  m.msg_controllen = sizeof room;
  if (::recvmsg(socket, &m, MSG_CMSG_CLOEXEC) != static_cast<ssize_t>(sizeof r)) return false;
  if (const cmsghdr* const c = CMSG_FIRSTHDR(&m); c != nullptr && c->cmsg_type == SCM_RIGHTS) {
    int got = -1;
    std::memcpy(&got, CMSG_DATA(c), sizeof got);
    fd = Fd(got);
  }
  return true;
}

// A [rows, cols] bf16 tensor moved from one place to another, or digested where it lies.
struct Piece {
  Dims extents, from, to, steps{1, 1}, origin{0, 0};
  std::vector<int> axis{0, 1};
  Job job(const void* src, void* dst, const DigestKeys& keys) const {
    Job j;
    j.src = src;
    j.dst = dst;
    j.extents = extents;
    j.src_strides = from;
    if (dst != nullptr) j.dst_strides = to;
    j.axis = axis;
    j.steps = steps;
    j.origin = origin;
    j.keys = &keys;
    return j;
  }
};

std::string digest_of(Bench& b, const Job& job, Digest& out) {
  auto batch = kernel::DeviceBatch::make(b.stream, std::span(&job, 1), true);
  if (!batch.ok()) return batch.error().to_string();
  if (auto f = text(batch->launch(b.kernels, b.stream)); !f.empty()) return f;
  if (auto f = b.wait("a batch"); !f.empty()) return f;
  batch->results(std::span(&out, 1));
  return "";
}

// Engine: opens, places turned (column-major rows of its own), digests what it wrote and what lies there.
std::string place(const CudaApi& api, const Request& r, Fd fd, Answer& out) {
  auto b = Bench::make(api);
  if (!b.ok()) return b.error().to_string();
  auto lent = ImportedMemory::open(api, r.handle, std::move(fd));
  if (!lent.ok()) return lent.error().to_string();
  auto own = DeviceBuffer::make(b->device, r.rows * r.cols * 2, "the engine's weights");
  if (!own.ok()) return own.error().to_string();
  const DigestKeys keys = DigestKeys::make(r.seed, "w", {r.rows, r.cols});
  const Piece in{{r.rows, r.cols}, {r.pitch, 2}, {2, r.rows * 2}};
  if (auto f = digest_of(*b, in.job(lent->data(), own->data(), keys), out.placed); !f.empty()) return f;
  const Piece live{{r.rows, r.cols}, {2, r.rows * 2}, {}};
  return digest_of(*b, live.job(own->data(), nullptr, keys), out.live);
}

// Memory of the virtual memory functions, shareable by descriptor.
struct Virtual {
  Bench* b = nullptr;
  CuPtr at = 0;
  CuAllocation allocation = 0;
  std::size_t bytes = 0;
  ~Virtual() {
    if (at != 0) (void)b->device.call("unmap", b->api->vmm_unmap, at, bytes);
    if (at != 0) (void)b->device.call("unreserve", b->api->vmm_unreserve, at, bytes);
    if (allocation != 0) (void)b->device.call("release", b->api->vmm_release, allocation);
  }
  std::string make(Bench& bench, std::int64_t need) {
    b = &bench;
    CuAllocationProperties p;
    p.handle_types = kCuHandleFd;
    p.location.id = b->device.ordinal();
    CuAccess access;
    access.location.id = b->device.ordinal();
    std::size_t page = 0;
    const auto* const cp = const_cast<const CuAllocationProperties*>(&p);
    const CudaApi& api = *b->api;
    if (auto s = b->device.call("granularity", api.vmm_granularity, &page, cp, 0); !s.ok()) return text(s);
    bytes = static_cast<std::size_t>(ceil_div(need, static_cast<std::int64_t>(page))) * page;
    for (const Status& s : {b->device.call("reserve", api.vmm_reserve, &at, bytes, std::size_t{0}, CuPtr{0}, 0ULL),
                            b->device.call("create", api.vmm_create, &allocation, bytes, cp, 0ULL),
                            b->device.call("map", api.vmm_map, at, bytes, std::size_t{0}, allocation, 0ULL),
                            b->device.call("access", api.vmm_access, at, bytes, const_cast<const CuAccess*>(&access),
                                           std::size_t{1})})
      if (!s.ok()) return text(s);
    return "";
  }
};

std::string ask(Peer& peer, const Request& r, int fd, Answer& out) {
  if (!send_with_fd(peer.socket(), r, fd)) return "the second process is gone";
  if (::recv(peer.socket(), &out, sizeof out, MSG_WAITALL) != static_cast<ssize_t>(sizeof out))
    return "the second process did not answer in time";
  return out.fault;
}

std::string flow(Bench& b, Peer& peer, bool by_fd, std::uint64_t seed) {
  const std::int64_t rows = 384 + static_cast<std::int64_t>(seed), cols = 1000, pitch = 2048, lead = 512;
  Bytes weights(static_cast<std::size_t>(rows * 3 * cols * 2));  // the trainer's: three such tensors side by side
  std::uint64_t x = seed;
  for (std::byte& v : weights) v = static_cast<std::byte>((x = x * 6364136223846793005u + 1442695040888963407u) >> 56);
  Mirror live(b, weights.data(), static_cast<std::int64_t>(weights.size()));
  if (!live.fault().empty()) return live.fault();
  Virtual virtual_memory;
  DeviceBuffer plain;
  CuPtr block = 0;
  if (by_fd) {
    if (auto f = virtual_memory.make(b, lead + rows * pitch); !f.empty()) return f;
    block = virtual_memory.at;
  } else {
    auto made = DeviceBuffer::make(b.device, lead + rows * pitch, "a lent block");
    if (!made.ok()) return made.error().to_string();
    plain = std::move(made).value();
    block = plain.at();
  }
  const CuPtr at = block + static_cast<CuPtr>(lead);
  const DigestKeys keys = DigestKeys::make(seed, "w", {rows, cols});
  const Piece out{{rows, cols}, {3 * cols * 2, 2}, {pitch, 2}};
  Digest sent;
  if (auto f = digest_of(b, out.job(live.at() + cols * 2, reinterpret_cast<void*>(at), keys), sent); !f.empty()) return f;
  auto lent = export_memory(b.device, at, rows * pitch);
  if (!lent.ok()) return lent.error().to_string();
  if (lent->handle.fd != by_fd || lent->handle.offset != lead) return "the handle is of the wrong form";
  Answer answer{};
  if (auto f = ask(peer, {lent->handle, rows, cols, pitch, seed}, lent->fd.get(), answer); !f.empty()) return f;
  if (!(answer.placed == sent)) return "what the engine placed is not what the trainer sent";
  if (!(answer.live == sent)) return "what lies in the engine is not what the trainer sent";
  Digest want;
  const Job host = out.job(weights.data() + cols * 2, nullptr, keys);
  kernel::run_reference(std::span(&host, 1), std::span(&want, 1));
  return want == sent ? "" : "the digest is not that of the weights";
}

}  // namespace

std::string Peer::start(const char* program, bool is_double) {
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) return std::strerror(errno);
  pid_ = ::fork();
  if (pid_ == 0) {
    const std::string fd = std::to_string(::dup(pair[1]));  // without close-on-exec
    ::execl(program, program, "--peer", fd.c_str(), is_double ? "--double" : nullptr, nullptr);
    ::_exit(127);
  }
  ::close(pair[1]);
  fd_ = pair[0];
  const timeval patience{60, 0};
  ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  return pid_ < 0 ? "no second process" : "";
}
Peer::~Peer() {
  if (fd_ >= 0) ::close(fd_);  // it ends by itself then
  for (int i = 0; pid_ > 0 && i < 500; ++i) {
    if (::waitpid(pid_, nullptr, WNOHANG) != 0) return;
    ::usleep(10'000);
  }
  if (pid_ > 0) ::kill(pid_, SIGKILL), ::waitpid(pid_, nullptr, 0);
}

int run_peer(int socket, bool is_double) {
  Request r{};
  Fd fd;
  while (receive_with_fd(socket, r, fd)) {
    Answer out{};
    std::string fault;
    if (is_double) {
      fault = place(cuda_host_double(), r, std::move(fd), out);
    } else {
      auto api = cuda_driver();
      fault = api.ok() ? place(**api, r, std::move(fd), out) : api.error().to_string();
    }
    std::strncpy(out.fault, fault.c_str(), sizeof out.fault - 1);
    if (::send(socket, &out, sizeof out, MSG_NOSIGNAL) != static_cast<ssize_t>(sizeof out)) return 1;
  }
  return 0;
}

void check_flow(Bench& b, Peer& peer) {
  for (std::uint64_t version = 1; version <= 3; ++version)
    b.report->check("flow.ipc_handle.v" + std::to_string(version), flow(b, peer, false, version));
  b.report->check("flow.descriptor", flow(b, peer, true, 4));
}

}  // namespace refit::gpu
