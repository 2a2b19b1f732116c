#include <cmath>

#include "facade/inside.h"

namespace refit::api {

static_assert(static_cast<int>(Code::kInternal) == static_cast<int>(InnerCode::kInternal));

std::string to_string(Code code) { return std::string(::refit::to_string(static_cast<InnerCode>(code))); }
bool retryable(Code code) { return ::refit::retryable(static_cast<InnerCode>(code)); }

Error to_public(const InnerError& e) {
  Error out(static_cast<Code>(e.code), e.message, e.to_string());
  out.peer = e.peer;
  out.stage = e.stage;
  out.bucket = e.bucket;
  out.tensor = e.tensor;
  out.need = e.need;
  out.have = e.have;
  return out;
}

InnerError to_inner(const std::exception& thrown, const std::string& what) {
  if (const auto* e = dynamic_cast<const Error*>(&thrown))
    return {static_cast<InnerCode>(e->code), what + ": " + e->message};
  return {InnerCode::kInvalid, what + ": " + thrown.what()};
}

double checked_s(const char* argument, double seconds) {
  if (std::isfinite(seconds) && seconds >= 0) return seconds;
  throw Error(Code::kInvalid, std::string(argument) + " must be a finite number of seconds, not negative (it is " +
                                  std::to_string(seconds) + ")");
}

VersionInfo to_public(const Version& v) { return {v.number, v.step, v.digest.hex()}; }

}  // namespace refit::api
