#include "store/http.h"

#include <curl/curl.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>

namespace refit::store {
namespace {

struct CurlLibrary {
  CurlLibrary() { curl_global_init(CURL_GLOBAL_DEFAULT); }
};

struct FreeList {
  void operator()(curl_slist* l) const { curl_slist_free_all(l); }
};

// What may pass by itself: everything but names and certificates.
Code code_of(CURLcode c) {
  switch (c) {
    case CURLE_URL_MALFORMAT:
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_CERTPROBLEM:
      return Code::kInvalid;
    case CURLE_OPERATION_TIMEDOUT:
      return Code::kTimeout;
    default:
      return Code::kPeerLost;
  }
}

}  // namespace

bool is_link_local(const sockaddr& address) {
  if (address.sa_family == AF_INET)
    return (ntohl(reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr) >> 16) == 0xa9fe;
  if (address.sa_family != AF_INET6) return false;
  const in6_addr& six = reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
  return IN6_IS_ADDR_LINKLOCAL(&six) ||
         (IN6_IS_ADDR_V4MAPPED(&six) && six.s6_addr[12] == 0xa9 && six.s6_addr[13] == 0xfe);
}

struct Http::Exchange {
  const HttpRequest& request;
  HttpAnswer answer;
  CURL* handle = nullptr;
  std::size_t sent = 0;
  bool too_long = false, link_local = false;

  static curl_socket_t on_open(void* self, curlsocktype, curl_sockaddr* at) {
    auto& x = *static_cast<Exchange*>(self);
    x.link_local = is_link_local(at->addr);
    return x.link_local ? CURL_SOCKET_BAD : ::socket(at->family, at->socktype | SOCK_CLOEXEC, at->protocol);
  }

  static std::size_t on_read(char* to, std::size_t size, std::size_t n, void* self) {
    auto& x = *static_cast<Exchange*>(self);
    const std::size_t part = std::min(size * n, x.request.body.size() - x.sent);
    if (part > 0) std::memcpy(to, x.request.body.data() + x.sent, part);
    x.sent += part;
    return part;
  }
  static int on_seek(void* self, curl_off_t offset, int origin) {
    auto& x = *static_cast<Exchange*>(self);
    if (origin != SEEK_SET || offset < 0 || offset > std::ssize(x.request.body)) return CURL_SEEKFUNC_FAIL;
    x.sent = static_cast<std::size_t>(offset);
    return CURL_SEEKFUNC_OK;
  }
  static std::size_t on_header(char* from, std::size_t size, std::size_t n, void* self) {
    auto& x = *static_cast<Exchange*>(self);
    const std::string_view line(from, size * n);
    if (line.starts_with("HTTP/")) x.answer.headers.clear();  // of a "100 Continue" before
    if (const std::size_t colon = line.find(':'); colon != std::string_view::npos && x.answer.headers.size() < 100) {
      std::string name(line.substr(0, colon));
      std::transform(name.begin(), name.end(), name.begin(),
                     [](unsigned char c) { return static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c); });
      const std::size_t lo = line.find_first_not_of(" \t", colon + 1), hi = line.find_last_not_of(" \t\r\n");
      x.answer.headers[name] = lo == std::string_view::npos || hi < lo ? "" : line.substr(lo, hi - lo + 1);
    }
    return size * n;
  }
  static std::size_t on_write(char* from, std::size_t size, std::size_t n, void* self) {
    auto& x = *static_cast<Exchange*>(self);
    const std::size_t part = size * n;
    long status = 0;
    curl_easy_getinfo(x.handle, CURLINFO_RESPONSE_CODE, &status);
    const bool placed = !x.request.into.empty() && status >= 200 && status < 300;
    const auto have = static_cast<std::size_t>(x.answer.received);
    const std::size_t room = placed ? x.request.into.size() : static_cast<std::size_t>(x.request.limit);
    if (part > room - have) {
      x.too_long = true;
      return 0;
    }
    if (placed) {
      std::memcpy(x.request.into.data() + have, from, part);
    } else {
      const View bytes = std::as_bytes(std::span(from, part));
      x.answer.body.insert(x.answer.body.end(), bytes.begin(), bytes.end());
    }
    x.answer.received += static_cast<std::int64_t>(part);
    return part;
  }
};

Http::Http() { static const CurlLibrary library; }
Http::~Http() {
  for (void* h : idle_) curl_easy_cleanup(h);
}

void* Http::take() {
  const std::lock_guard lock(mutex_);
  if (idle_.empty()) return curl_easy_init();
  void* h = idle_.back();
  idle_.pop_back();
  return h;
}
void Http::give(void* handle) {
  curl_easy_reset(handle);  // keeps its connections
  const std::lock_guard lock(mutex_);
  idle_.push_back(handle);
}

Result<HttpAnswer> Http::perform(const HttpRequest& request, std::int64_t stall_ns, Deadline deadline,
                                 const std::function<bool()>& cancelled) {
  if (deadline.over()) return Error(Code::kTimeout, "the deadline passed");
  CURL* h = take();
  if (h == nullptr) return Error(Code::kInternal, "libcurl gives no handle");
  Exchange x{.request = request, .answer = {}, .handle = h};
  std::unique_ptr<curl_slist, FreeList> headers;
  for (const auto& [name, value] : request.headers)
    headers.reset(curl_slist_append(headers.release(), (name + ": " + value).c_str()));
  headers.reset(curl_slist_append(headers.release(), "Expect:"));  // no pause before a body
  char text[CURL_ERROR_SIZE] = "";
  const auto stall_s = std::max<long>(1, static_cast<long>(stall_ns / kNsPerSecond));
  curl_easy_setopt(h, CURLOPT_URL, request.url.c_str());
  curl_easy_setopt(h, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(h, CURLOPT_FOLLOWLOCATION, 0L);
  curl_easy_setopt(h, CURLOPT_PATH_AS_IS, 1L);
  curl_easy_setopt(h, CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  curl_easy_setopt(h, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(h, CURLOPT_ERRORBUFFER, text);
  curl_easy_setopt(h, CURLOPT_HTTPHEADER, headers.get());
  curl_easy_setopt(h, CURLOPT_CONNECTTIMEOUT_MS, std::min<long>(10'000, static_cast<long>(deadline.left_ms())));
  curl_easy_setopt(h, CURLOPT_TIMEOUT_MS, static_cast<long>(deadline.left_ms()));
  curl_easy_setopt(h, CURLOPT_LOW_SPEED_LIMIT, 1L);
  curl_easy_setopt(h, CURLOPT_LOW_SPEED_TIME, stall_s);
  curl_easy_setopt(h, CURLOPT_HEADERFUNCTION, &Exchange::on_header);
  curl_easy_setopt(h, CURLOPT_HEADERDATA, &x);
  curl_easy_setopt(h, CURLOPT_WRITEFUNCTION, &Exchange::on_write);
  curl_easy_setopt(h, CURLOPT_WRITEDATA, &x);
  curl_easy_setopt(h, CURLOPT_OPENSOCKETFUNCTION, &Exchange::on_open);
  curl_easy_setopt(h, CURLOPT_OPENSOCKETDATA, &x);
  if (cancelled) {
    curl_easy_setopt(h, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(
        h, CURLOPT_XFERINFOFUNCTION, +[](void* f, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
          return (*static_cast<const std::function<bool()>*>(f))() ? 1 : 0;
        });
    curl_easy_setopt(h, CURLOPT_XFERINFODATA, const_cast<std::function<bool()>*>(&cancelled));
  }
  if (request.method == "HEAD") {
    curl_easy_setopt(h, CURLOPT_NOBODY, 1L);
  } else if (request.method == "PUT" || !request.body.empty()) {
    curl_easy_setopt(h, CURLOPT_UPLOAD, 1L);
    curl_easy_setopt(h, CURLOPT_READFUNCTION, &Exchange::on_read);
    curl_easy_setopt(h, CURLOPT_READDATA, &x);
    curl_easy_setopt(h, CURLOPT_SEEKFUNCTION, &Exchange::on_seek);
    curl_easy_setopt(h, CURLOPT_SEEKDATA, &x);
    curl_easy_setopt(h, CURLOPT_INFILESIZE_LARGE, static_cast<curl_off_t>(request.body.size()));
  } else if (request.method == "POST") {
    curl_easy_setopt(h, CURLOPT_POST, 1L);
    curl_easy_setopt(h, CURLOPT_POSTFIELDSIZE, 0L);
  }
  if (request.method != "HEAD") curl_easy_setopt(h, CURLOPT_CUSTOMREQUEST, request.method.c_str());
  const CURLcode code = curl_easy_perform(h);
  long status = 0;
  curl_easy_getinfo(h, CURLINFO_RESPONSE_CODE, &status);
  give(h);
  if (x.too_long) return Error(Code::kCorrupt, "the answer is longer than what was asked for");
  if (code == CURLE_ABORTED_BY_CALLBACK) return Error(Code::kCancelled, "asked to end");
  if (code != CURLE_OK && x.link_local) return Error(Code::kInvalid, "link-local addresses are refused");
  if (code != CURLE_OK) return Error(code_of(code), *text != 0 ? text : curl_easy_strerror(code));
  x.answer.status = static_cast<int>(status);
  return std::move(x.answer);
}

}  // namespace refit::store
