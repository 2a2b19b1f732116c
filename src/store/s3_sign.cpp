#include "store/s3_sign.h"

#include <algorithm>

#include "store/digest.h"

namespace refit::store {
namespace {

Sha256 hmac(const Sha256& key, std::string_view text) { return hmac_sha256(key.bytes, text); }

}  // namespace

std::string percent_encode(std::string_view text, bool keep_slash) {
  static constexpr char kDigits[] = "0123456789ABCDEF";
  std::string out;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
                       c == '_' || c == '.' || c == '~' || (c == '/' && keep_slash);
    if (plain) {
      out.push_back(c);
      continue;
    }
    const auto byte = static_cast<unsigned char>(c);
    out.push_back('%');
    out.push_back(kDigits[byte >> 4]);
    out.push_back(kDigits[byte & 15]);
  }
  return out;
}

std::string query_string(Fields query) {
  for (auto& [name, value] : query) {
    name = percent_encode(name, false);
    value = percent_encode(value, false);
  }
  std::sort(query.begin(), query.end());
  std::string out;
  for (const auto& [name, value] : query) out += (out.empty() ? "" : "&") + name + "=" + value;
  return out;
}

Fields sign(const ToSign& r, const Credentials& credentials, const std::string& region) {
  Fields out = r.headers;
  out.emplace_back("x-amz-content-sha256", r.payload);
  out.emplace_back("x-amz-date", r.date);
  if (!credentials.token.empty()) out.emplace_back("x-amz-security-token", credentials.token);
  Fields all = out;
  all.emplace_back("host", r.host);
  std::sort(all.begin(), all.end());
  std::string names, lines;
  for (const auto& [name, value] : all) {
    names += (names.empty() ? "" : ";") + name;
    lines += name + ":" + value + "\n";
  }
  const std::string canonical =
      r.method + "\n" + r.path + "\n" + query_string(r.query) + "\n" + lines + "\n" + names + "\n" + r.payload;
  const std::string day = r.date.substr(0, 8), scope = day + "/" + region + "/s3/aws4_request";
  const std::string text =
      "AWS4-HMAC-SHA256\n" + r.date + "\n" + scope + "\n" + sha256(std::as_bytes(std::span(canonical))).hex();
  const std::string start = "AWS4" + credentials.secret;
  const Sha256 key = hmac(hmac(hmac(hmac_sha256(std::as_bytes(std::span(start)), day), region), "s3"), "aws4_request");
  out.emplace_back("authorization", "AWS4-HMAC-SHA256 Credential=" + credentials.key_id + "/" + scope +
                                        ",SignedHeaders=" + names + ",Signature=" + hmac(key, text).hex());
  return out;
}

}  // namespace refit::store
