// What every check of the GPU program uses: the device, its stream and kernels, memory that moves to and fro, and the
// report.
#pragma once
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "codec/codec.h"
#include "kernel/kernel.h"
#include "memory/memory.h"

namespace refit::gpu {

using Bytes = std::vector<std::byte>;

// Every wait of the program: a hung GPU is a failed check.
inline Deadline soon() { return Deadline::after_s(60); }

class Report {
 public:
  // An empty `fault` passes.
  void check(const std::string& name, const std::string& fault, const std::string& detail = "");
  void skip(const std::string& name, const std::string& why);
  // 0 where nothing was measured. Meeting 0.8 of the ceiling is written down and fails nothing.
  void figure(const std::string& name, double gb_per_s, double ceiling);
  bool ok() const { return ok_ && checks_ > 0; }
  int checks() const { return checks_; }
  // Writes gpu-report.json, which is not ok before it is complete. `head` holds further members, as JSON text.
  bool write(const std::string& path, const std::string& head, bool complete) const;

 private:
  std::string rows_, figures_;
  bool ok_ = true;
  int checks_ = 0;
};
std::string quoted(const std::string& text);  // as a JSON string

struct Bench {
  const memory::CudaApi* api = nullptr;
  memory::Device device;
  memory::Stream stream;
  memory::Module kernels, codecs;
  Report* report = nullptr;

  static Result<Bench> make(const memory::CudaApi& api);
  bool is_double() const { return api->is_double; }
  std::string wait(const std::string& what);  // a fault, or nothing
};

// Device memory with the content of a host block, and back; both through pinned memory and the bench's stream.
class Mirror {
 public:
  Mirror(Bench& bench, const void* bytes, std::int64_t n);
  std::byte* at() const { return device_.data(); }
  std::int64_t bytes() const { return device_.bytes(); }
  Bytes read();
  const std::string& fault() const { return fault_; }

 private:
  Bench* bench_;
  memory::DeviceBuffer device_;
  memory::PinnedBuffer host_;
  std::string fault_;
};
inline std::string text(const Status& s) { return s.ok() ? "" : s.error().to_string(); }

// Groups of checks.
void check_memory(Bench& bench);
void check_moves(Bench& bench);
void check_casts(Bench& bench);
void check_quantise(Bench& bench);
void check_delta(Bench& bench);
void check_nccl(Bench& bench);
void check_torch(Bench& bench);
void measure(Bench& bench);

// The second process of the flow, started before anybody touches CUDA. It opens what it is lent, places it and answers
// with digests.
class Peer {
 public:
  Peer() = default;
  ~Peer();
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;
  std::string start(const char* program, bool is_double);
  int socket() const { return fd_; }

 private:
  int fd_ = -1, pid_ = -1;
};
int run_peer(int socket, bool is_double);
void check_flow(Bench& bench, Peer& peer);

}  // namespace refit::gpu
