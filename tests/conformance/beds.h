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
    shared_.push_back(std::make_unique<memory::SharedRegion>(std::move(memory::SharedRegion::make(system_env(), bytes, nullptr, "bed")).value()));
    return {shared_.back()->data(), bytes, memory::Kind::kHostShared, shared_.back().get()};
  }

 private:
  std::vector<std::unique_ptr<memory::SharedRegion>> shared_;
};

template <typename B, typename... A>
MakeBed make_bed(A... args) {
  return [=] { return std::make_unique<B>(args...); };
}

}  // namespace refit::conformance
