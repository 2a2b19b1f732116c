// An object store in a directory: for tests, for a shared file system, and as the plainest reading of the seam.
#pragma once
#include <memory>
#include <string>

#include "store/object_store.h"

namespace refit::store {

// Objects are files under `directory`, which is made; they appear by rename or link, synced. Errors: kInvalid naming
// the path, kExhausted when the disk is full.
Result<std::unique_ptr<ObjectStore>> open_directory(const std::string& directory);

}  // namespace refit::store
