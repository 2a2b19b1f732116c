// Publishing: from the tensors of a checkpoint to a committed version of a store.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "codec/codec.h"
#include "store/history.h"

namespace refit::store {

// Bytes of a whole tensor of the model, row-major, in its dtype. They must not change while a call uses them.
using TensorBytes = std::function<View(std::size_t tensor)>;

struct PublishOptions {
  std::int64_t chunk_bytes = kMaxChunkBytes;  // of a new store; later versions keep to it
  std::int64_t object_bytes = 64 << 20;       // `export_chunk_bytes.s3`: data objects of about this size
  std::int64_t anchor_every = 10;             // every so many versions one is complete
  codec::Form form = codec::Form::kUndoable;  // `encoding`: xor means this one
  std::optional<SigningKey> key{};
  ThreadPool* pool = nullptr;
};

struct Published {
  std::uint64_t number = 0, epoch = 0;
  std::int64_t step = 0;
  Hash128 content;
  bool anchor = false;
  std::int64_t chunks = 0, unchanged = 0, deltas = 0, complete = 0;
  std::int64_t payload_bytes = 0, manifest_bytes = 0;
  std::int64_t objects = 0, resumed = 0;   // data objects; those that an earlier attempt had brought there
  std::int64_t elements = 0, changed = 0;  // of chunks that were compared with their base
  std::int64_t delta_bytes = 0;            // payloads of deltas
  Cost cost;                               // of this version
  std::int64_t encode_ns = 0, upload_ns = 0;
};

// One publisher commits at a time: of two, the second to reach a number is refused. *thread-compatible*.
class Publisher {
 public:
  // Makes the store's root where it has none, reads what is committed, and tries that the store honours conditional
  // writes. Errors: kUnsupported when it does not; kMismatch when it holds another model.
  static Result<Publisher> open(ObjectStore& store, Model model, PublishOptions options, Deadline deadline);
  // `base`: the tensors of the newest committed version if the caller has them (empty function: none). They are
  // believed chunk by chunk, by hash. Calling again after a failure, also from another process, goes on with the
  // objects that are already there. Errors: kMismatch when another publisher took the number.
  Result<Published> publish(std::int64_t step, const TensorBytes& next, const TensorBytes& base, Deadline deadline);
  const Content& newest() const { return content_; }
  std::int64_t newest_step() const { return step_; }
  const Lineage& lineage() const { return lineage_; }
  History& history() { return *history_; }

 private:
  Publisher(ObjectStore& store, Model model, PublishOptions options)
      : store_(&store), model_(std::move(model)), options_(std::move(options)) {}
  Status open_root(Deadline deadline);
  Status read_newest(Deadline deadline);
  Status put_data(const Manifest& m, const Bytes& payload, const std::vector<Listed>& there, Published& report,
                  Deadline deadline);
  // Writes an object that only this very version can have written.
  Status put_once(const std::string& key, View bytes, const char* stage, Deadline deadline);

  ObjectStore* store_;
  Model model_;
  PublishOptions options_;
  Lineage lineage_;
  Sha256 model_sha256_;
  Grid grid_;
  std::unique_ptr<History> history_;
  Content content_;  // of the newest committed version
  std::uint64_t epoch_ = 0;
  std::int64_t step_ = -1, since_anchor_ = 0;
  bool unsure_ = false;  // a marker may have been written: read what is committed before going on
};

}  // namespace refit::store
