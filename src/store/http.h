// One HTTP exchange over libcurl: no redirects, no credentials of curl's own, every wait bounded.
#pragma once
#include <sys/socket.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "store/object_store.h"
#include "store/s3_sign.h"

namespace refit::store {

// 169.254.0.0/16, also inside of IPv6, and fe80::/10: there machines' own credentials are served.
bool is_link_local(const sockaddr& address);

struct HttpRequest {
  std::string method, url;
  Fields headers{};
  View body{};
  std::span<std::byte> into{};   // the body of a 2xx answer goes here; not longer than this
  std::int64_t limit = 1 << 20;  // else: most bytes of a body
};
struct HttpAnswer {
  int status = 0;
  std::map<std::string, std::string> headers;  // lower-case names
  Bytes body;                                  // unless it went elsewhere
  std::int64_t received = 0;                   // body bytes
};

// *thread-safe*: connections are kept and shared out.
class Http {
 public:
  Http();
  ~Http();
  Http(const Http&) = delete;
  Http& operator=(const Http&) = delete;
  // Errors: kPeerLost or kTimeout for what may pass, kCorrupt for an answer beyond its bounds, kInvalid for what will
  // not pass (certificates, host names, link-local addresses).
  Result<HttpAnswer> perform(const HttpRequest& request, std::int64_t stall_ns, Deadline deadline,
                             const std::function<bool()>& cancelled = {});

 private:
  struct Exchange;
  void* take();
  void give(void* handle);
  std::mutex mutex_;
  std::vector<void*> idle_;  // CURL handles
};

}  // namespace refit::store
