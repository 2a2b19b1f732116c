// Result and Error: how every room reports failure. Nothing inside the library throws.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace refit {

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
  kInternal,     // our own mistake
};

std::string_view to_string(Code code);

// True when the same call may succeed later without any change by the caller.
bool retryable(Code code);

// Context is fields, not prose. `need`/`have` are bytes unless the message names another unit.
struct Error {
  Code code = Code::kInternal;
  std::string message;
  std::string peer;    // e.g. "target:0.2"
  std::string stage;   // e.g. "transfer"
  std::string bucket;  // e.g. "17 from source:0.1"
  std::string tensor;  // logical tensor name
  std::optional<std::int64_t> need, have;

  Error() = default;
  Error(Code c, std::string m) : code(c), message(std::move(m)) {}

  // Each setter keeps what is already there: the innermost place knows best. By value, so that
  // `e = std::move(e).at_peer(…)` is no self-move.
  Error at_peer(std::string v) &&;
  Error at_stage(std::string v) &&;
  Error at_bucket(std::string v) &&;
  Error at_tensor(std::string v) &&;
  Error amounts(std::int64_t need_bytes, std::int64_t have_bytes) &&;

  // One line: "corrupt: message [peer=… stage=… bucket=… tensor=… need=… have=…]".
  std::string to_string() const;
  friend bool operator==(const Error&, const Error&) = default;
};

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}      // NOLINT(google-explicit-constructor)
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT(google-explicit-constructor)
  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }
  T& value() & { return std::get<0>(state_); }
  const T& value() const& { return std::get<0>(state_); }
  T&& value() && { return std::get<0>(std::move(state_)); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  Error& error() & { return std::get<1>(state_); }
  const Error& error() const& { return std::get<1>(state_); }
  Error&& error() && { return std::get<1>(std::move(state_)); }

 private:
  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}  // NOLINT(google-explicit-constructor)
  bool ok() const { return !error_.has_value(); }
  explicit operator bool() const { return ok(); }
  Error& error() & { return *error_; }
  const Error& error() const& { return *error_; }
  Error&& error() && { return *std::move(error_); }

 private:
  std::optional<Error> error_;
};

using Status = Result<void>;

[[noreturn]] void check_failed(const char* condition, const char* file, int line);

}  // namespace refit

#define REFIT_CONCAT_(a, b) a##b
#define REFIT_CONCAT(a, b) REFIT_CONCAT_(a, b)

// Return the error of a Status or Result expression, or go on.
#define REFIT_TRY(expr)                                          \
  do {                                                           \
    if (auto refit_try_ = (expr); !refit_try_.ok()) [[unlikely]] \
      return ::refit::Error(std::move(refit_try_).error());      \
  } while (false)

// REFIT_ASSIGN(auto x, f()): declare or assign from a Result, or return its error.
#define REFIT_ASSIGN(decl, expr) REFIT_ASSIGN_(REFIT_CONCAT(refit_r_, __LINE__), decl, expr)
#define REFIT_ASSIGN_(tmp, decl, expr)             \
  auto tmp = (expr);                               \
  if (!tmp.ok()) [[unlikely]]                      \
    return ::refit::Error(std::move(tmp).error()); \
  decl = std::move(tmp).value()

// For our own mistakes only; nothing that comes from a file or a peer may reach one.
#define REFIT_CHECK(cond)                               \
  do {                                                  \
    if (!(cond)) [[unlikely]]                           \
      ::refit::check_failed(#cond, __FILE__, __LINE__); \
  } while (false)
