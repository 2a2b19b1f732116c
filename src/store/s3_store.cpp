#include "store/s3_store.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <pugixml.hpp>
#include <thread>

#include "store/http.h"

namespace refit::store {
namespace {

constexpr std::int64_t kFirstPauseNs = 100'000'000, kLongestPauseNs = 5 * kNsPerSecond;
constexpr std::size_t kMostText = 300;         // of what a server says, in an error
constexpr std::int64_t kMostKeys = 4'000'000;  // of one listing
constexpr const char* kEmptySha256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

// What an S3 error document says.
struct Said {
  std::string code, message;
};

std::string bounded(std::string text) {
  if (text.size() > kMostText) text.resize(kMostText);
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) > 0x7e) c = ' ';
  return text;
}

Said said_by(const Bytes& body) {
  pugi::xml_document doc;
  if (!doc.load_buffer(body.data(), body.size())) return {};
  const pugi::xml_node error = doc.child("Error");
  return {bounded(error.child_value("Code")), bounded(error.child_value("Message"))};
}

bool may_pass(int status, const std::string& code) {
  if (status == 500 || status == 502 || status == 503 || status == 504 || status == 429) return true;
  return code == "RequestTimeout" || code == "SlowDown" || code == "OperationAborted" ||
         code == "ConditionalRequestConflict";
}

std::string utc(std::time_t at) {
  std::tm t{};
  gmtime_r(&at, &t);
  char text[32];
  std::strftime(text, sizeof(text), "%Y%m%dT%H%M%SZ", &t);
  return text;
}

std::string percent_decode(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    unsigned value = 0;
    if (text[i] == '%' && i + 2 < text.size() &&
        std::from_chars(text.data() + i + 1, text.data() + i + 3, value, 16).ptr == text.data() + i + 3) {
      out.push_back(static_cast<char>(value));
      i += 2;
    } else {
      out.push_back(text[i] == '+' ? ' ' : text[i]);
    }
  }
  return out;
}

struct Call {
  std::string method, key{};  // key relative to the prefix; empty with `bucket`: the bucket itself
  bool bucket = false;
  Fields query{}, headers{};
  View body{};
  std::string payload{};  // SHA-256 of the body in hex; empty: computed
  std::span<std::byte> into{};
  std::int64_t limit = 16 << 20;
  const char* stage = "request";
};

class S3Store final : public ObjectStore {
 public:
  S3Store(const S3Options& o, S3Place place)
      : ObjectStore("s3://" + o.bucket + (o.prefix.empty() ? "" : "/" + o.prefix)),
        options_(o),
        place_(std::move(place)),
        lead_(o.prefix.empty() ? "" : o.prefix + "/") {
    host_ = place_.path_style ? place_.host : o.bucket + "." + place_.host;
    root_ = place_.base_path + (place_.path_style ? "/" + percent_encode(o.bucket, false) : "");
  }

  Status put(const std::string& key, View bytes, const Sha256& sha, Deadline deadline) override {
    if (std::ssize(bytes) > options_.part_bytes) return put_parts(key, bytes, sha, deadline);
    Call c{.method = "PUT", .key = key, .headers = {{"x-amz-meta-sha256", sha.hex()}}, .body = bytes};
    c.payload = sha.hex();
    c.stage = "upload";
    REFIT_ASSIGN(const HttpAnswer a, call(c, deadline));
    return a.status == 200 ? Status() : refusal(c, a);
  }

  Result<bool> put_new(const std::string& key, View bytes, Deadline deadline) override {
    Call c{.method = "PUT", .key = key, .headers = {{"if-none-match", "*"}}, .body = bytes};
    c.stage = "upload";
    REFIT_ASSIGN(const HttpAnswer a, call(c, deadline));
    if (a.status == 412) return false;
    if (a.status != 200) return refusal(c, a);
    return true;
  }

  Result<std::optional<Bytes>> get(const std::string& key, std::int64_t limit, Deadline deadline) override {
    Call c{.method = "GET", .key = key};
    c.limit = std::max<std::int64_t>(limit, 64 << 10);  // an error document may be longer than the object
    c.stage = "download";
    REFIT_ASSIGN(HttpAnswer a, call(c, deadline));
    if (missing(a)) return std::optional<Bytes>();
    if (a.status != 200) return refusal(c, a);
    if (a.received > limit)
      return at(c, {Code::kCorrupt, "the object is longer than it can be"}).amounts(limit, a.received);
    return std::optional<Bytes>(std::move(a.body));
  }

  Result<bool> read(const std::string& key, std::int64_t offset, std::span<std::byte> out, Deadline deadline) override {
    if (out.empty()) return true;
    Call c{.method = "GET", .key = key};
    c.headers = {{"range", "bytes=" + std::to_string(offset) + "-" + std::to_string(offset + std::ssize(out) - 1)}};
    c.into = out;
    c.stage = "download";
    REFIT_ASSIGN(const HttpAnswer a, call(c, deadline));
    if (missing(a)) return false;
    if (a.status == 416)
      return at(c, {Code::kCorrupt, "the object is shorter than its manifest says"})
          .amounts(offset + std::ssize(out), 0);
    if (a.status != 206 && !(a.status == 200 && offset == 0)) return refusal(c, a);
    if (a.received != std::ssize(out))
      return at(c, {Code::kCorrupt, "the object is shorter than its manifest says"})
          .amounts(offset + std::ssize(out), offset + a.received);
    return true;
  }

  Result<std::optional<Stat>> stat(const std::string& key, Deadline deadline) override {
    Call c{.method = "HEAD", .key = key};
    c.stage = "stat";
    REFIT_ASSIGN(const HttpAnswer a, call(c, deadline));
    if (a.status == 404) {  // without a body nobody knows who says so; a GET tells
      std::byte first{};
      REFIT_ASSIGN(const bool there, read(key, 0, {&first, 1}, deadline));
      return there ? Result<std::optional<Stat>>(refusal(c, a)) : std::optional<Stat>();
    }
    if (a.status != 200) return refusal(c, a);
    Stat out;
    const auto length = a.headers.find("content-length"), sha = a.headers.find("x-amz-meta-sha256");
    if (length == a.headers.end() ||
        std::from_chars(length->second.data(), length->second.data() + length->second.size(), out.bytes).ec !=
            std::errc())
      return at(c, {Code::kCorrupt, "the server tells no length"});
    if (sha != a.headers.end()) out.sha256 = Sha256::from_hex(sha->second);
    return std::optional<Stat>(out);
  }

  Result<std::vector<Listed>> list(const std::string& prefix, Deadline deadline) override {
    std::vector<Listed> out;
    std::string token;
    do {
      Call c{.method = "GET", .bucket = true};
      c.query = {{"list-type", "2"}, {"prefix", lead_ + prefix}, {"encoding-type", "url"}};
      if (!token.empty()) c.query.emplace_back("continuation-token", token);
      c.stage = "list";
      REFIT_ASSIGN(const HttpAnswer a, call(c, deadline));
      if (a.status != 200) return refusal(c, a);
      pugi::xml_document doc;
      const pugi::xml_node result =
          doc.load_buffer(a.body.data(), a.body.size()) ? doc.child("ListBucketResult") : pugi::xml_node();
      if (!result) return at(c, {Code::kCorrupt, "the server's listing can't be read"});
      for (const pugi::xml_node& object : result.children("Contents")) {
        const std::string key = percent_decode(object.child_value("Key"));
        if (key.starts_with(lead_)) out.push_back({key.substr(lead_.size()), object.child("Size").text().as_llong()});
      }
      if (std::ssize(out) > kMostKeys)
        return at(c, {Code::kExhausted, "more objects under " + prefix + " than are listed"})
            .amounts(kMostKeys, std::ssize(out));
      const std::string next = result.child_value("NextContinuationToken");
      const bool more = std::string_view(result.child_value("IsTruncated")) == "true";
      if (more && (next.empty() || next == token))
        return at(c, {Code::kCorrupt, "the server's listing does not go on"});
      token = more ? next : "";
    } while (!token.empty());
    return out;
  }

  Status remove(const std::string& key, Deadline deadline) override {
    Call c{.method = "DELETE", .key = key};
    c.stage = "remove";
    REFIT_ASSIGN(const HttpAnswer a, call(c, deadline));
    return a.status == 204 || a.status == 200 || missing(a) ? Status() : refusal(c, a);
  }

 private:
  // ---- one request, tried until it passes or the deadline does

  Result<HttpAnswer> call(const Call& c, Deadline deadline) {
    const std::string payload = !c.payload.empty() ? c.payload : c.body.empty() ? kEmptySha256 : sha256(c.body).hex();
    std::int64_t pause = kFirstPauseNs;
    while (true) {
      Result<HttpAnswer> a = once(c, payload, deadline);
      const bool again = a.ok() ? may_pass(a->status, a->status >= 400 ? said_by(a->body).code : "")
                                : a.error().code == Code::kPeerLost || a.error().code == Code::kTimeout;
      if (!again) return a.ok() ? std::move(a) : at(c, std::move(a).error());
      // Jittered, so that many readers of a store that was away do not come back as one.
      const std::int64_t wait =
          pause / 2 + static_cast<std::int64_t>(system_env().random_u64() % static_cast<std::uint64_t>(pause / 2));
      pause = std::min(2 * pause, kLongestPauseNs);
      if (deadline.left_ns() <= wait) return given_up(c, a);
      for (const Deadline until = Deadline::after_ns(wait); !until.over();) {
        if (options_.cancelled && options_.cancelled()) return at(c, {Code::kCancelled, "asked to end"});
        system_env().wait(until.sooner(Deadline::after_ns(kFirstPauseNs)));
      }
      ++retries_;
    }
  }

  Result<HttpAnswer> once(const Call& c, const std::string& payload, Deadline deadline) {
    ToSign s{.method = c.method, .path = root_, .query = c.query, .headers = c.headers, .host = host_};
    if (!c.bucket) s.path += "/" + percent_encode(lead_ + c.key, true);
    if (s.path.empty()) s.path = "/";
    s.payload = payload;
    s.date = utc(std::time(nullptr) + options_.clock_offset_s);
    HttpRequest r{.method = c.method, .url = place_.scheme + "://" + host_ + s.path};
    if (!c.query.empty()) r.url += "?" + query_string(c.query);
    r.headers = sign(s, place_.credentials, place_.region);
    r.body = c.body;
    r.into = c.into;
    r.limit = c.limit;
    ++requests_;
    Result<HttpAnswer> a = http_.perform(r, options_.stall_ns, deadline, options_.cancelled);
    bytes_up_ += std::ssize(c.body);
    if (a.ok()) bytes_down_ += a->received;
    return a;
  }

  // ---- what an answer means

  // The store says so: a 404 of a proxy on the way, or of a server that is not ready, says nothing of the object.
  static bool missing(const HttpAnswer& a) { return a.status == 404 && said_by(a.body).code == "NoSuchKey"; }
  Error at(const Call& c, Error e) const {
    if (!c.key.empty()) e.message = "object " + c.key + ": " + e.message;
    return std::move(e).at_peer(name()).at_stage(c.stage);
  }
  Error given_up(const Call& c, const Result<HttpAnswer>& a) const {
    if (!a.ok())
      return at(c, {a.error().code == Code::kTimeout ? Code::kTimeout : Code::kPeerLost,
                    place_.scheme + "://" + host_ + ": " + a.error().message + " (tried until the deadline)"});
    const Said said = said_by(a->body);
    return at(c, {Code::kTimeout, "the server answers " + std::to_string(a->status) + " " + said.code + " " +
                                      said.message + " (tried until the deadline)"});
  }
  Error refusal(const Call& c, const HttpAnswer& a) const {
    const Said said = said_by(a.body);
    const std::string& who = place_.credentials.from;
    std::string text = std::to_string(a.status) + " " + said.code + (said.message.empty() ? "" : ": " + said.message);
    Code code = Code::kInvalid;
    if (said.code == "RequestTimeTooSkewed") {
      const auto date = a.headers.find("date");
      text = "the clocks differ too much for the server (RequestTimeTooSkewed): here it is " +
             utc(std::time(nullptr) + options_.clock_offset_s) + ", there " +
             (date == a.headers.end() ? "unknown" : bounded(date->second)) + "; set this machine's clock";
    } else if (a.status == 403) {
      text = "refused (" + text + "); credentials came from " + who;
    } else if (a.status == 301 || a.status == 307) {
      const auto region = a.headers.find("x-amz-bucket-region");
      text = "the bucket is elsewhere (" + text + ")" +
             (region == a.headers.end() ? "" : ": its region is " + bounded(region->second)) +
             "; redirects are not followed, give --region or --endpoint-url";
    } else if (a.status == 507 || said.code == "XMinioStorageFull" || said.code == "QuotaExceeded") {
      code = Code::kExhausted;
      text = "the store is full (" + text + ")";
    } else if (said.code == "NoSuchBucket") {
      text = "the bucket does not exist (" + text + ")";
    } else if (a.status == 404) {
      text = "not found, and not said as S3 says it (" + text + "): is there a proxy on the way?";
    }
    return at(c, {code, text});
  }

  // ---- multipart

  Status put_parts(const std::string& key, View bytes, const Sha256& sha, Deadline deadline) {
    REFIT_TRY(abort_others(key, deadline));
    Call begin{.method = "POST", .key = key, .query = {{"uploads", ""}}};
    begin.headers = {{"x-amz-meta-sha256", sha.hex()}};
    begin.stage = "upload";
    REFIT_ASSIGN(const HttpAnswer begun, call(begin, deadline));
    if (begun.status != 200) return refusal(begin, begun);
    pugi::xml_document doc;
    const bool read = static_cast<bool>(doc.load_buffer(begun.body.data(), begun.body.size()));
    const std::string id = read ? doc.child("InitiateMultipartUploadResult").child_value("UploadId") : "";
    if (id.empty()) return at(begin, {Code::kCorrupt, "the server names no upload"});
    Status s = finish_parts(key, bytes, sha, id, deadline);
    if (!s.ok() && !deadline.over()) {
      // What was brought is paid for until it is aborted; if that fails too the next attempt does it.
      Call abort{.method = "DELETE", .key = key, .query = {{"uploadId", id}}};
      [[maybe_unused]] const auto aborted = call(abort, deadline.sooner(Deadline::after_s(2)));
    }
    return s;
  }

  Status finish_parts(const std::string& key, View bytes, const Sha256& sha, const std::string& id, Deadline deadline) {
    std::string document = "<CompleteMultipartUpload>";
    int number = 0;
    for (std::size_t offset = 0; offset < bytes.size(); offset += static_cast<std::size_t>(options_.part_bytes)) {
      Call part{.method = "PUT", .key = key};
      part.query = {{"partNumber", std::to_string(++number)}, {"uploadId", id}};
      part.body = bytes.subspan(offset, std::min(bytes.size() - offset, static_cast<std::size_t>(options_.part_bytes)));
      part.stage = "upload";
      REFIT_ASSIGN(const HttpAnswer a, call(part, deadline));
      const auto etag = a.headers.find("etag");
      if (a.status != 200) return refusal(part, a);
      if (etag == a.headers.end()) return at(part, {Code::kCorrupt, "the server gives no ETag for a part"});
      document += "<Part><PartNumber>" + std::to_string(number) + "</PartNumber><ETag>" + escaped(etag->second) +
                  "</ETag></Part>";
    }
    document += "</CompleteMultipartUpload>";
    Call end{
        .method = "POST", .key = key, .query = {{"uploadId", id}}, .headers = {{"content-type", "application/xml"}}};
    end.body = std::as_bytes(std::span(document));
    end.stage = "upload";
    const Result<HttpAnswer> a = call(end, deadline);
    // A 200 may hold an error, and an answer may be lost after the deed: the object itself decides.
    if (a.ok() && a->status == 200 && said_by(a->body).code.empty()) return {};
    if (deadline.over()) return a.ok() ? refusal(end, *a) : a.error();
    REFIT_ASSIGN(const std::optional<Stat> there, stat(key, deadline));
    if (there && there->bytes == std::ssize(bytes) && there->sha256 == sha) return {};
    return a.ok() ? refusal(end, *a) : a.error();
  }

  static std::string escaped(const std::string& text) {
    std::string out;
    for (const char c : text) out += c == '"' ? "&quot;" : c == '&' ? "&amp;" : c == '<' ? "&lt;" : std::string(1, c);
    return out;
  }

  // Uploads of this object that an earlier process left open: their parts can't be told from ours.
  Status abort_others(const std::string& key, Deadline deadline) {
    Call c{.method = "GET", .bucket = true, .query = {{"uploads", ""}, {"prefix", lead_ + key}}};
    c.stage = "list";
    REFIT_ASSIGN(const HttpAnswer a, call(c, deadline));
    if (a.status == 501 || a.status == 405) return {};  // a server without this listing
    if (a.status != 200) return refusal(c, a);
    pugi::xml_document doc;
    if (!doc.load_buffer(a.body.data(), a.body.size()))
      return at(c, {Code::kCorrupt, "the server's listing can't be read"});
    for (const pugi::xml_node& upload : doc.child("ListMultipartUploadsResult").children("Upload")) {
      if (lead_ + key != upload.child_value("Key")) continue;
      Call abort{.method = "DELETE", .key = key, .query = {{"uploadId", upload.child_value("UploadId")}}};
      REFIT_ASSIGN([[maybe_unused]] const HttpAnswer gone, call(abort, deadline));
    }
    return {};
  }

  const S3Options options_;
  const S3Place place_;
  const std::string lead_;  // prefix with its slash
  std::string host_, root_;
  Http http_;
};

}  // namespace

Result<std::unique_ptr<ObjectStore>> open_s3(const S3Options& options) {
  REFIT_ASSIGN(S3Place place, resolve(options));
  return std::unique_ptr<ObjectStore>(std::make_unique<S3Store>(options, std::move(place)));
}

}  // namespace refit::store
