// Files of this and every earlier release: today's reader reads them, today's writer of fixed layouts writes the same
// bytes. REFIT_WRITE_GOLDEN=1 writes files that are missing.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "unit/wire/samples.h"

namespace refit::wire {
namespace {

Bytes file(const std::string& name, const Bytes& fresh) {
  const std::string path = std::string(REFIT_GOLDEN_DIR) + "/" + name;
  std::ifstream in(path, std::ios::binary);
  if (!in && std::getenv("REFIT_WRITE_GOLDEN") != nullptr) {
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(fresh.data()), static_cast<std::streamsize>(fresh.size()));
    in.open(path, std::ios::binary);
  }
  EXPECT_TRUE(in.good()) << path << " is missing";
  const std::string text((std::istreambuf_iterator<char>(in)), {});
  Bytes out(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) out[i] = static_cast<std::byte>(text[i]);
  return out;
}

TEST(Golden, Messages) {
  for (const Envelope& added : samples()) {
    const Envelope e = without_added_fields(added);
    const Bytes bytes = file("v1_" + std::string(kind_name(e.message)) + ".msg", *encode(e));
    const auto back = decode(bytes);
    ASSERT_TRUE(back.ok()) << kind_name(e.message) << ": " << back.error().to_string();
    EXPECT_EQ(*back, e) << kind_name(e.message);
  }
}

// Messages that have grown, with all their fields.
TEST(Golden, AddedFields) {
  for (const Envelope& e : samples()) {
    if (e == without_added_fields(e)) continue;
    const auto back = decode(file("v1_" + std::string(kind_name(e.message)) + "_added.msg", *encode(e)));
    ASSERT_TRUE(back.ok()) << kind_name(e.message) << ": " << back.error().to_string();
    EXPECT_EQ(*back, e) << kind_name(e.message);
  }
}

TEST(Golden, FixedLayouts) {
  const auto header = encode(sample_bucket(sample_bytes(77)));
  const Bytes fresh(header.begin(), header.end());
  EXPECT_EQ(file("v1.bucket", fresh), fresh);
  const auto delta = encode(sample_delta_bucket(sample_bytes(77)));
  EXPECT_EQ(file("v2.bucket", Bytes(delta.begin(), delta.end())), Bytes(delta.begin(), delta.end()));
  const Manifest m = sample_manifest();
  Bytes page(manifest_bytes(m.recipients.size(), m.buckets.size(), m.entries.size()));
  ASSERT_TRUE(write_manifest(m, page).ok());
  EXPECT_EQ(file("v1.manifest", page), page);
}

}  // namespace
}  // namespace refit::wire
