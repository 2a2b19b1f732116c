// Service: the thread that hands out descriptors, so that a reader never depends on the trainer's own threads.
#pragma once
#include <atomic>
#include <thread>
#include <vector>

#include "transport/common/sys.h"
#include "transport/shm/exports.h"

namespace refit::transport::shm {

// Owns the listening socket and its connections. start/stop *thread-compatible*; the rest is loop-only.
class Service {
 public:
  static Result<std::unique_ptr<Service>> start(Env& env, const std::string& path, const Card& self,
                                                const Exports& exports);
  ~Service();
  void stop();
  std::uint64_t foreign() const { return foreign_.load(); }
  std::uint64_t bad() const { return bad_.load(); }
  bool running() const { return thread_.joinable(); }

 private:
  struct Connection {
    Fd fd;
    std::size_t have = 0;
    std::array<std::byte, kRequestBytes> request{};
  };
  Service(const Card& self, const Exports& exports) : self_(self), exports_(exports) {}
  void loop();
  void accept_all();
  bool serve(Connection& connection);  // false: close it
  bool answer(Connection& connection);

  const Card self_;
  const Exports& exports_;
  std::string path_;
  Fd listener_;
  Wake wake_;
  std::atomic<bool> stop_{false};
  std::vector<Connection> connections_;
  std::atomic<std::uint64_t> foreign_{0}, bad_{0};
  std::thread thread_;
};

// kUnsupported unless the process at the other end runs as our user.
Status check_same_user(int fd);

}  // namespace refit::transport::shm
