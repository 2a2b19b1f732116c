// The control lane of zmq, over ipc or over TCP with keys: one loop thread owns the sockets; callers on any thread use
// the mailbox.
#pragma once
#include <atomic>
#include <memory>
#include <set>
#include <thread>

#include "transport/common/mailbox.h"
#include "transport/common/strangers.h"
#include "transport/common/sys.h"
#include "transport/zmq/card.h"
#include "transport/zmq/door.h"

namespace refit::transport::zmq {

// Counted by all lanes of a mover; shared with them, since a lane may outlive its mover.
struct Tally {
  std::atomic<std::uint64_t> foreign{0}, bad{0}, bytes_in{0}, bytes_out{0};
  std::atomic<std::uint32_t> threads{0};
};

class ControlLaneZmq final : public ControlLane {
 public:
  static Result<std::unique_ptr<ControlLane>> open(Env& env, const ControlAddress& address,
                                                   std::shared_ptr<Tally> tally);
  ~ControlLaneZmq() override;
  Status send(std::uint32_t peer, std::span<const std::byte> bytes) override;
  Result<ControlMessage> next(Deadline deadline) override;
  std::vector<Liveness> liveness() override { return mailbox_.liveness(); }
  std::string address() const override { return told_; }
  std::uint64_t refused() const override { return refused_.load(); }
  void abort(Error error) override;
  Status close(Deadline deadline) override;

 private:
  // A peer as the loop sees it. A member has one, number 0, without a routing id.
  struct PeerState {
    Bytes routing_id;
    std::int64_t seen_ns = 0, sent_ns = 0;
    std::optional<MemberName> proven{};
    int descriptor = -1;  // libzmq's, of a TCP connection, as far as it was told
  };
  // A message as it came: from whom, and over which of libzmq's descriptors.
  struct Origin {
    std::span<const std::byte> routing_id;
    std::optional<MemberName> proven;
    int descriptor = -1;
  };
  enum class Sent : std::uint8_t { kYes, kLater, kUnreachable };

  ControlLaneZmq(Env& env, ControlAddress address, std::string path, std::shared_ptr<Tally> tally)
      : env_(env), address_(std::move(address)), path_(std::move(path)), tally_(std::move(tally)) {}
  bool tcp() const { return address_.keys.has_value(); }
  Status open_sockets();
  Status open_curve();
  Status attach();
  Status listen_tcp();
  Status listen_ipc();
  void close_sockets(int linger_ms);

  // Loop-only from here on.
  void loop();
  int poll_timeout_ms() const;
  void forgive_own_gap(std::int64_t now);
  void drain_monitor(std::int64_t now);
  void receive_all(std::int64_t now);
  void receive(const Origin& from, std::span<const std::byte> message, std::int64_t now);
  void welcome(const Origin& from, std::int64_t now);
  void hung_up(std::int64_t now);
  void closed(int descriptor);
  bool full_for(const Origin& from);
  void flush(std::int64_t now);
  void keep_alive(std::int64_t now);
  void drop(std::uint32_t peer, const char* why);
  Sent transmit(std::span<const std::byte> routing_id, const Bytes& message);
  std::int64_t silent_ns() const { return address_.silent_after_ms * 1'000'000; }

  Env& env_;
  const ControlAddress address_;
  const std::string path_;  // of an ipc address
  std::string told_;        // address as members know it
  std::uint16_t port_ = 0;  // of a TCP listener
  const std::shared_ptr<Tally> tally_;
  Mailbox mailbox_;
  Wake wake_;
  void* context_ = nullptr;
  void* socket_ = nullptr;
  void* monitor_ = nullptr;
  std::unique_ptr<Door> door_;             // of a TCP listener
  Strangers strangers_;                    // likewise
  std::uint64_t turned_away_ = 0;          // with an admitted key, for want of room
  std::atomic<std::uint64_t> refused_{0};  // by all of them
  std::map<std::uint32_t, PeerState> peers_;
  std::map<Bytes, std::uint32_t> by_id_;
  std::uint32_t next_peer_ = 1;
  std::atomic<bool> welcomed_{false};     // member: the coordinator knows us
  std::atomic<std::uint64_t> broken_{0};  // member: connections that ended before the coordinator answered
  std::int64_t probe_until_ns_ = 0;       // somebody hung up: find out soon who
  std::int64_t last_loop_ns_ = 0;
  std::atomic<bool> stop_{false};
  std::atomic<std::int64_t> flush_by_ns_{0};
  std::mutex close_mutex_;  // close() and the destructor, from any thread
  std::thread thread_;
};

}  // namespace refit::transport::zmq
