#include "transport/loopback/lane.h"

#include <map>
#include <set>

#include "transport/common/mailbox.h"
#include "transport/common/sys.h"

namespace refit::transport::loopback {
namespace {

class ControlLoopback;

// Who is there under which address. Its mutex guards the ends of all lanes too.
struct Exchange {
  std::mutex mutex;
  std::map<std::string, ControlLoopback*> listening;
  std::multimap<std::string, ControlLoopback*> waiting;  // members without a coordinator yet
};
Exchange& exchange() {
  static Exchange e;
  return e;
}

class ControlLoopback final : public ControlLane {
 public:
  ControlLoopback(std::string path, bool listen) : path_(std::move(path)), listen_(listen) {}
  ~ControlLoopback() override { leave(Error(Code::kCancelled, "the control lane is closed")); }

  Status enter() {
    Exchange& e = exchange();
    const std::lock_guard lock(e.mutex);
    if (!listen_) {
      mailbox_.open_outbox(0);
      const auto hub = e.listening.find(path_);
      if (hub != e.listening.end())
        hub->second->attach(*this);
      else
        e.waiting.emplace(path_, this);
      return {};
    }
    if (!e.listening.emplace(path_, this).second)
      return Error(Code::kBusy, "another lane of this process listens at " + path_);
    const auto [first, last] = e.waiting.equal_range(path_);
    for (auto it = first; it != last; ++it) attach(*it->second);
    e.waiting.erase(first, last);
    return {};
  }

  Status send(std::uint32_t peer, std::span<const std::byte> bytes) override {
    const std::lock_guard lock(exchange().mutex);
    REFIT_TRY(mailbox_.send(peer, bytes));
    move_to(peer);
    return {};
  }
  Result<ControlMessage> next(Deadline deadline) override {
    auto message = mailbox_.next(deadline);
    // There is room again for what the other ends hold back.
    const std::lock_guard lock(exchange().mutex);
    for (auto& [number, end] : ends_) end.lane->move_to(end.number);
    return message;
  }
  std::vector<Liveness> liveness() override { return mailbox_.liveness(); }
  std::string address() const override { return "ipc://" + path_; }
  void abort(Error error) override { leave(std::move(error)); }
  Status close(Deadline) override {
    leave(Error(Code::kCancelled, "the control lane is closed"));
    return {};
  }

 private:
  struct End {
    ControlLoopback* lane = nullptr;
    std::uint32_t number = 0;  // what that lane calls us
  };

  // Of a listening lane, under the exchange's mutex.
  void attach(ControlLoopback& member) {
    const std::uint32_t number = next_peer_++;
    ends_[number] = {&member, 0};
    member.ends_[0] = {this, number};
    mailbox_.connected(number);
    member.mailbox_.connected(0);
    member.move_to(0);
  }
  void move_to(std::uint32_t peer) {
    const auto end = ends_.find(peer);
    if (end == ends_.end()) return;
    while (!end->second.lane->mailbox_.inbox_full()) {
      const auto bytes = mailbox_.take(peer);
      if (!bytes) return;
      end->second.lane->mailbox_.deliver(end->second.number, *bytes);
    }
  }
  void leave(Error why) {
    Exchange& e = exchange();
    const std::lock_guard lock(e.mutex);
    mailbox_.fail(std::move(why));
    const auto place = e.listening.find(path_);
    if (place != e.listening.end() && place->second == this) e.listening.erase(place);
    std::erase_if(e.waiting, [&](const auto& entry) { return entry.second == this; });
    for (auto& [number, end] : ends_) {
      end.lane->ends_.erase(end.number);
      end.lane->mailbox_.gone(end.number);
      if (!end.lane->listen_)
        end.lane->mailbox_.fail(
            Error(Code::kPeerLost, "the coordinator at " + path_ + " closed its lane").at_peer("coordinator"));
    }
    ends_.clear();
  }

  const std::string path_;
  const bool listen_;
  Mailbox mailbox_;
  std::map<std::uint32_t, End> ends_;
  std::uint32_t next_peer_ = 1;
};

}  // namespace

Result<std::unique_ptr<ControlLane>> open_control(const ControlAddress& address) {
  REFIT_ASSIGN(std::string path, control_path(address.address));
  auto lane = std::make_unique<ControlLoopback>(std::move(path), address.listen);
  REFIT_TRY(lane->enter());
  return std::unique_ptr<ControlLane>(std::move(lane));
}

}  // namespace refit::transport::loopback
