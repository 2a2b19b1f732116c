#include <algorithm>
#include <array>
#include <cstring>
#include <thread>

#include "cli/doctor/finding.h"
#include "cli/layouts.h"
#include "memory/memory.h"
#include "transport/transport.h"

namespace refit::cli {
namespace {

constexpr std::int64_t kBucketBytes = 1 << 20;
constexpr std::uint32_t kSender = 1, kReader = 2;
const BucketId kBucket(5);

void fill_with_pattern(std::byte* data, std::int64_t bytes) {
  for (std::int64_t i = 0; i < bytes; ++i) data[i] = static_cast<std::byte>(i * 131 + (i >> 8));
}

// Two ends of one mover in this process, as two processes of a host would have them.
struct TwoEnds {
  std::unique_ptr<transport::Mover> sender, reader;
  transport::LaneId sender_id, reader_id;
  transport::Peer of_sender, of_reader;  // whom each hears of

  static Result<TwoEnds> make(const std::string& name, Env& env, const std::string& directory, memory::Budget* budget) {
    TwoEnds e;
    transport::MoverOptions o{.runtime_dir = directory,
                              .job = hash128("doctor"),
                              .member = kSender,
                              .incarnation = Incarnation(env.random_u64() | 1),
                              .name = "source:0.0",
                              .env = &env,
                              .staging_bytes = 8 * kBucketBytes,
                              .budget = budget};
    const Incarnation first = o.incarnation;
    REFIT_ASSIGN(e.sender, transport::make_mover(name, o));
    o.member = kReader, o.name = "target:0.0", o.incarnation = Incarnation(first.value + 1);
    REFIT_ASSIGN(e.reader, transport::make_mover(name, o));
    const Txn txn{hash128("doctor"), Epoch(1), 1};
    e.sender_id = {o.job, txn, first}, e.reader_id = {o.job, txn, o.incarnation};
    e.of_reader = {kSender, first, e.sender->card(), "source:0.0"};
    e.of_sender = {kReader, o.incarnation, e.reader->card(), "target:0.0"};
    return e;
  }
  Status close() {
    const Status a = sender->shutdown(Deadline::after_s(2)), b = reader->shutdown(Deadline::after_s(2));
    return a.ok() ? b : a;
  }
};

// Until everything is complete, the error of one, or the deadline.
Status completed(transport::Lane& lane, Env& env, std::size_t count, Deadline deadline) {
  std::array<transport::Completion, 4> done;
  while (count > 0) {
    const std::size_t n = lane.poll(done);
    for (std::size_t i = 0; i < n; ++i)
      if (done[i].error) return *done[i].error;
    count -= std::min(n, count);
    if (count > 0 && deadline.over()) return Error(Code::kTimeout, "sent, and never acknowledged");
    if (n == 0) env.wait(Deadline::after_ns(500'000).sooner(deadline));
  }
  return {};
}

Status push(TwoEnds& e, Env& env, Deadline deadline) {
  std::vector<std::byte> data(static_cast<std::size_t>(kBucketBytes));
  fill_with_pattern(data.data(), kBucketBytes);
  REFIT_ASSIGN(auto to, e.reader->open_push(e.reader_id, std::array{e.of_reader}));
  REFIT_ASSIGN(auto from, e.sender->open_push(e.sender_id, std::array{e.of_sender}));
  REFIT_TRY(to->expect(std::array{transport::Expected{kBucket, kSender, kBucketBytes}}));
  const std::span<const std::byte> all(data);
  const std::array parts = {all.first(1000), all.subspan(1000)};
  Status got;
  std::thread reader([&] {
    const Result<transport::Lease> lease = to->next(deadline);
    if (!lease.ok())
      got = lease.error();
    else if (!std::ranges::equal(lease->packed(), data))
      got = Error(Code::kCorrupt, "other bytes came than were sent");
  });
  const Result<std::uint64_t> ticket = from->post(kBucket, parts, std::array{kReader});
  Status sent = ticket.ok() ? completed(*from, env, 1, deadline) : Status(ticket.error());
  if (!sent.ok()) to->abort(sent.error());
  reader.join();
  const Status a = from->close(Deadline::after_s(2)), b = to->close(Deadline::after_s(2));
  for (const Status& s : {sent, got, a, b}) REFIT_TRY(s);
  return {};
}

Status pull(TwoEnds& e, Env& env, memory::Budget* budget, Deadline deadline) {
  REFIT_ASSIGN(const memory::SharedRegion region, memory::SharedRegion::make(env, kBucketBytes, budget, "doctor"));
  fill_with_pattern(region.data(), kBucketBytes);
  REFIT_ASSIGN(auto from, e.sender->open_pull(e.sender_id, std::array{e.of_sender}));
  REFIT_ASSIGN(auto to, e.reader->open_pull(e.reader_id, std::array{e.of_reader}));
  const memory::RegionRef lent{region.data(), kBucketBytes, memory::Kind::kHostShared, &region};
  REFIT_ASSIGN(const transport::Bytes descriptor, from->expose(std::array{lent}));
  const Segment part{.region = 0, .offset = 4096, .run_bytes = kBucketBytes - 4096, .extents = {}, .strides = {}};
  REFIT_TRY(to->request(kBucket, kSender, descriptor, std::array{part}));
  {
    REFIT_ASSIGN(const transport::Lease lease, to->next(deadline));
    const std::byte* read = !lease.bases().empty() ? lease.bases()[0] : lease.packed().data();
    if (read == nullptr || std::memcmp(read, region.data() + 4096, kBucketBytes - 4096) != 0)
      return Error(Code::kCorrupt, "other bytes were read than lent");
    REFIT_TRY(to->recheck(kSender));
  }
  const Status a = to->close(Deadline::after_s(2)), b = from->close(Deadline::after_s(2));
  return a.ok() ? b : a;
}

Status talk(transport::Mover& mover, transport::ControlAddress at, const std::optional<transport::ControlKeys>& member,
            Deadline deadline) {
  at.listen = true;
  REFIT_ASSIGN(auto hub, mover.open_control(at));
  REFIT_ASSIGN(auto lane, mover.open_control({.address = hub->address(), .listen = false, .keys = member}));
  const std::array<std::byte, 3> word = {std::byte{1}, std::byte{2}, std::byte{3}};
  REFIT_TRY(lane->send(0, word));
  REFIT_ASSIGN(const transport::ControlMessage heard, hub->next(deadline));
  if (!std::ranges::equal(heard.bytes, word)) return Error(Code::kCorrupt, "another message came than was sent");
  REFIT_TRY(hub->send(heard.peer, word));
  REFIT_TRY(lane->next(deadline));
  const Status a = lane->close(Deadline::after_s(2)), b = hub->close(Deadline::after_s(2));
  return a.ok() ? b : a;
}

Result<std::string> try_data(const std::string& name, Env& env, const std::string& directory, Deadline deadline) {
  memory::Budget budget(64 * kBucketBytes);
  REFIT_ASSIGN(TwoEnds e, TwoEnds::make(name, env, directory, &budget));
  const transport::Capabilities can = e.sender->capabilities();
  REFIT_TRY(e.reader->reach(e.of_reader, deadline));
  if (can.push) REFIT_TRY(push(e, env, deadline));
  if (can.pull) REFIT_TRY(pull(e, env, &budget, deadline));
  REFIT_TRY(e.close());
  std::string found = human_bytes(kBucketBytes) + " moved and compared";
  if (!can.security.empty()) found += ", security.bulk " + std::string(can.security);
  return found;
}

Status try_control(Env& env, const std::string& directory, bool curve, Deadline deadline) {
  REFIT_ASSIGN(auto mover, transport::make_mover("zmq", {.runtime_dir = directory,
                                                         .job = hash128("doctor"),
                                                         .member = ~0u,
                                                         .incarnation = Incarnation(env.random_u64()),
                                                         .name = "coordinator",
                                                         .env = &env}));
  if (!curve) return talk(*mover, {.address = "ipc://" + directory + "/control"}, std::nullopt, deadline);
  REFIT_ASSIGN(const transport::KeyPair hub, transport::make_key_pair());
  REFIT_ASSIGN(const transport::KeyPair own, transport::make_key_pair());
  transport::ControlAddress at{.address = "tcp://127.0.0.1:0"};
  at.keys = transport::ControlKeys{.own = hub, .admitted = {{{Role::kTarget, 0, 0}, own.public_key}}};
  return talk(*mover, at, transport::ControlKeys{.own = own, .coordinator = hub.public_key}, deadline);
}

const char* advice(const std::string& name) {
  if (name == "shm") return "allow memfd_create and unix sockets (seccomp, memory limit), or use tcp";
  if (name == "tcp" || name == "zmq_sparse")
    return "allow listening and connecting on 127.0.0.1, or use shm on one host";
  if (name == "nixl")
    return "pip install nixl-cu12 in the environment that VIRTUAL_ENV names, or name the library in REFIT_NIXL_LIBRARY";
  return "see the message";
}

}  // namespace

Findings try_movers(Env& env, const std::string& directory, double patience_s) {
  Findings out;
  const auto deadline = [&] { return Deadline::after_s(patience_s); };
  for (const std::string& name : transport::mover_names()) {
    if (name == "loopback" || name == "sim" || name == "nixl_host_double" || name == "zmq")
      continue;  // of tests; control only
    const Result<std::string> tried = try_data(name, env, directory, deadline());
    out.push_back(finding(name, tried.ok() ? Status{} : Status(tried.error()), tried.ok() ? *tried : "",
                          "transport: " + name, advice(name)));
  }
  out.push_back(finding("zmq", try_control(env, directory, false, deadline()), "a message each way over ipc",
                        "control of jobs on one host", "allow unix sockets in the runtime directory"));
  out.push_back(finding("curve", try_control(env, directory, true, deadline()), "a message each way over TCP with keys",
                        "refit coordinator, publish, serve on several hosts",
                        "a libzmq with CURVE (libsodium), and TCP on 127.0.0.1"));
  return out;
}

}  // namespace refit::cli
