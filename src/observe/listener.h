// Listener: answers GET /metrics. Where it may listen is decided before a socket is opened.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "core/core.h"

namespace refit::observe {

struct ListenOptions {
  std::string address;     // HOST:PORT; HOST a number or localhost, an IPv6 number in brackets; PORT 0: any
  std::string token;       // asked for as a bearer token; empty: none
  bool everybody = false;  // `public`: an address beyond loopback without a token
};

struct Endpoint {
  std::string host;  // without brackets
  std::uint16_t port = 0;
  bool loopback = false;
};
// kInvalid naming `option`.
Result<Endpoint> parse_endpoint(const std::string& address, const std::string& option);
// Loopback, a token, or `public` in so many words. kInvalid saying which options would do.
Status may_listen(const Endpoint& at, const ListenOptions& options);
// The first line of a file that only its owner may read (rule Z4).
Result<std::string> read_token(const std::string& path);

// *thread-safe*. Runs threads of its own until it dies; `text` is called on them.
class Listener {
 public:
  static Result<std::unique_ptr<Listener>> start(const ListenOptions& options, std::function<std::string()> text);
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;
  const std::string& url() const;  // http://HOST:PORT/metrics

 private:
  struct Impl;
  explicit Listener(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace refit::observe
