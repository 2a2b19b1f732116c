// Where a store lies, as users write it.
#pragma once
#include <memory>
#include <string>

#include "store/object_store.h"
#include "store/s3_options.h"

namespace refit::store {

// "s3://bucket/prefix" or "file:///directory". `s3` holds what options and environment say beyond that. Errors:
// kInvalid naming `option`.
Result<std::unique_ptr<ObjectStore>> open_store(const std::string& url, const std::string& option, S3Options s3);

}  // namespace refit::store
