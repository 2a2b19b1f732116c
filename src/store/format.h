// The objects of a version store: what stands where, and their bytes. The page is schema/store.md; reasons:
// docs/design/store.md. Everything read is hostile until checked. Pure.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/core.h"
#include "store/object_store.h"

namespace refit::store {

inline constexpr std::int64_t kMaxManifestBytes = std::int64_t{1} << 30;
inline constexpr std::int64_t kMaxModelBytes = 64 << 20;
inline constexpr std::int64_t kMinChunkBytes = 64, kMaxChunkBytes = 4 << 20;

struct TensorInfo {
  std::string name;
  DType dtype = DType::kBF16;
  Dims shape;
  friend bool operator==(const TensorInfo&, const TensorInfo&) = default;
};

// What all versions of a store are versions of. Tensors in byte order of their names.
struct Model {
  std::string config;  // text of config.json
  std::vector<TensorInfo> tensors;
  friend bool operator==(const Model&, const Model&) = default;
};
std::string write_model(const Model& model);
Result<Model> read_model(View bytes);

// How tensors are cut: each one row-major on its own, in chunks of chunk_bytes, the last one shorter.
class Grid {
 public:
  Grid() = default;
  // Errors: kInvalid for sizes that overflow, or a chunk size that is no multiple of 8 inside the limits.
  static Result<Grid> make(const Model& model, std::int64_t chunk_bytes);
  struct Place {
    std::uint32_t tensor = 0;
    std::int64_t offset = 0, bytes = 0;  // in the tensor
    int width = 1;                       // of an element
  };
  std::size_t chunks() const { return places_.size(); }
  const Place& operator[](std::size_t chunk) const { return places_[chunk]; }
  std::size_t tensors() const { return tensor_bytes_.size(); }
  std::int64_t tensor_bytes(std::size_t tensor) const { return tensor_bytes_[tensor]; }
  std::size_t first(std::size_t tensor) const { return first_[tensor]; }  // its first chunk
  std::int64_t chunk_bytes() const { return chunk_bytes_; }
  std::int64_t bytes() const { return bytes_; }

 private:
  std::vector<Place> places_;
  std::vector<std::int64_t> tensor_bytes_;
  std::vector<std::size_t> first_;
  std::int64_t chunk_bytes_ = 0, bytes_ = 0;
};

enum class Encoding : std::uint8_t {
  kComplete = 0,
  kDelta = 1,  // a message of schema/delta.md from `base` to `next`
};

// How one chunk of a version can be had. A chunk without an entry is what it is in the parent.
struct Entry {
  std::uint32_t chunk = 0;
  Encoding encoding = Encoding::kComplete;
  std::uint32_t object = 0;  // data object of this version
  std::int64_t offset = 0, bytes = 0;
  Hash128 base{}, next{};  // hash128 of the chunk before (zero for kComplete) and after
  Sha256 sha256{};         // of the payload
  friend bool operator==(const Entry&, const Entry&) = default;
};

struct Manifest {
  Lineage lineage;
  std::uint64_t number = 0, epoch = 0;
  std::int64_t step = 0;
  std::uint64_t parent_number = 0, parent_epoch = 0;  // number 0: none
  Sha256 parent;                                      // of the parent's manifest
  Sha256 model;
  Hash128 content;  // content_of() of all chunks
  std::int64_t chunk_bytes = 0;
  bool anchor = false;                // every chunk has a complete entry
  std::vector<std::int64_t> objects;  // bytes of each data object
  std::vector<Entry> entries;         // by (chunk, encoding)
  std::optional<PublicKey> signer;    // set by read_manifest() where the signature was checked
  friend bool operator==(const Manifest&, const Manifest&) = default;
};
Hash128 content_of(const std::vector<Hash128>& chunks);
Bytes write_manifest(const Manifest& manifest, const SigningKey* key);
// Errors: kCorrupt, kUnsupported (another format version).
Result<Manifest> read_manifest(View bytes);
// Does it fit the chunks of its model? Errors: kCorrupt naming the chunk.
Status check_manifest(const Manifest& manifest, const Grid& grid);

// What makes a version a committed one.
struct Marker {
  Lineage lineage;
  std::uint64_t number = 0, epoch = 0;
  std::int64_t manifest_bytes = 0;
  Sha256 manifest;
  friend bool operator==(const Marker&, const Marker&) = default;
};
inline constexpr std::int64_t kMarkerBytes = 96, kRootBytes = 40, kLeaseBytes = 48, kMarkBytes = 80;
Bytes write_marker(const Marker& marker);
Result<Marker> read_marker(View bytes);

Bytes write_root(const Lineage& lineage);
Result<Lineage> read_root(View bytes);

// A reader's promise to come: versions it may still read. It raises `counter` while it lives.
struct Lease {
  std::uint64_t counter = 0, from = 0, to = 0;
  friend bool operator==(const Lease&, const Lease&) = default;
};
Bytes write_lease(const Lease& lease);
Result<Lease> read_lease(View bytes);

// ---- keys
inline constexpr const char* kRootKey = "root";
std::string model_key(const Sha256& model);
std::string version_prefix(std::uint64_t number, std::uint64_t epoch);
std::string manifest_key(std::uint64_t number, std::uint64_t epoch);
std::string data_key(std::uint64_t number, std::uint64_t epoch, std::uint32_t object);
inline constexpr const char* kCommittedPrefix = "committed/";
inline constexpr const char* kVersionsPrefix = "versions/";
inline constexpr const char* kLeasesPrefix = "leases/";
std::string committed_key(std::uint64_t number);
bool is_lease_name(const std::string& name);  // [a-z0-9-], 1 to 64
bool is_lease_key(const std::string& key);
std::optional<std::uint64_t> number_of_committed(const std::string& key);
// Of any key under versions/.
struct Attempt {
  std::uint64_t number = 0, epoch = 0;
  friend auto operator<=>(const Attempt&, const Attempt&) = default;
};
std::optional<Attempt> attempt_of(const std::string& key);

}  // namespace refit::store
