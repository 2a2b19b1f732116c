// The object seam: named immutable blobs, as an S3 bucket or a directory has them. Nothing here knows what a version
// is.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/core.h"
#include "store/digest.h"

namespace refit::store {

using Bytes = std::vector<std::byte>;
using View = std::span<const std::byte>;

struct Stat {
  std::int64_t bytes = 0;
  std::optional<Sha256> sha256;  // as declared (S3) or computed (directory); absent where the store can't say
};
struct Listed {
  std::string key;
  std::int64_t bytes = 0;
};

// What was asked of the store so far: what a bill counts.
struct Cost {
  std::int64_t requests = 0, retries = 0, bytes_up = 0, bytes_down = 0;
};

// Keys are relative to the store's prefix, of [a-z0-9/-]. An object appears whole or not at all. Every call ends by its
// deadline; what may succeed later was tried again until then. Errors name the store as peer and the step as stage.
// *thread-safe*.
class ObjectStore {
 public:
  explicit ObjectStore(std::string name) : name_(std::move(name)) {}
  virtual ~ObjectStore() = default;
  // "s3://bucket/prefix" or "file:///directory": for messages, without secrets.
  const std::string& name() const { return name_; }
  Cost cost() const { return {requests_, retries_, bytes_up_, bytes_down_}; }

  // Writes, over what is there. `sha256` is that of `bytes`. Errors: kExhausted when the store is full.
  virtual Status put(const std::string& key, View bytes, const Sha256& sha256, Deadline deadline) = 0;
  // Writes only where nothing is; false: something is there (perhaps by this very call, whose first answer was lost).
  virtual Result<bool> put_new(const std::string& key, View bytes, Deadline deadline) = 0;
  // All of a small object; none: there is no such object. Errors: kCorrupt when it is longer than `limit` bytes.
  virtual Result<std::optional<Bytes>> get(const std::string& key, std::int64_t limit, Deadline deadline) = 0;
  // Fills `out` from `offset`; false: there is no such object. Errors: kCorrupt when the object ends before.
  virtual Result<bool> read(const std::string& key, std::int64_t offset, std::span<std::byte> out,
                            Deadline deadline) = 0;
  virtual Result<std::optional<Stat>> stat(const std::string& key, Deadline deadline) = 0;
  // All objects whose keys begin so, in no order.
  virtual Result<std::vector<Listed>> list(const std::string& prefix, Deadline deadline) = 0;
  // Absent already is success.
  virtual Status remove(const std::string& key, Deadline deadline) = 0;

 protected:
  std::atomic<std::int64_t> requests_{0}, retries_{0}, bytes_up_{0}, bytes_down_{0};

 private:
  const std::string name_;
};

}  // namespace refit::store
