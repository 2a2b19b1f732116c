// A child process with lines in and out. It is killed and waited for when the object dies.
#pragma once
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "core/core.h"

namespace refit::procs {

class Child {
 public:
  explicit Child(std::vector<std::string> args) {
    int in[2], out[2];
    EXPECT_EQ(::pipe2(in, O_CLOEXEC), 0);
    EXPECT_EQ(::pipe2(out, O_CLOEXEC), 0);
    args.insert(args.begin(), TRANSPORT_PEER);
    std::vector<char*> argv;
    for (std::string& a : args) argv.push_back(a.data());
    argv.push_back(nullptr);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::dup2(in[0], 0);
      ::dup2(out[1], 1);
      ::execv(argv[0], argv.data());
      ::_exit(127);
    }
    ::close(in[0]);
    ::close(out[1]);
    to_ = Fd(in[1]);
    from_ = Fd(out[0]);
  }
  ~Child() { kill(); }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  void write(const std::string& line) {
    const std::string whole = line + "\n";
    std::size_t done = 0;
    while (done < whole.size()) {
      const ssize_t n = ::write(to_.get(), whole.data() + done, whole.size() - done);
      if (n <= 0) return;
      done += static_cast<std::size_t>(n);
    }
  }
  // The next line, or "" after `seconds` or at the end of the process.
  std::string read(double seconds = 20) {
    const Deadline deadline = Deadline::after_s(seconds);
    while (true) {
      if (const auto end = have_.find('\n'); end != std::string::npos) {
        std::string line = have_.substr(0, end);
        have_.erase(0, end + 1);
        return line;
      }
      pollfd p{from_.get(), POLLIN, 0};
      if (::poll(&p, 1, deadline.left_ms()) <= 0) return "";
      char buffer[4096];
      const ssize_t n = ::read(from_.get(), buffer, sizeof buffer);
      if (n <= 0) return "";
      have_.append(buffer, static_cast<std::size_t>(n));
    }
  }
  std::string ask(const std::string& line, double seconds = 20) {
    write(line);
    return read(seconds);
  }
  void signal(int number) const { ::kill(pid_, number); }
  void stop() const {
    signal(SIGSTOP);
    int status = 0;
    ::waitpid(pid_, &status, WUNTRACED);
  }
  void resume() const { signal(SIGCONT); }
  void kill() {
    if (pid_ <= 0) return;
    signal(SIGKILL);
    wait();
  }
  // Of a process that ends by itself; as waitpid() tells it.
  int exit_status() { return wait(); }
  void quit() {
    write("quit");
    wait();
  }

 private:
  int wait() {
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    return status;
  }
  pid_t pid_ = -1;
  Fd to_, from_;
  std::string have_;
};

}  // namespace refit::procs
