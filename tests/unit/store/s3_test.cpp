// S3 without a server: the signature against Amazon's published examples, and where credentials come from.
#include <netinet/in.h>
#include <sys/socket.h>

#include <fstream>
#include <thread>

#include "store/http.h"
#include "store/s3_sign.h"
#include "unit/store/helpers.h"

namespace refit::store::testing {
namespace {

// "Signature Calculations for the Authorization Header", Amazon S3 API Reference; its keys are Amazon's own example.
const Credentials kExample{"AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "", "the example"};
constexpr const char* kNothing = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

std::string signature_of(const ToSign& r) {
  for (const auto& [name, value] : sign(r, kExample, "us-east-1"))
    if (name == "authorization") return value.substr(value.find("Signature=") + 10);
  return "";
}

TEST(S3Sign, AmazonsExamples) {
  ToSign r{.method = "GET",
           .path = "/test.txt",
           .headers = {{"range", "bytes=0-9"}},
           .host = "examplebucket.s3.amazonaws.com"};
  r.payload = kNothing;
  r.date = "20130524T000000Z";
  EXPECT_EQ(signature_of(r), "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
  r.path = "/";
  r.headers = {};
  r.query = {{"lifecycle", ""}};
  EXPECT_EQ(signature_of(r), "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543");
  r.query = {{"prefix", "J"}, {"max-keys", "2"}};
  EXPECT_EQ(signature_of(r), "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
  r.method = "PUT";
  r.query = {};
  r.path = "/" + percent_encode("test$file.text", true);
  r.headers = {{"date", "Fri, 24 May 2013 00:00:00 GMT"}, {"x-amz-storage-class", "REDUCED_REDUNDANCY"}};
  r.payload = "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072";
  EXPECT_EQ(signature_of(r), "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd");
}

TEST(S3Sign, TokenIsSignedAndNamesAreEncoded) {
  Credentials c = kExample;
  c.token = "tok/en";
  ToSign r{.method = "GET", .path = "/", .host = "h"};
  r.payload = kNothing;
  r.date = "20130524T000000Z";
  const Fields f = sign(r, c, "eu-x-1");
  EXPECT_THAT(f, ::testing::Contains(std::pair<std::string, std::string>("x-amz-security-token", "tok/en")));
  EXPECT_THAT(f.back().second,
              ::testing::HasSubstr("SignedHeaders=host;x-amz-content-sha256;x-amz-date;x-amz-security-token"));
  EXPECT_EQ(percent_encode("a b/ü(=)", true), "a%20b/%C3%BC%28%3D%29");
  EXPECT_EQ(query_string({{"b", "1/2"}, {"a", ""}}), "a=&b=1%2F2");
}

class S3Environment : public ::testing::Test {
 protected:
  void SetUp() override {
    home_ = ::testing::TempDir() + "/aws-" + std::to_string(::getpid());
    std::filesystem::create_directories(home_ + "/.aws");
    variables_["HOME"] = home_;
  }
  void TearDown() override { std::filesystem::remove_all(home_); }
  void write(const std::string& name, const std::string& text) { std::ofstream(home_ + "/.aws/" + name) << text; }
  Result<S3Place> place(S3Options o = {}) {
    o.bucket = o.bucket.empty() ? "bucket" : o.bucket;
    o.variable = [this](const std::string& n) {
      const auto it = variables_.find(n);
      return it == variables_.end() ? std::optional<std::string>() : std::optional(it->second);
    };
    return resolve(o);
  }
  std::string home_;
  std::map<std::string, std::string> variables_;
};

TEST_F(S3Environment, ProfilesAndEnvironment) {
  const auto none = place();
  ASSERT_FALSE(none.ok());
  EXPECT_THAT(none.error().message, ::testing::HasSubstr("AWS_ACCESS_KEY_ID"));
  EXPECT_THAT(none.error().message, ::testing::HasSubstr(home_ + "/.aws/credentials"));
  write("credentials",
        "# comment\n[default]\naws_access_key_id = D\naws_secret_access_key=ds\n\n[other]\n"
        "aws_access_key_id=O\naws_secret_access_key = os=/+\naws_session_token=t\n");
  write("config",
        "[profile other]\nregion = eu-west-3\ns3 =\n  addressing_style = path\nendpoint_url = http://store:9000/x/\n");
  S3Place p = place().value();
  EXPECT_EQ(p.credentials.key_id, "D");
  EXPECT_EQ(p.region, "us-east-1");
  EXPECT_EQ(p.scheme + "://" + p.host, "https://s3.us-east-1.amazonaws.com");
  EXPECT_FALSE(p.path_style);
  variables_["AWS_PROFILE"] = "other";
  p = place().value();
  EXPECT_EQ(p.credentials.key_id + p.credentials.secret + p.credentials.token, "Oos=/+t");
  EXPECT_EQ(p.region, "eu-west-3");
  EXPECT_EQ(p.scheme + "://" + p.host + p.base_path, "http://store:9000/x");
  EXPECT_TRUE(p.path_style);
  variables_["AWS_ACCESS_KEY_ID"] = "E";
  EXPECT_FALSE(place().ok());  // half of a pair
  variables_["AWS_SECRET_ACCESS_KEY"] = "es";
  variables_["AWS_REGION"] = "ap-1";
  variables_["AWS_ENDPOINT_URL"] = "https://else";
  p = place().value();
  EXPECT_EQ(p.credentials.key_id, "E");
  EXPECT_EQ(p.credentials.token, "");
  EXPECT_EQ(p.region, "ap-1");
  EXPECT_EQ(p.host, "else");
  S3Options o;
  o.profile = "default";  // asked for by name: the environment's key is another's
  o.region = "r-2";
  o.endpoint = "http://127.0.0.1:8333";
  o.addressing = "virtual";
  p = place(o).value();
  EXPECT_EQ(p.credentials.key_id, "D");
  EXPECT_EQ(p.region, "r-2");
  EXPECT_EQ(p.host, "127.0.0.1:8333");
  EXPECT_FALSE(p.path_style);
}

TEST_F(S3Environment, Refusals) {
  variables_["AWS_ACCESS_KEY_ID"] = "E";
  variables_["AWS_SECRET_ACCESS_KEY"] = "geheim";
  for (const char* endpoint : {"store:9000", "ftp://x", "http://", "http://a b"}) {
    S3Options o;
    o.endpoint = endpoint;
    EXPECT_FALSE(place(o).ok()) << endpoint;
  }
  for (const char* endpoint : {"http://169.254.169.254", "https://169.254.1.2:9000/x", "http://2852039166",
                               "http://[fe80::1]:80", "http://[::ffff:169.254.169.254]"}) {
    S3Options o;
    o.endpoint = endpoint;
    const auto p = place(o);
    ASSERT_FALSE(p.ok()) << endpoint;
    EXPECT_THAT(p.error().message, ::testing::HasSubstr("link-local")) << endpoint;
  }
  // A name may lead there too.
  for (const char* url : {"http://169.254.169.254/", "http://[fe80::1]/"}) {
    const auto answer = Http().perform({.method = "GET", .url = url}, kNsPerSecond, Deadline::after_s(5));
    ASSERT_FALSE(answer.ok()) << url;
    EXPECT_EQ(answer.error().code, Code::kInvalid) << answer.error().to_string();
  }
  for (const char* endpoint : {"http://me:geheim@store:9000", "me:geheim@store"}) {
    S3Options o;
    o.endpoint = endpoint;
    const auto p = place(o);
    ASSERT_FALSE(p.ok()) << endpoint;
    EXPECT_EQ(p.error().message.find("geheim"), std::string::npos) << p.error().message;
  }
  const auto secret = open_store("s3://me:geheim@bucket/x", "--to", {});
  ASSERT_FALSE(secret.ok());
  EXPECT_EQ(secret.error().message.find("geheim"), std::string::npos) << secret.error().message;
  for (const auto& [endpoint, host] : std::map<std::string, std::string>{{"https://store:443", "store"},
                                                                         {"http://store:80/x", "store"},
                                                                         {"http://store:443", "store:443"},
                                                                         {"http://[::1]:80", "[::1]"},
                                                                         {"http://[::1]:9000", "[::1]:9000"}}) {
    S3Options o;
    o.endpoint = endpoint;
    const auto p = place(o);
    ASSERT_TRUE(p.ok()) << endpoint;
    EXPECT_EQ(p->host, host);
  }
  S3Options o;
  o.bucket = "a/b";
  EXPECT_FALSE(place(o).ok());
  EXPECT_FALSE(open_store("ftp://x", "--to", {}).ok());
  EXPECT_FALSE(open_store("s3://", "--to", {}).ok());
  EXPECT_FALSE(open_store("file://relative", "--to", {}).ok());
}

// Answers every request with the same bytes.
class OneAnswer {
 public:
  explicit OneAnswer(std::string answer) : answer_(std::move(answer)), listener_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t n = sizeof(at);
    EXPECT_EQ(::bind(listener_, reinterpret_cast<sockaddr*>(&at), n), 0);
    EXPECT_EQ(::listen(listener_, 8), 0);
    ::getsockname(listener_, reinterpret_cast<sockaddr*>(&at), &n);
    url = "http://127.0.0.1:" + std::to_string(ntohs(at.sin_port));
    thread_ = std::thread([this] {
      for (int peer = -1; (peer = ::accept(listener_, nullptr, nullptr)) >= 0; ::close(peer)) {
        std::string head;
        char c = 0;
        while (!head.ends_with("\r\n\r\n") && ::recv(peer, &c, 1, 0) == 1) head.push_back(c);
        const std::size_t end = answer_.find("\r\n\r\n") + 4;
        const std::string said = head.starts_with("HEAD") ? answer_.substr(0, end) : answer_;
        EXPECT_EQ(::send(peer, said.data(), said.size(), MSG_NOSIGNAL), std::ssize(said));
      }
    });
  }
  ~OneAnswer() {
    ::shutdown(listener_, SHUT_RDWR);
    thread_.join();
    ::close(listener_);
  }
  std::string url;

 private:
  const std::string answer_;
  const int listener_;
  std::thread thread_;
};

// Only the store's own word counts: a proxy's 404 is no absent object.
TEST_F(S3Environment, WhatIsAbsent) {
  const auto asks = [](const std::string& body) {
    OneAnswer server("HTTP/1.1 404 Not Found\r\nConnection: close\r\nContent-Length: " + std::to_string(body.size()) +
                     "\r\n\r\n" + body);
    S3Options o;
    o.endpoint = server.url;
    o.variable = [](const std::string& n) {
      return n.starts_with("AWS_") && n.ends_with("KEY_ID") ? std::optional<std::string>("k")
             : n == "AWS_SECRET_ACCESS_KEY"                 ? std::optional<std::string>("s")
                                                            : std::nullopt;
    };
    auto store = open_store("s3://bucket", "--to", o).value();
    const auto got = store->get("root", 40, soon());
    const auto stat = store->stat("root", soon());
    std::byte b{};
    const auto read = store->read("root", 0, {&b, 1}, soon());
    EXPECT_EQ(got.ok(), stat.ok());
    EXPECT_EQ(got.ok(), read.ok());
    EXPECT_EQ(got.ok(), store->remove("root", soon()).ok());
    EXPECT_TRUE(!got.ok() || (!*got && !*stat && !*read));
    return got.ok();
  };
  EXPECT_TRUE(asks("<Error><Code>NoSuchKey</Code></Error>"));
  EXPECT_FALSE(asks("<html>not here</html>"));
  EXPECT_FALSE(asks("<Error><Code>NoSuchBucket</Code></Error>"));
  EXPECT_FALSE(asks(""));
}

// Nobody listens there: tried until the deadline, and no secret in what is told.
TEST_F(S3Environment, AnAbsentServer) {
  S3Options o;
  o.endpoint = "http://127.0.0.1:1";
  o.variable = [](const std::string& n) {
    if (n == "AWS_ACCESS_KEY_ID") return std::optional<std::string>("keyname");
    if (n == "AWS_SECRET_ACCESS_KEY") return std::optional<std::string>("geheim");
    return std::optional<std::string>();
  };
  auto store = open_store("s3://bucket/some/prefix/", "--to", o);
  ASSERT_TRUE(store.ok());
  EXPECT_EQ((*store)->name(), "s3://bucket/some/prefix");
  const std::int64_t start = monotonic_ns();
  const auto got = (*store)->get("root", 40, Deadline::after_s(0.5));
  ASSERT_FALSE(got.ok());
  EXPECT_EQ(got.error().code, Code::kPeerLost);
  EXPECT_LT(monotonic_ns() - start, 2 * kNsPerSecond);
  EXPECT_GT((*store)->cost().retries, 0);
  EXPECT_EQ(got.error().peer, "s3://bucket/some/prefix");
  EXPECT_EQ(got.error().to_string().find("geheim"), std::string::npos);
}

}  // namespace
}  // namespace refit::store::testing
