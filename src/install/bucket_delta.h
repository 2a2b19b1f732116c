// A bucket as a delta: identities of its bytes, and payloads of one codec message per section. Both ends use this; the
// form is in schema/wire.md.
#pragma once
#include <span>
#include <vector>

#include "codec/codec.h"
#include "core/core.h"
#include "kernel/kernel.h"

namespace refit::install {

struct TensorDigest {
  std::uint32_t tensor = 0;  // index into LandingTable::tensors
  kernel::Digest digest;
};

// Bytes of one item size inside a packed bucket.
struct Section {
  std::int64_t at = 0;  // bytes from the bucket's start
  codec::Shape shape;
  friend bool operator==(const Section& a, const Section& b) {
    return a.at == b.at && a.shape.width == b.shape.width && a.shape.elements == b.shape.elements;
  }
};

// What a bucket's packed bytes were in round `txn`, by the digests that its sender sealed (in the manifest's order).
Hash128 bucket_identity(const Txn& txn, BucketId bucket, std::span<const TensorDigest> sealed);

// Room that encode_sections wants. Errors: as codec::message_bound.
Result<std::int64_t> sections_bound(std::span<const Section> sections);

struct EncodedSections {
  std::int64_t bytes = 0;    // written
  std::int64_t changed = 0;  // elements; a frame that went raw counts whole
};
// `base` and `next` are packed bytes of the whole bucket.
Result<EncodedSections> encode_sections(codec::Workspace& work, codec::Form form, const codec::Identity& identity,
                                        std::span<const Section> sections, std::span<const std::byte> base,
                                        std::span<const std::byte> next, std::span<std::byte> out);

// A payload that was found whole, well-formed, and of exactly these sections and identities. Refers to the caller's
// bytes, which must be private and stay as they are.
class CheckedDelta {
 public:
  // Writes nothing but scratch. Errors: kCorrupt; kMismatch for another base, result or shape.
  static Result<CheckedDelta> check(codec::Workspace& work, std::span<const Section> sections,
                                    const codec::Identity& identity, std::span<const std::byte> payload);
  // `packed` holds the base of the whole bucket; cannot fail.
  void apply(codec::Workspace& work, std::span<std::byte> packed) const;
  void undo(codec::Workspace& work, std::span<std::byte> packed) const;

 private:
  struct Part {
    Section section;
    codec::Delta delta;
  };
  std::vector<Part> parts_;
};

}  // namespace refit::install
