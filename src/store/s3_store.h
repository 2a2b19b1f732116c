// The object seam over S3's REST interface (and servers that speak it): see docs/guides/s3.md.
#pragma once
#include <memory>

#include "store/object_store.h"
#include "store/s3_options.h"

namespace refit::store {

// Nothing is asked of the server yet. Errors: as resolve().
Result<std::unique_ptr<ObjectStore>> open_s3(const S3Options& options);

}  // namespace refit::store
