#include "observe/listener.h"

#include <arpa/inet.h>
#include <civetweb.h>
#include <sys/stat.h>

#include <array>
#include <charconv>
#include <cstring>
#include <fstream>

namespace refit::observe {
namespace {

constexpr const char* kThreads = "2";
constexpr const char* kTimeoutMs = "5000";  // of a request that stands still
constexpr std::size_t kShortestToken = 16;

bool same_text(std::string_view a, std::string_view b) {  // in a time that tells nothing of where they differ
  unsigned different = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const char other = b.empty() ? '\0' : b[i % b.size()];
    different |= static_cast<unsigned>(a[i] != other);
  }
  return different == 0;
}

int answer(mg_connection* c, const char* status, const char* type, const std::string& more, const std::string& body) {
  const std::string head = std::string("HTTP/1.1 ") + status + "\r\nContent-Type: " + type +
                           "\r\nContent-Length: " + std::to_string(body.size()) + "\r\nCache-Control: no-store\r\n" + more +
                           "Connection: close\r\n\r\n";
  mg_write(c, head.data(), head.size());
  mg_write(c, body.data(), body.size());
  return 1;  // handled
}

}  // namespace

struct Listener::Impl {
  std::string token, url;
  std::function<std::string()> text;
  mg_context* server = nullptr;
  ~Impl() {
    if (server != nullptr) mg_stop(server);
  }
  static int handle(mg_connection* c, void* self) {
    const Impl& l = *static_cast<const Impl*>(self);
    const mg_request_info* r = mg_get_request_info(c);
    const std::string_view method = r->request_method, path = r->local_uri == nullptr ? "" : r->local_uri;
    if (!l.token.empty()) {
      const char* said = mg_get_header(c, "Authorization");
      if (said == nullptr || !same_text(said, "Bearer " + l.token))
        return answer(c, "401 Unauthorized", "text/plain", "WWW-Authenticate: Bearer\r\n", "a bearer token is needed\n");
    }
    if (method != "GET") return answer(c, "405 Method Not Allowed", "text/plain", "Allow: GET\r\n", "only GET\n");
    if (path != "/metrics") return answer(c, "404 Not Found", "text/plain", "", "there is /metrics here\n");
    return answer(c, "200 OK", "text/plain; version=0.0.4; charset=utf-8", "", l.text());
  }
};

Result<Endpoint> parse_endpoint(const std::string& address, const std::string& option) {
  const auto bad = [&](const std::string& why) {
    return Error(Code::kInvalid, option + " '" + address + "': " + why + "; it is HOST:PORT, e.g. 127.0.0.1:9464");
  };
  const std::size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon == 0) return bad("no host or no port");
  Endpoint out;
  const std::string_view port = std::string_view(address).substr(colon + 1);
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), out.port);
  if (port.empty() || error != std::errc() || end != port.data() + port.size()) return bad("the port is no number up to 65535");
  out.host = address.substr(0, colon);
  const bool brackets = out.host.size() > 2 && out.host.front() == '[' && out.host.back() == ']';
  if (brackets) out.host = out.host.substr(1, out.host.size() - 2);
  if (out.host == "localhost") out.host = "127.0.0.1";
  in_addr v4{};
  in6_addr v6{};
  if (!brackets && ::inet_pton(AF_INET, out.host.c_str(), &v4) == 1)
    out.loopback = (ntohl(v4.s_addr) >> 24) == 127;
  else if (brackets && ::inet_pton(AF_INET6, out.host.c_str(), &v6) == 1)
    out.loopback = IN6_IS_ADDR_LOOPBACK(&v6);
  else
    return bad("the host is neither localhost nor an address (IPv6 in brackets)");
  return out;
}

Status may_listen(const Endpoint& at, const ListenOptions& options) {
  if (!options.token.empty() && options.everybody)
    return Error(Code::kInvalid, "--metrics-token and --metrics-public say opposite things: give one");
  if (at.loopback || !options.token.empty() || options.everybody) return {};
  return Error(Code::kInvalid, "--metrics " + options.address +
                                   " is reached from other hosts: give --metrics-token FILE, a loopback address, or "
                                   "--metrics-public if everybody may read it");
}

Result<std::string> read_token(const std::string& path) {
  struct stat s {};
  if (::stat(path.c_str(), &s) != 0 || !S_ISREG(s.st_mode))
    return Error(Code::kInvalid, "--metrics-token " + path + ": no such file");
  if ((s.st_mode & 077) != 0)
    return Error(Code::kInvalid, "--metrics-token " + path + ": others may read it; chmod 600 it");
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
  if (line.size() < kShortestToken)
    return Error(Code::kInvalid, "--metrics-token " + path + ": its first line is shorter than " +
                                     std::to_string(kShortestToken) + " characters")
        .amounts(static_cast<std::int64_t>(kShortestToken), static_cast<std::int64_t>(line.size()));
  return line;
}

Listener::Listener(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Listener::~Listener() = default;
const std::string& Listener::url() const { return impl_->url; }

Result<std::unique_ptr<Listener>> Listener::start(const ListenOptions& options, std::function<std::string()> text) {
  REFIT_ASSIGN(const Endpoint at, parse_endpoint(options.address, "--metrics"));
  REFIT_TRY(may_listen(at, options));
  auto impl = std::make_unique<Impl>();
  impl->token = options.token;
  impl->text = std::move(text);
  static const unsigned library = mg_init_library(MG_FEATURES_DEFAULT);
  (void)library;
  const bool v6 = at.host.find(':') != std::string::npos;
  const std::string host = v6 ? "[" + at.host + "]" : at.host;
  const std::string ports = host + ":" + std::to_string(at.port);
  const std::array<const char*, 9> config = {"listening_ports",    ports.c_str(), "num_threads", kThreads,
                                             "request_timeout_ms", kTimeoutMs,    "enable_keep_alive", "no",
                                             nullptr};
  const mg_callbacks callbacks{};
  errno = 0;
  impl->server = mg_start(&callbacks, nullptr, const_cast<const char**>(config.data()));
  if (impl->server == nullptr)
    return Error(Code::kBusy, "--metrics " + options.address + ": cannot listen there: " +
                                  (errno != 0 ? std::strerror(errno) : "the address is taken or not of this host"));
  mg_set_request_handler(impl->server, "/", Impl::handle, impl.get());
  std::array<mg_server_port, 4> bound{};
  if (mg_get_server_ports(impl->server, static_cast<int>(bound.size()), bound.data()) < 1)
    return Error(Code::kInternal, "--metrics " + options.address + ": the server names no port");
  impl->url = "http://" + host + ":" + std::to_string(bound[0].port) + "/metrics";
  return std::unique_ptr<Listener>(new Listener(std::move(impl)));
}

}  // namespace refit::observe
