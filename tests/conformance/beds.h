// One bed a mover.
#pragma once
#include "bed.h"

namespace refit::conformance {

class NamedBed : public Bed {
 public:
  explicit NamedBed(std::string name) : name_(std::move(name)) {}
  Result<std::unique_ptr<Mover>> mover(const MoverOptions& options) override { return make_mover(name_, options); }

 private:
  std::string name_;
};

class ShmBed final : public NamedBed {
 public:
  ShmBed() : NamedBed("shm") {}
  memory::RegionRef region(std::int64_t bytes) override {
    shared_.push_back(std::make_unique<memory::SharedRegion>(
        std::move(memory::SharedRegion::make(system_env(), bytes, nullptr, "bed")).value()));
    return {shared_.back()->data(), bytes, memory::Kind::kHostShared, shared_.back().get()};
  }

 private:
  std::vector<std::unique_ptr<memory::SharedRegion>> shared_;
};

// Every frame may come twice: a lane hands each bucket out once all the same.
class SimBed final : public NamedBed {
 public:
  SimBed() : NamedBed("sim") {}
  Result<std::unique_ptr<Mover>> mover(const MoverOptions& options) override {
    REFIT_ASSIGN(auto made, NamedBed::mover(options));
    REFIT_TRY(sim_faults(job, {.drop = 0, .duplicate = 0.3, .corrupt = 0, .max_delay = 16}));
    return made;
  }
  void turn() override { (void)sim_step(job); }
  bool single_threaded() const override { return true; }
};

// Control over TCP: one key a lane, all in the coordinator's allow-list.
class ZmqTcpBed final : public NamedBed {
 public:
  static constexpr std::uint32_t kMembers = 8;
  ZmqTcpBed() : NamedBed("zmq") {
    hub_.own = make_key_pair().value();
    for (std::uint32_t i = 0; i < kMembers; ++i) {
      ControlKeys& m = members_.emplace_back();
      m.own = make_key_pair().value();
      m.coordinator = hub_.own.public_key;
      hub_.admitted.push_back({{Role::kTarget, 0, i}, m.own.public_key});
    }
  }
  std::string control_address() override { return "tcp://127.0.0.1:0"; }
  std::optional<ControlKeys> control_keys(bool listen) override { return listen ? hub_ : members_[next_++ % kMembers]; }

 private:
  ControlKeys hub_;
  std::vector<ControlKeys> members_;
  std::uint32_t next_ = 0;
};

class TcpBed final : public NamedBed {
 public:
  explicit TcpBed(std::string security, std::string mover = "tcp")
      : NamedBed(std::move(mover)), security_(std::move(security)) {}
  Result<std::unique_ptr<Mover>> mover(const MoverOptions& options) override {
    MoverOptions own = options;
    own.net.security = security_;
    return NamedBed::mover(own);
  }

 private:
  std::string security_;
};

template <typename B, typename... A>
MakeBed make_bed(A... args) {
  return [=] { return std::make_unique<B>(args...); };
}

}  // namespace refit::conformance
