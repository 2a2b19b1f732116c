// How an S3 store is reached, and with whose credentials: what users' environments and profile files say.
#pragma once
#include <functional>
#include <optional>
#include <string>

#include "core/core.h"

namespace refit::store {

// Empty strings: the environment decides, then the profile, then a default.
struct S3Options {
  std::string bucket, prefix;
  std::string region, endpoint, profile;
  std::string addressing = "auto";            // path, virtual; auto: path where an endpoint is named
  std::int64_t part_bytes = 8 << 20;          // of a multipart upload; servers want 5 MiB or more
  std::int64_t stall_ns = 30 * kNsPerSecond;  // a transfer without progress for so long is tried again
  std::int64_t clock_offset_s = 0;            // tests
  std::function<bool()> cancelled{};          // asked now and then; true ends the call under way with kCancelled
  // Looks a variable up; null: the process' environment.
  std::function<std::optional<std::string>(const std::string&)> variable{};
};

struct Credentials {
  std::string key_id, secret, token;
  std::string from;  // where they were found: for messages, never the secret
};

struct S3Place {
  std::string scheme, host;  // host with port where one is named
  std::string base_path;     // of the endpoint: "" or "/x"
  std::string region;
  bool path_style = true;
  Credentials credentials;
};

// An address in an error message, in quotes; one with '@' may hold a secret and is left out.
std::string shown(const std::string& url);

// Credentials: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (AWS_SESSION_TOKEN) unless a profile is asked for by option;
// else the profile (option, AWS_PROFILE, default) of AWS_SHARED_CREDENTIALS_FILE or ~/.aws/credentials, or of
// AWS_CONFIG_FILE or ~/.aws/config. Region: option, AWS_REGION, AWS_DEFAULT_REGION, profile, us-east-1. Endpoint:
// option, AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, profile, Amazon's of that region. Errors: kInvalid listing what was
// looked at, or for an endpoint with a link-local address (where machines' own credentials are served).
Result<S3Place> resolve(const S3Options& options);

}  // namespace refit::store
