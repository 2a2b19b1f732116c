#include "store/s3_options.h"

#include <arpa/inet.h>

#include <cstdlib>
#include <fstream>
#include <map>

#include "store/http.h"

namespace refit::store {
namespace {

using Section = std::map<std::string, std::string>;
using Ini = std::map<std::string, Section>;

std::string trim(std::string_view s) {
  const std::size_t lo = s.find_first_not_of(" \t\r"), hi = s.find_last_not_of(" \t\r");
  return lo == std::string_view::npos ? std::string() : std::string(s.substr(lo, hi - lo + 1));
}

// AWS files: [section], key = value, # and ; comments, indented lines belong to nested settings that we do not read.
Ini read_ini(const std::string& path) {
  Ini out;
  std::ifstream in(path);
  std::string line, section;
  while (std::getline(in, line)) {
    const std::string text = trim(line);
    if (text.empty() || text[0] == '#' || text[0] == ';' || line[0] == ' ' || line[0] == '\t') continue;
    if (text.front() == '[' && text.back() == ']') {
      section = trim(std::string_view(text).substr(1, text.size() - 2));
      if (section.starts_with("profile ")) section = trim(section.substr(8));
      continue;
    }
    if (const std::size_t eq = text.find('='); eq != std::string::npos)
      out[section][trim(text.substr(0, eq))] = trim(text.substr(eq + 1));
  }
  return out;
}

class Desk {
 public:
  explicit Desk(const S3Options& o) : options_(o) {
    asked_ = !o.profile.empty();
    profile_ = asked_ ? o.profile : variable("AWS_PROFILE").value_or("default");
    const std::string home = variable("HOME").value_or("");
    credentials_path_ = variable("AWS_SHARED_CREDENTIALS_FILE").value_or(home + "/.aws/credentials");
    config_path_ = variable("AWS_CONFIG_FILE").value_or(home + "/.aws/config");
    credentials_ = read_ini(credentials_path_)[profile_];
    config_ = read_ini(config_path_)[profile_];
  }

  std::optional<std::string> variable(const std::string& name) const {
    if (options_.variable) return options_.variable(name);
    const char* v = std::getenv(name.c_str());
    return v != nullptr && *v != 0 ? std::optional<std::string>(v) : std::nullopt;
  }
  std::optional<std::string> config(const std::string& key) const {
    const auto it = config_.find(key);
    return it == config_.end() ? std::nullopt : std::optional(it->second);
  }

  Result<Credentials> credentials() const {
    const auto id = variable("AWS_ACCESS_KEY_ID"), secret = variable("AWS_SECRET_ACCESS_KEY");
    if (!asked_ && id.has_value() != secret.has_value())
      return Error(Code::kInvalid, std::string(id ? "AWS_SECRET_ACCESS_KEY" : "AWS_ACCESS_KEY_ID") +
                                       " is not set, and its other half is");
    if (!asked_ && id) return Credentials{*id, *secret, variable("AWS_SESSION_TOKEN").value_or(""), "the environment"};
    for (const auto& [section, path] :
         {std::pair(&credentials_, &credentials_path_), std::pair(&config_, &config_path_)}) {
      const auto key = section->find("aws_access_key_id"), value = section->find("aws_secret_access_key");
      if (key == section->end() || value == section->end()) continue;
      const auto token = section->find("aws_session_token");
      return Credentials{key->second, value->second, token == section->end() ? "" : token->second,
                         "profile " + profile_ + " of " + *path};
    }
    return Error(Code::kInvalid,
                 "no S3 credentials: neither AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY nor profile '" + profile_ +
                     "' with aws_access_key_id and aws_secret_access_key in " + credentials_path_ + " or " +
                     config_path_ + " (single sign-on, roles and instance metadata are not read)");
  }

 private:
  const S3Options& options_;
  bool asked_ = false;
  std::string profile_, credentials_path_, config_path_;
  Section credentials_, config_;
};

std::string first_of(std::initializer_list<std::optional<std::string>> candidates) {
  for (const auto& c : candidates)
    if (c && !c->empty()) return *c;
  return {};
}

bool plain(const std::string& text, const char* more) {
  for (const char c : text)
    if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
          std::string_view(more).find(c) != std::string_view::npos))
      return false;
  return !text.empty();
}

// A host that is an address, in every way that resolvers read one. Names are looked at when they are resolved.
bool names_link_local(const std::string& host) {
  sockaddr_in four{};
  four.sin_family = AF_INET;
  if (::inet_aton(host.c_str(), &four.sin_addr) != 0) return is_link_local(reinterpret_cast<const sockaddr&>(four));
  sockaddr_in6 six{};
  six.sin6_family = AF_INET6;
  const std::string bare = host.starts_with('[') && host.ends_with(']') ? host.substr(1, host.size() - 2) : host;
  return ::inet_pton(AF_INET6, bare.c_str(), &six.sin6_addr) == 1 &&
         is_link_local(reinterpret_cast<const sockaddr&>(six));
}

}  // namespace

std::string shown(const std::string& url) {
  return url.find('@') == std::string::npos ? "'" + url + "'" : "(with '@', so not shown; credentials do not go there)";
}

Result<S3Place> resolve(const S3Options& o) {
  const Desk desk(o);
  S3Place out;
  out.region = first_of(
      {o.region, desk.variable("AWS_REGION"), desk.variable("AWS_DEFAULT_REGION"), desk.config("region"), "us-east-1"});
  if (!plain(out.region, "-")) return Error(Code::kInvalid, "--region '" + out.region + "' is no region's name");
  if (!plain(o.bucket, ".-_")) return Error(Code::kInvalid, shown(o.bucket) + " is no bucket's name");
  if (o.addressing != "auto" && o.addressing != "path" && o.addressing != "virtual")
    return Error(Code::kInvalid, "--addressing '" + o.addressing + "': auto, path or virtual");
  const std::string endpoint = first_of({o.endpoint, desk.variable("AWS_ENDPOINT_URL_S3"),
                                         desk.variable("AWS_ENDPOINT_URL"), desk.config("endpoint_url")});
  const std::string url = endpoint.empty() ? "https://s3." + out.region + ".amazonaws.com" : endpoint;
  const std::size_t scheme = url.find("://");
  out.scheme = scheme == std::string::npos ? "" : url.substr(0, scheme);
  if (out.scheme != "http" && out.scheme != "https")
    return Error(Code::kInvalid, "--endpoint-url " + shown(url) + ": give http://HOST[:PORT] or https://HOST[:PORT]");
  out.host = url.substr(scheme + 3);
  if (const std::size_t slash = out.host.find('/'); slash != std::string::npos) {
    out.base_path = out.host.substr(slash);
    out.host.resize(slash);
  }
  while (out.base_path.ends_with('/')) out.base_path.pop_back();
  if (!plain(out.host, ".-_:[]")) return Error(Code::kInvalid, "--endpoint-url " + shown(url) + " names no host");
  const std::size_t colon = out.host.find(':', out.host.starts_with('[') ? out.host.find(']') : 0);
  if (names_link_local(out.host.substr(0, colon)))
    return Error(Code::kInvalid, "--endpoint-url " + shown(url) + ": link-local addresses are refused");
  // What is signed is what curl sends, and that leaves the scheme's own port out.
  if (colon != std::string::npos && out.host.substr(colon) == (out.scheme == "https" ? ":443" : ":80"))
    out.host.resize(colon);
  out.path_style = o.addressing == "path" || (o.addressing == "auto" && !endpoint.empty());
  // A name with dots is not under the certificate of a virtual host.
  if (o.addressing == "auto" && o.bucket.find('.') != std::string::npos) out.path_style = true;
  REFIT_ASSIGN(out.credentials, desk.credentials());
  return out;
}

}  // namespace refit::store
