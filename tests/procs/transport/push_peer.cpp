// One end of a push transport as a process of its own, driven by lines on stdin; each line has one answer.
//   push_peer MOVER JOB MEMBER SECURITY STALL_MS → "card HEX INCARNATION", then
//   peer MEMBER CARD INCARNATION · open ROUND · post BUCKET BYTES · expect BUCKETS BYTES · next SECONDS · done SECONDS
//   · reach SECONDS · close · fds · quit
#include <cstdio>
#include <deque>
#include <iostream>
#include <sstream>

#include "conformance/bed.h"
#include "line.h"

namespace refit::procs {
namespace {

using namespace refit::transport;  // NOLINT(google-build-using-namespace)

std::string told(const Status& s) { return s.ok() ? "ok" : "error " + s.error().to_string(); }

class End {
 public:
  End(std::string job, std::uint32_t member) : job_(std::move(job)), member_(member) {}
  Status start(const std::string& mover, const std::string& security, std::int64_t stall_ms) {
    MoverOptions o;
    o.job = hash128(job_);
    o.member = member_;
    o.incarnation = incarnation_;
    o.staging_bytes = 64 << 20;
    o.net.security = security;
    o.net.stall_ns = stall_ms * 1'000'000;
    REFIT_ASSIGN(mover_, make_mover(mover, o));
    return {};
  }
  std::string card() const { return "card " + to_hex(mover_->card()) + " " + std::to_string(incarnation_.value); }

  std::string obey(const std::string& line) {
    std::istringstream in(line);
    std::string word;
    in >> word;
    if (word == "peer") return set_peer(in);
    if (word == "open") return open(in);
    if (word == "post") return post(in);
    if (word == "expect") return expect(in);
    if (word == "next") return next(seconds(in));
    if (word == "done") return done(seconds(in));
    if (word == "reach") return told(mover_->reach(peer_, Deadline::after_s(seconds(in))));
    if (word == "close") return told(lane_->close(Deadline::after_s(1)));
    if (word == "fds")
      return std::to_string(conformance::open_descriptors()) + " " + std::to_string(conformance::live_threads());
    return "error unknown";
  }

 private:
  static double seconds(std::istringstream& in) {
    double s = 0;
    in >> s;
    return s;
  }
  std::string set_peer(std::istringstream& in) {
    std::uint64_t incarnation = 0;
    std::string card;
    in >> peer_.member >> card >> incarnation;
    peer_.incarnation = Incarnation(incarnation);
    peer_.card = from_hex(card);
    peer_.name = "peer:" + std::to_string(peer_.member);
    return "ok";
  }
  std::string open(std::istringstream& in) {
    in >> round_;
    sent_.clear();
    lane_.reset();
    auto lane = mover_->open_push(lane_id(job_, round_, incarnation_), {&peer_, 1});
    if (!lane.ok()) return told(lane.error());
    lane_ = std::move(*lane);
    return "ok";
  }
  std::string post(std::istringstream& in) {
    std::uint32_t bucket = 0;
    std::int64_t bytes = 0;
    in >> bucket >> bytes;
    Bytes& memory = sent_.emplace_back(static_cast<std::size_t>(bytes));
    for (std::int64_t i = 0; i < bytes; ++i) memory[static_cast<std::size_t>(i)] = weight(job_, round_, bucket, i);
    const std::span<const std::byte> all(memory);
    const std::span<const std::byte> parts[] = {all.first(all.size() / 2), all.subspan(all.size() / 2)};
    const auto ticket = lane_->post(BucketId(bucket), parts, {&peer_.member, 1});
    return ticket.ok() ? "ok" : told(ticket.error());
  }
  std::string expect(std::istringstream& in) {
    std::uint32_t buckets = 0;
    std::int64_t bytes = 0;
    in >> buckets >> bytes;
    std::vector<Expected> all;
    for (std::uint32_t b = 0; b < buckets; ++b) all.push_back({BucketId(b), peer_.member, bytes});
    return told(lane_->expect(all));
  }
  std::string next(double s) {
    const auto lease = lane_->next(Deadline::after_s(s));
    if (!lease.ok()) return told(lease.error());
    for (std::size_t i = 0; i < lease->packed().size(); ++i)
      if (lease->packed()[i] != weight(job_, round_, lease->bucket().value, static_cast<std::int64_t>(i)))
        return "wrong byte";
    return "lease " + std::to_string(lease->bucket().value);
  }
  std::string done(double s) {
    for (const Deadline deadline = Deadline::after_s(s); !deadline.over();) {
      Completion c;
      if (lane_->poll({&c, 1}) == 1) return c.error ? told(*c.error) : "done";
      system_env().wait(Deadline::after_ns(1'000'000));
    }
    return "nothing";
  }

  const std::string job_;
  const std::uint32_t member_;
  const Incarnation incarnation_{system_env().random_u64()};
  Peer peer_;
  std::uint64_t round_ = 0;
  std::deque<Bytes> sent_;
  std::unique_ptr<Mover> mover_;
  std::unique_ptr<PushLane> lane_;
};

}  // namespace
}  // namespace refit::procs

int main(int argc, char** argv) {
  if (argc != 6) {
    std::cerr << "usage: push_peer MOVER JOB MEMBER SECURITY STALL_MS\n";
    return 2;
  }
  refit::procs::End end(argv[2], static_cast<std::uint32_t>(std::stoul(argv[3])));
  if (const auto s = end.start(argv[1], argv[4], std::stoll(argv[5])); !s.ok()) {
    std::cout << "error " << s.error().to_string() << std::endl;
    return 1;
  }
  std::cout << end.card() << std::endl;
  for (std::string line; std::getline(std::cin, line) && line != "quit";) std::cout << end.obey(line) << std::endl;
  return 0;
}
