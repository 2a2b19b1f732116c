#include <fmt/format.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "cli/doctor/finding.h"
#include "store/store.h"

namespace refit::cli {
namespace {

constexpr std::size_t kMaxAnswer = 1 << 20;

Status write_and_read(store::ObjectStore& s, Deadline deadline) {
  const std::string key = "doctor/" + hash128(std::to_string(system_env().random_u64())).hex();
  const std::string text = "refit doctor";
  const auto bytes = std::as_bytes(std::span(text));
  REFIT_ASSIGN(const bool fresh, s.put_new(key, bytes, deadline));
  if (!fresh) return Error(Code::kMismatch, "it says that a key which never was is taken");
  const auto again = s.put_new(key, bytes, deadline);
  const auto read = s.get(key, 1024, deadline);
  const Status removed = s.remove(key, deadline);
  REFIT_TRY(again);
  if (*again) return Error(Code::kUnsupported, "it writes over what is there although If-None-Match forbids it");
  REFIT_TRY(read);
  if (!*read || !std::ranges::equal(**read, bytes))
    return Error(Code::kCorrupt, "it returned other bytes than were written");
  return removed;
}

struct Url {
  std::string host, port = "80";
};
Result<Url> parse_url(const std::string& url) {
  constexpr std::string_view kHttp = "http://";
  const auto bad = [] {
    return Error(Code::kInvalid, "--engine wants http://HOST:PORT and nothing else (https is not tried here)");
  };
  if (!url.starts_with(kHttp)) return bad();
  std::string rest = url.substr(kHttp.size());
  while (!rest.empty() && rest.back() == '/') rest.pop_back();
  if (rest.empty() || rest.find_first_of("/@?# ") != std::string::npos) return bad();
  Url out;
  const std::size_t colon = rest.rfind(':');
  const bool port = colon != std::string::npos && rest.find(']', colon) == std::string::npos;
  out.host = port ? rest.substr(0, colon) : rest;
  if (port) out.port = rest.substr(colon + 1);
  if (out.host.size() > 2 && out.host.front() == '[') out.host = out.host.substr(1, out.host.size() - 2);
  if (out.host.empty() || out.port.empty() || out.port.find_first_not_of("0123456789") != std::string::npos)
    return bad();
  return out;
}

Status wait_for(int fd, short what, Deadline deadline) {
  pollfd p{fd, what, 0};
  const int n = ::poll(&p, 1, static_cast<int>(deadline.left_ns() / 1'000'000) + 1);
  if (n > 0) return {};
  return Error(Code::kTimeout, "did not answer in time");
}

Result<Fd> connect_tcp(const Url& at, Deadline deadline) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int e = ::getaddrinfo(at.host.c_str(), at.port.c_str(), &hints, &found); e != 0)
    return Error(Code::kPeerLost, std::string("no such host: ") + ::gai_strerror(e));
  Error last(Code::kPeerLost, "no address");
  for (const addrinfo* a = found; a != nullptr; a = a->ai_next) {
    Fd fd(::socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    int error = fd.valid() && ::connect(fd.get(), a->ai_addr, a->ai_addrlen) == 0 ? 0 : errno;
    if (error == EINPROGRESS) {
      socklen_t size = sizeof error;
      if (const Status s = wait_for(fd.get(), POLLOUT, deadline); !s.ok()) {
        last = s.error();
        continue;
      }
      ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    }
    if (error == 0) {
      ::freeaddrinfo(found);
      return fd;
    }
    last = Error(Code::kPeerLost, std::strerror(error));
  }
  ::freeaddrinfo(found);
  return last;
}

struct Answer {
  int status = 0;
  std::string body;
};
Result<Answer> get(const Url& at, const std::string& path, Deadline deadline) {
  REFIT_ASSIGN(const Fd fd, connect_tcp(at, deadline));
  const std::string request = "GET " + path + " HTTP/1.0\r\nHost: " + at.host + "\r\nConnection: close\r\n\r\n";
  if (::send(fd.get(), request.data(), request.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(request.size()))
    return Error(Code::kPeerLost, std::strerror(errno));
  std::string all;
  char buffer[16384];
  while (all.size() < kMaxAnswer) {
    REFIT_TRY(wait_for(fd.get(), POLLIN, deadline));
    const ssize_t n = ::recv(fd.get(), buffer, sizeof buffer, 0);
    if (n == 0) break;
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (n < 0) return Error(Code::kPeerLost, std::strerror(errno));
    all.append(buffer, static_cast<std::size_t>(n));
  }
  Answer out;
  const std::size_t end = all.find("\r\n\r\n");
  if (!all.starts_with("HTTP/1.") || end == std::string::npos || all.size() < 12)
    return Error(Code::kCorrupt, "what answers there speaks no HTTP");
  out.status = std::atoi(all.c_str() + 9);
  out.body = all.substr(end + 4);
  return out;
}

std::string version_in(const std::string& body) {
  const nlohmann::json j = nlohmann::json::parse(body, nullptr, false);
  return j.is_object() && j.contains("version") && j["version"].is_string() ? j["version"].get<std::string>() : "";
}

// What Refit was tried with, as docs/guides say; other releases need `untested_version`.
constexpr std::string_view kVllm = "0.32", kSglang = "0.5.23";

Finding tried_with(const std::string& kind, const std::string& version, std::string_view known,
                   const std::string& quirks) {
  const bool same = version.starts_with(known);
  return {"engine", same, kind + " " + version + "; " + quirks,
          "a release that Refit was tried with: " + std::string(known),
          same ? "" : "take that release, or set init_info.untested_version at your own risk"};
}

}  // namespace

Finding try_store(const std::string& url, const std::string& region, const std::string& endpoint,
                  const std::string& profile, double patience_s) {
  store::S3Options s3;
  s3.region = region, s3.endpoint = endpoint, s3.profile = profile;
  const Deadline deadline = Deadline::after_s(patience_s);
  s3.cancelled = [deadline] { return deadline.over(); };
  const auto opened = store::open_store(url, "--store", std::move(s3));
  const Status tried = opened.ok() ? write_and_read(**opened, deadline) : Status(opened.error());
  return finding("store", tried,
                 (opened.ok() ? (*opened)->name() : "") + ": wrote, was refused a second time, read, removed",
                 "publish --to, serve --follow",
                 "check bucket, credentials and --endpoint-url; the server must honour If-None-Match");
}

Finding look_for_credentials() {
  const auto place = store::resolve({.bucket = "doctor", .prefix = {}, .region = {}, .endpoint = {}, .profile = {}});
  return {"store-credentials", place.ok(),
          place.ok() ? "from " + place->credentials.from + ", server " + place->host : "none",
          "publish --to s3://…; give --store URL to try it",
          place.ok() ? "" : "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile"};
}

Finding try_engine(const std::string& url, double patience_s) {
  const Deadline deadline = Deadline::after_s(patience_s);
  const std::string needed = "a vLLM or SGLang server";
  const auto failed = [&](const Error& e) {
    return Finding{"engine", false, e.to_string(), needed, "start it, or give its http://HOST:PORT"};
  };
  const Result<Url> at = parse_url(url);
  if (!at.ok()) return failed(at.error());
  const Result<Answer> vllm = get(*at, "/version", deadline);
  if (!vllm.ok()) return failed(vllm.error());
  if (vllm->status == 200 && !version_in(vllm->body).empty()) {
    const Result<Answer> paused = get(*at, "/is_paused", deadline);
    if (!paused.ok()) return failed(paused.error());
    Finding f = tried_with("vLLM", version_in(vllm->body), kVllm,
                           "finish_weight_update clears no cache (Refit resets it), a commit pauses in flight");
    if (paused->status != 200)
      return {"engine", false, f.found + fmt::format("; /is_paused answers {}", paused->status),
              "its development endpoints, for pause and resume", "start it with VLLM_SERVER_DEV_MODE=1"};
    return f;
  }
  const Result<Answer> sglang = get(*at, "/server_info", deadline);
  if (!sglang.ok()) return failed(sglang.error());
  if (sglang->status == 200 && !version_in(sglang->body).empty())
    return tried_with(
        "SGLang", version_in(sglang->body), kSglang,
        "flush_cache fails while requests run (Refit pauses first), a failed update leaves weights mixed");
  return failed(Error(Code::kUnsupported, fmt::format("answers, but names no version (/version {}, /server_info {})",
                                                      vllm->status, sglang->status)));
}

}  // namespace refit::cli
