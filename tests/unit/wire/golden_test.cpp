// Files of this and every earlier release: today's reader reads them, today's writer of fixed layouts writes the same
// bytes. REFIT_WRITE_GOLDEN=1 writes files that are missing.
#include "support/golden.h"
#include "unit/wire/samples.h"

namespace refit::wire {
namespace {

TEST(Golden, Messages) {
  for (const Envelope& added : samples()) {
    const Envelope e = without_added_fields(added);
    const Bytes bytes = support::golden("v1_" + std::string(kind_name(e.message)) + ".msg", *encode(e));
    const auto back = decode(bytes);
    ASSERT_TRUE(back.ok()) << kind_name(e.message) << ": " << back.error().to_string();
    EXPECT_EQ(*back, e) << kind_name(e.message);
  }
}

// Messages that have grown, with all their fields.
TEST(Golden, AddedFields) {
  for (const Envelope& e : samples()) {
    if (e == without_added_fields(e)) continue;
    const auto back = decode(support::golden("v1_" + std::string(kind_name(e.message)) + "_added.msg", *encode(e)));
    ASSERT_TRUE(back.ok()) << kind_name(e.message) << ": " << back.error().to_string();
    EXPECT_EQ(*back, e) << kind_name(e.message);
  }
}

TEST(Golden, FixedLayouts) {
  const auto header = encode(sample_bucket(sample_bytes(77)));
  const Bytes fresh(header.begin(), header.end());
  EXPECT_EQ(support::golden("v1.bucket", fresh), fresh);
  const auto delta = encode(sample_delta_bucket(sample_bytes(77)));
  EXPECT_EQ(support::golden("v2.bucket", Bytes(delta.begin(), delta.end())), Bytes(delta.begin(), delta.end()));
  const Manifest m = sample_manifest();
  Bytes page(manifest_bytes(m.recipients.size(), m.buckets.size(), m.entries.size()));
  ASSERT_TRUE(write_manifest(m, page).ok());
  EXPECT_EQ(support::golden("v1.manifest", page), page);
}

}  // namespace
}  // namespace refit::wire
