// Where metrics may listen, and what the listener answers.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "observe/observe.h"

namespace refit::observe {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(Endpoint, ReadsHostAndPort) {
  const auto v4 = parse_endpoint("127.0.0.1:9464", "--metrics"), v6 = parse_endpoint("[::1]:0", "--metrics"),
             named = parse_endpoint("localhost:1", "--metrics"), all = parse_endpoint("0.0.0.0:65535", "--metrics"),
             any6 = parse_endpoint("[::]:5", "--metrics");
  for (const auto* e : {&v4, &v6, &named, &all, &any6}) ASSERT_TRUE(e->ok());
  EXPECT_TRUE(v4->loopback && v6->loopback && named->loopback);
  EXPECT_FALSE(all->loopback);
  EXPECT_FALSE(any6->loopback);
  EXPECT_EQ(v6->host, "::1");
  EXPECT_EQ(all->port, 65535);
}

TEST(Endpoint, RefusesWhatIsNone) {
  for (const char* bad : {"", "9464", ":9464", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:65536", "::1:9464",
                          "[127.0.0.1]:1", "host.example:1", "127.0.0.1:1x", "127.0.0.1:-1", "[]:1"}) {
    const auto e = parse_endpoint(bad, "--metrics");
    ASSERT_FALSE(e.ok()) << bad;
    EXPECT_EQ(e.error().code, Code::kInvalid);
    EXPECT_THAT(e.error().message, HasSubstr("--metrics '" + std::string(bad) + "'"));
  }
}

TEST(Endpoint, BeyondLoopbackNeedsATokenOrPublicSpelledOut) {
  const auto allowed = [](const std::string& address, const std::string& token, bool everybody) {
    return may_listen(*parse_endpoint(address, "--metrics"), {address, token, everybody});
  };
  EXPECT_TRUE(allowed("127.0.0.1:1", "", false).ok());
  EXPECT_TRUE(allowed("[::1]:1", "", false).ok());
  EXPECT_TRUE(allowed("0.0.0.0:1", "0123456789abcdef", false).ok());
  EXPECT_TRUE(allowed("0.0.0.0:1", "", true).ok());
  const Status open = allowed("0.0.0.0:1", "", false);
  ASSERT_FALSE(open.ok());
  EXPECT_THAT(open.error().message, HasSubstr("--metrics-token"));
  EXPECT_THAT(open.error().message, HasSubstr("--metrics-public"));
  EXPECT_FALSE(allowed("10.1.2.3:1", "", false).ok());
  EXPECT_FALSE(allowed("0.0.0.0:1", "0123456789abcdef", true).ok());
}

struct TokenFile {
  std::string path = testing::TempDir() + "observe_token." + std::to_string(::getpid());
  TokenFile(const std::string& text, mode_t mode) {
    std::ofstream(path) << text;
    ::chmod(path.c_str(), mode);
  }
  ~TokenFile() { ::unlink(path.c_str()); }
};

TEST(Token, ComesFromAFileThatOthersMayNotRead) {
  EXPECT_EQ(*read_token(TokenFile("0123456789abcdef\nmore\n", 0600).path), "0123456789abcdef");
  EXPECT_FALSE(read_token("/nonexistent").ok());
  const TokenFile open("0123456789abcdef\n", 0640);
  EXPECT_THAT(read_token(open.path).error().message, HasSubstr("chmod 600"));
  const TokenFile brief("secret\n", 0600);
  EXPECT_THAT(read_token(brief.path).error().message, HasSubstr("shorter"));
  EXPECT_THAT(read_token(brief.path).error().message, Not(HasSubstr("secret")));
}

std::string ask(const std::string& url, const std::string& head) {
  const std::size_t colon = url.rfind(':');
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<std::uint16_t>(std::stoi(url.substr(colon + 1))));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int s = ::socket(AF_INET, SOCK_STREAM, 0);
  const timeval patience{5, 0};
  ::setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  std::string out;
  if (::connect(s, reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0) {
    const std::string request = head + "\r\nHost: x\r\n\r\n";
    [[maybe_unused]] const auto sent = ::send(s, request.data(), request.size(), MSG_NOSIGNAL);
    char buffer[4096];
    for (ssize_t n = 0; (n = ::recv(s, buffer, sizeof buffer, 0)) > 0;) out.append(buffer, static_cast<std::size_t>(n));
  }
  ::close(s);
  return out;
}

TEST(Listener, AnswersGetMetricsOnly) {
  const auto l = Listener::start({.address = "127.0.0.1:0", .token = {}}, [] { return std::string("refit_version 4\n"); });
  ASSERT_TRUE(l.ok()) << l.error().to_string();
  const std::string& url = (*l)->url();
  const std::string good = ask(url, "GET /metrics HTTP/1.1");
  EXPECT_THAT(good, HasSubstr("200 OK"));
  EXPECT_THAT(good, HasSubstr("text/plain; version=0.0.4"));
  EXPECT_TRUE(good.ends_with("\r\n\r\nrefit_version 4\n")) << good;
  EXPECT_THAT(ask(url, "GET / HTTP/1.1"), HasSubstr("404"));
  EXPECT_THAT(ask(url, "GET /metrics/../etc/passwd HTTP/1.1"), Not(HasSubstr("root:")));
  EXPECT_THAT(ask(url, "POST /metrics HTTP/1.1\r\nContent-Length: 0"), HasSubstr("405"));
  EXPECT_THAT(ask(url, "DELETE /metrics HTTP/1.1"), HasSubstr("405"));
}

TEST(Listener, AsksForItsToken) {
  const std::string token = "0123456789abcdef";
  const auto l = Listener::start({.address = "127.0.0.1:0", .token = token}, [] { return std::string("refit_version 4\n"); });
  ASSERT_TRUE(l.ok());
  const auto with = [&](const std::string& header) { return ask((*l)->url(), "GET /metrics HTTP/1.1" + header); };
  EXPECT_THAT(with("\r\nAuthorization: Bearer " + token), HasSubstr("refit_version 4"));
  for (const std::string& wrong : {std::string(), "\r\nAuthorization: Bearer " + token + "0",
                                   std::string("\r\nAuthorization: Bearer "), "\r\nAuthorization: Basic " + token,
                                   "\r\nAuthorization: Bearer " + token.substr(1)}) {
    const std::string answer = with(wrong);
    EXPECT_THAT(answer, HasSubstr("401")) << wrong;
    EXPECT_THAT(answer, Not(HasSubstr("refit_version"))) << wrong;
    EXPECT_THAT(answer, Not(HasSubstr(token))) << wrong;
  }
}

TEST(Listener, SaysWhenItCannotListen) {
  const auto first = Listener::start({.address = "127.0.0.1:0", .token = {}}, [] { return std::string(); });
  ASSERT_TRUE(first.ok());
  const std::string url = (*first)->url();
  const std::string taken = url.substr(7, url.find("/metrics") - 7);
  const auto second = Listener::start({.address = taken, .token = {}}, [] { return std::string(); });
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code, Code::kBusy);
  EXPECT_THAT(second.error().message, HasSubstr(taken));
  EXPECT_FALSE(Listener::start({.address = "0.0.0.0:0", .token = {}}, [] { return std::string(); }).ok());
}

}  // namespace
}  // namespace refit::observe
