// What refit doctor says where things were taken away: memory, sockets, files, a server.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <thread>

#include "cli/doctor/finding.h"

namespace refit::cli {
namespace {

using testing::HasSubstr;

constexpr double kPatience = 5;

// The real world, except what a test takes away.
class PoorEnv final : public Env {
 public:
  std::int64_t most_shm = std::int64_t{1} << 40;
  bool sockets = true;
  std::int64_t now_ns() override { return system_env().now_ns(); }
  void wait(Deadline until) override { system_env().wait(until); }
  Status random(std::span<std::byte> out) override { return system_env().random(out); }
  Result<Fd> shm(std::string_view label, std::int64_t bytes) override {
    if (bytes > most_shm) return Error(Code::kExhausted, "no shared memory left").amounts(bytes, most_shm);
    return system_env().shm(label, bytes);
  }
  Result<std::unique_ptr<File>> file(const std::string& path) override { return system_env().file(path); }
  Status replace(const std::string& from, const std::string& to) override { return system_env().replace(from, to); }
  Result<Fd> listen(const std::string& path) override {
    if (!sockets) return Error(Code::kUnsupported, "unix sockets are forbidden here");
    return system_env().listen(path);
  }
  Result<Fd> connect(const std::string& path, Deadline deadline) override {
    return system_env().connect(path, deadline);
  }
  Result<int> spawn(const std::vector<std::string>& argv) override { return system_env().spawn(argv); }
};

struct PrivateDir {
  std::string path = "/tmp/refit-d-XXXXXX";
  PrivateDir() { ::mkdtemp(path.data()); }
  ~PrivateDir() { std::filesystem::remove_all(path); }
};

const Finding& named(const Findings& all, const std::string& name) {
  for (const Finding& f : all)
    if (f.name == name) return f;
  static const Finding none;
  ADD_FAILURE() << "no check " << name;
  return none;
}

// Every line says what was found and what for; what fails says what to do.
void expect_complete(const Findings& all) {
  for (const Finding& f : all) {
    EXPECT_FALSE(f.found.empty()) << f.name;
    EXPECT_FALSE(f.needed.empty()) << f.name;
    EXPECT_EQ(f.works, f.todo.empty()) << f.name << ": " << f.todo;
  }
}

TEST(Movers, AllWorkHere) {
  const PrivateDir dir;
  const Findings all = try_movers(system_env(), dir.path, kPatience);
  expect_complete(all);
  for (const char* name : {"shm", "tcp", "zmq_sparse", "zmq", "curve"}) EXPECT_TRUE(named(all, name).works) << named(all, name).found;
  EXPECT_THAT(named(all, "tcp").found, HasSubstr("mac"));
}

TEST(Movers, WithoutSharedMemoryShmFailsAndOthersDoNot) {
  const PrivateDir dir;
  PoorEnv env;
  env.most_shm = 0;
  const Findings all = try_movers(env, dir.path, kPatience);
  expect_complete(all);
  EXPECT_FALSE(named(all, "shm").works);
  EXPECT_THAT(named(all, "shm").found, HasSubstr("no shared memory left"));
  EXPECT_TRUE(named(all, "tcp").works) << named(all, "tcp").found;
  EXPECT_TRUE(named(all, "curve").works) << named(all, "curve").found;
}

TEST(Movers, WithoutUnixSocketsShmFails) {
  const PrivateDir dir;
  PoorEnv env;
  env.sockets = false;
  const Findings all = try_movers(env, dir.path, kPatience);
  EXPECT_FALSE(named(all, "shm").works);
  EXPECT_THAT(named(all, "shm").found, HasSubstr("forbidden"));
  EXPECT_TRUE(named(all, "tcp").works);
}

TEST(Movers, WithoutADirectoryControlOverIpcFails) {
  const Findings all = try_movers(system_env(), "/nonexistent/refit", kPatience);
  EXPECT_FALSE(named(all, "zmq").works);
  EXPECT_FALSE(named(all, "shm").works);
  EXPECT_TRUE(named(all, "curve").works) << named(all, "curve").found;
}

TEST(Host, SaysHowMuchSharedMemoryIsMissing) {
  PoorEnv env;
  env.most_shm = 1 << 20;
  const Findings all = look_at_host(env, {.root = {}, .shm_bytes = 8 << 20, .advertise = {}});
  expect_complete(all);
  const Finding& f = named(all, "shared-memory");
  EXPECT_FALSE(f.works);
  EXPECT_THAT(f.found, HasSubstr("need=8388608"));
  EXPECT_THAT(f.found, HasSubstr("have=1048576"));
  EXPECT_TRUE(named(look_at_host(system_env(), {.root = {}, .shm_bytes = 1 << 20, .advertise = {}}), "shared-memory").works);
}

TEST(Host, ReadsHugePagesFromTheKernel) {
  const PrivateDir root;
  const std::string at = root.path + "/sys/kernel/mm/transparent_hugepage";
  const auto huge = [&] { return named(look_at_host(system_env(), {.root = root.path, .shm_bytes = 4096, .advertise = {}}), "hugepages"); };
  EXPECT_FALSE(huge().works);
  std::filesystem::create_directories(at);
  for (const auto& [text, works] : {std::pair{"always [madvise] never", true}, {"always madvise [never]", false}, {"[always] madvise never", true}}) {
    std::ofstream(at + "/enabled") << text << "\n";
    EXPECT_EQ(huge().works, works) << text;
    EXPECT_EQ(huge().found, text);
  }
}

TEST(Host, AnAddressToAdvertiseMustBeOurs) {
  const auto network = [](const char* address) {
    return named(look_at_host(system_env(), {.root = {}, .shm_bytes = 4096, .advertise = address}), "network");
  };
  EXPECT_TRUE(network("127.0.0.1").works);
  EXPECT_FALSE(network("192.0.2.1").works);
  EXPECT_THAT(network("192.0.2.1").todo, HasSubstr("address of this host"));
}

TEST(Store, IsWrittenReadAndLeftClean) {
  const PrivateDir dir;
  const Finding f = try_store("file://" + dir.path + "/store", "", "", "", kPatience);
  EXPECT_TRUE(f.works) << f.found;
  std::size_t files = 0;
  for (const auto& e : std::filesystem::recursive_directory_iterator(dir.path)) files += e.is_regular_file();
  EXPECT_EQ(files, 0u);
  EXPECT_FALSE(try_store("file:///proc/refit", "", "", "", kPatience).works);
  EXPECT_FALSE(try_store("ftp://x", "", "", "", kPatience).works);
}

// Answers each connection by the path that was asked for.
class Engine {
 public:
  using Answers = std::map<std::string, std::string>;
  explicit Engine(Answers answers) : answers_(std::move(answers)) {
    fd_ = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in a{};
    a.sin_family = AF_INET;
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof a;
    ::bind(fd_, reinterpret_cast<const sockaddr*>(&a), size);
    ::listen(fd_, 4);
    ::getsockname(fd_, reinterpret_cast<sockaddr*>(&a), &size);
    url = "http://127.0.0.1:" + std::to_string(ntohs(a.sin_port));
    thread_ = std::thread([this] { serve(); });
  }
  ~Engine() {
    ::shutdown(fd_, SHUT_RDWR);
    thread_.join();
    ::close(fd_);
  }
  std::string url;

 private:
  void serve() {
    for (int c = 0; (c = ::accept(fd_, nullptr, nullptr)) >= 0; ::close(c)) {
      char buffer[4096];
      const ssize_t n = ::recv(c, buffer, sizeof buffer, 0);
      std::string path(buffer, n > 0 ? static_cast<std::size_t>(n) : 0);
      path = path.substr(4, path.find(' ', 4) - 4);
      const auto at = answers_.find(path);
      const std::string text = at != answers_.end() ? "HTTP/1.1 200 OK\r\n\r\n" + at->second : "HTTP/1.1 404 Not Found\r\n\r\n";
      ::send(c, text.data(), text.size(), MSG_NOSIGNAL);
    }
  }
  const Answers answers_;
  int fd_ = -1;
  std::thread thread_;
};

TEST(EngineUrl, NamesKindVersionAndWhatToDo) {
  const Engine good(Engine::Answers{{"/version", R"({"version":"0.32.0"})"}, {"/is_paused", R"({"is_paused":false})"}});
  EXPECT_TRUE(try_engine(good.url, kPatience).works);
  EXPECT_THAT(try_engine(good.url + "/", kPatience).found, HasSubstr("vLLM 0.32.0"));
  const Engine plain(Engine::Answers{{"/version", R"({"version":"0.32.0"})"}});
  EXPECT_THAT(try_engine(plain.url, kPatience).todo, HasSubstr("VLLM_SERVER_DEV_MODE=1"));
  const Engine old(Engine::Answers{{"/version", R"({"version":"0.11.0"})"}, {"/is_paused", "{}"}});
  EXPECT_FALSE(try_engine(old.url, kPatience).works);
  EXPECT_THAT(try_engine(old.url, kPatience).todo, HasSubstr("untested_version"));
  const Engine sglang(Engine::Answers{{"/server_info", R"({"version":"0.5.23","tp_size":2})"}});
  EXPECT_TRUE(try_engine(sglang.url, kPatience).works);
  EXPECT_THAT(try_engine(sglang.url, kPatience).found, HasSubstr("SGLang 0.5.23"));
  const Engine other(Engine::Answers{{"/version", "hello"}});
  EXPECT_THAT(try_engine(other.url, kPatience).found, HasSubstr("names no version"));
}

TEST(EngineUrl, ClosedPortsAndWrongAddressesAreToldInTime) {
  std::string gone;
  {
    const Engine once(Engine::Answers{});
    gone = once.url;
  }
  const Finding f = try_engine(gone, kPatience);
  EXPECT_FALSE(f.works);
  EXPECT_THAT(f.found, HasSubstr("refused"));
  for (const char* bad : {"127.0.0.1:8000", "https://127.0.0.1:8000", "http://", "http://user:secret@host:1", "http://h:x", "http://h/path"}) {
    const Finding wrong = try_engine(bad, kPatience);
    EXPECT_FALSE(wrong.works) << bad;
    EXPECT_THAT(wrong.found, HasSubstr("--engine")) << bad;
    EXPECT_EQ(wrong.found.find("secret"), std::string::npos);
  }
}

}  // namespace
}  // namespace refit::cli
