// What a store says of its versions: root, commit markers, manifests, each checked against what points to it.
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "store/format.h"

namespace refit::store {

// A committed version: its manifest and what it is known by.
struct Link {
  Manifest manifest;
  Sha256 sha256;  // of the manifest's bytes
  std::int64_t bytes = 0;
};

// What every chunk of a version hashes to.
struct Content {
  std::uint64_t number = 0;  // 0: nothing yet
  Sha256 manifest;
  std::vector<Hash128> chunks;
};

// Whose manifests are believed. Without a key the signer of the first one seen (or that it had none) is kept to.
struct Trust {
  std::optional<PublicKey> key;
  bool pinned = false;
  bool any = false;  // whoever publishes believes bytes by their hashes only
  Status admit(const Manifest& manifest);
};

// *thread-compatible*; the store must outlive it.
class History {
 public:
  // Errors: kBusy when nothing was ever published there.
  static Result<History> open(ObjectStore& store, Trust trust, Deadline deadline);
  ObjectStore& store() const { return *store_; }
  const Lineage& lineage() const { return lineage_; }
  const Trust& trust() const { return trust_; }

  // Numbers of committed versions, ascending.
  Result<std::vector<std::uint64_t>> committed(Deadline deadline) const;
  // Through its commit marker; none: it has no marker, or was collected meanwhile.
  Result<std::optional<Link>> load(std::uint64_t number, Deadline deadline);
  Result<std::optional<Link>> load_parent(const Manifest& manifest, Deadline deadline);
  // The model and its chunks, read once. Errors: kMismatch when a later version is of another model or cut otherwise.
  Result<const Model*> model_of(const Manifest& manifest, Deadline deadline);
  const Grid& grid() const { return grid_; }

  // `top` and the versions below it, newest first: down to an anchor or to the version after `known`, and past an
  // anchor on to `floor` + 1 where these are still there and all are not longer than `most_bytes`. none: one that is
  // needed was collected meanwhile. Errors: kExhausted when what is needed is longer.
  Result<std::optional<std::vector<Link>>> chain(Link top, const Content& known, std::uint64_t floor, Deadline deadline,
                                                 std::int64_t most_bytes = 4 * kMaxManifestBytes);

 private:
  History(ObjectStore& store, Lineage lineage, Trust trust) : store_(&store), lineage_(lineage), trust_(trust) {}
  Result<std::optional<Link>> load(std::uint64_t number, std::uint64_t epoch, const Sha256& sha256, std::int64_t limit,
                                   Deadline deadline);

  ObjectStore* store_;
  Lineage lineage_;
  Trust trust_;
  Sha256 model_sha256_;
  std::unique_ptr<Model> model_;  // stays where it is when this object moves
  Grid grid_;
};

// The chunks of the chain's first link, from `known` or its anchor upwards, each step compared with its `content`.
// Errors: kCorrupt for a manifest that lies.
Result<Content> content_at(const std::vector<Link>& chain, const Content& known, const Grid& grid);

}  // namespace refit::store
