#include "core/result.h"

#include <unistd.h>

#include <cstdlib>

namespace refit {

std::string_view to_string(Code code) {
  switch (code) {
    case Code::kInvalid:
      return "invalid";
    case Code::kUnsupported:
      return "unsupported";
    case Code::kMismatch:
      return "mismatch";
    case Code::kCorrupt:
      return "corrupt";
    case Code::kTimeout:
      return "timeout";
    case Code::kPeerLost:
      return "peer_lost";
    case Code::kExhausted:
      return "exhausted";
    case Code::kBusy:
      return "busy";
    case Code::kCancelled:
      return "cancelled";
    case Code::kInternal:
      return "internal";
  }
  return "internal";
}

bool retryable(Code code) {
  return code == Code::kTimeout || code == Code::kPeerLost || code == Code::kBusy || code == Code::kCancelled;
}

namespace {
void keep_first(std::string& field, std::string value) {
  if (field.empty()) field = std::move(value);
}
}  // namespace

Error Error::at_peer(std::string v) && { return keep_first(peer, std::move(v)), std::move(*this); }
Error Error::at_stage(std::string v) && { return keep_first(stage, std::move(v)), std::move(*this); }
Error Error::at_bucket(std::string v) && { return keep_first(bucket, std::move(v)), std::move(*this); }
Error Error::at_tensor(std::string v) && { return keep_first(tensor, std::move(v)), std::move(*this); }
Error Error::amounts(std::int64_t need_bytes, std::int64_t have_bytes) && {
  need = need_bytes;
  have = have_bytes;
  return std::move(*this);
}

std::string Error::to_string() const {
  std::string out(refit::to_string(code));
  out += ": " + message;
  std::string fields;
  auto add = [&](const char* key, const std::string& v) {
    if (!v.empty()) fields += (fields.empty() ? "" : " ") + std::string(key) + "=" + v;
  };
  add("peer", peer);
  add("stage", stage);
  add("bucket", bucket);
  add("tensor", tensor);
  if (need) add("need", std::to_string(*need));
  if (have) add("have", std::to_string(*have));
  if (!fields.empty()) out += " [" + fields + "]";
  return out;
}

void check_failed(const char* condition, const char* file, int line) {
  // Written with write(2): the library holds no stdio. A broken invariant must not go on to touch weights.
  std::string text =
      std::string("refit: broken invariant ") + condition + " at " + file + ":" + std::to_string(line) + "\n";
  [[maybe_unused]] auto n = ::write(2, text.data(), text.size());
  std::abort();
}

}  // namespace refit
