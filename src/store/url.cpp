#include "store/url.h"

#include "store/directory_store.h"
#include "store/s3_store.h"

namespace refit::store {

Result<std::unique_ptr<ObjectStore>> open_store(const std::string& url, const std::string& option, S3Options s3) {
  constexpr std::string_view kFile = "file://", kS3 = "s3://";
  if (url.starts_with(kFile) && url.size() > kFile.size() && url[kFile.size()] == '/')
    return open_directory(url.substr(kFile.size()));
  if (!url.starts_with(kS3))
    return Error(Code::kInvalid, option + " " + shown(url) + ": give s3://BUCKET/PREFIX or file:///DIRECTORY");
  const std::string rest = url.substr(kS3.size());
  const std::size_t slash = rest.find('/');
  s3.bucket = rest.substr(0, slash);
  s3.prefix = slash == std::string::npos ? "" : rest.substr(slash + 1);
  while (s3.prefix.ends_with('/')) s3.prefix.pop_back();
  if (s3.bucket.empty()) return Error(Code::kInvalid, option + " " + shown(url) + " names no bucket");
  return open_s3(s3);
}

}  // namespace refit::store
