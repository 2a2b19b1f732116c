// AWS Signature Version 4 for S3, as Amazon's "Authenticating Requests (AWS Signature Version 4)" describes it. Pure.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "store/s3_options.h"

namespace refit::store {

using Fields = std::vector<std::pair<std::string, std::string>>;

struct ToSign {
  std::string method;
  std::string path;  // encoded, from "/"
  Fields query{};    // not encoded
  Fields headers{};  // lower-case names; all are signed; without host, x-amz-date and the token
  std::string host{};
  std::string payload{};  // SHA-256 in hex
  std::string date{};     // "20130524T000000Z"
};

// Percent-encoded to RFC 3986's unreserved set; slashes stay where asked.
std::string percent_encode(std::string_view text, bool keep_slash);
// Sorted, encoded, every name with its "=".
std::string query_string(Fields query);
// All headers to send but host: those given, x-amz-date, x-amz-content-sha256, the token, authorization.
Fields sign(const ToSign& request, const Credentials& credentials, const std::string& region);

}  // namespace refit::store
