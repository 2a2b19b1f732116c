// Error: what every call of the public interface throws. Context is fields, not prose.
#pragma once
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>

namespace refit::api {

// Closed set, named by what the caller can do about it.
enum class Code : std::uint8_t {
  kInvalid,      // the input or option is wrong: fix it
  kUnsupported,  // right in itself, not possible here: choose another way
  kMismatch,     // two sides disagree (layout, digest, version, epoch)
  kCorrupt,      // bytes are not what they claim to be
  kTimeout,      // a deadline passed
  kPeerLost,     // a named peer died or left
  kExhausted,    // a budget, limit or disk is full: need and have are set
  kBusy,         // another operation holds the resource: try again
  kCancelled,    // aborted on request or by a round's first error
  kInternal,     // Refit's own mistake
};
// "invalid", "peer_lost", …
std::string to_string(Code code);
// True when the same call may succeed later without any change by the caller.
bool retryable(Code code);

class Error : public std::runtime_error {
 public:
  // what() is one line with all fields.
  Error(Code error_code, const std::string& text, const std::string& line)
      : std::runtime_error(line), code(error_code), message(text) {}
  Error(Code error_code, const std::string& text) : Error(error_code, text, to_string(error_code) + ": " + text) {}
  Code code;
  std::string message;
  std::string peer;                        // e.g. "target:0.2"
  std::string stage;                       // e.g. "transfer"
  std::string bucket;                      // e.g. "17 from source:0.1"
  std::string tensor;                      // logical tensor name
  std::optional<std::int64_t> need, have;  // bytes unless the message names another unit
};

}  // namespace refit::api
