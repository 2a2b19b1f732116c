#include "cli/parts/stores.h"

#include "cli/parts/events.h"
#include "cli/training_config.h"

namespace refit::cli {

void declare(CLI::App& c, const char* url_option, const char* what, StoreAccess& a) {
  c.add_option(url_option, a.url, what);
  c.add_option("--region", a.region, "S3 region (else AWS_REGION, the profile, us-east-1)");
  c.add_option("--endpoint-url", a.endpoint, "S3-compatible server (else AWS_ENDPOINT_URL, the profile, Amazon)");
  c.add_option("--profile", a.profile, "Profile of ~/.aws/credentials (else AWS_PROFILE, default)");
  c.add_option("--addressing", a.addressing, "Bucket in the path or in the host name")
      ->check(CLI::IsMember({"auto", "path", "virtual"}))
      ->capture_default_str();
  c.add_option("--request-timeout-s", a.timeout_s, "How long one version may take to bring or to fetch (600)")
      ->check(CLI::PositiveNumber);
}

Status from_config(const std::string& path, const std::vector<std::string>& sets, StoreAccess& a,
                   PublishStoreOptions* publisher) {
  sync::ConfigResult loaded = load_training_config(path, sets);
  if (!loaded.ok()) return loaded.errors.front();
  const sync::Config& c = loaded.config;
  const std::string bucket = c.s3_bucket.value.value_or("");
  if (a.url.empty() && !bucket.empty()) a.url = "s3://" + bucket + "/" + c.s3_prefix.value;
  if (a.url.empty()) return {};
  // The configuration's default region must not stand before the environment's.
  if (a.region.empty() && !c.s3_region.origin.is_default()) a.region = c.s3_region.value;
  if (a.timeout_s == 0) a.timeout_s = c.sparse_request_timeout_s.value;
  if (publisher == nullptr) return {};
  if (publisher->encoding.empty()) publisher->encoding = c.sparse_encoding.value;
  if (publisher->object_bytes.empty()) publisher->object_bytes = std::to_string(c.sparse_export_s3.value);
  return {};
}

Result<std::unique_ptr<store::ObjectStore>> open_store(const StoreAccess& a, const char* url_option) {
  store::S3Options s3;
  s3.region = a.region;
  s3.endpoint = a.endpoint;
  s3.profile = a.profile;
  s3.addressing = a.addressing;
  s3.cancelled = [] { return asked_to_end(); };
  return store::open_store(a.url, url_option, std::move(s3));
}

nlohmann::ordered_json to_event(const store::Cost& c) {
  return {{"requests", c.requests}, {"retries", c.retries}, {"bytes_up", c.bytes_up}, {"bytes_down", c.bytes_down}};
}

Result<store::Model> store_model(const ModelSource& model) {
  REFIT_ASSIGN(const auto layout, model.layout("hf"));
  REFIT_TRY(model.covers(*layout));
  store::Model out{model.config(), {}};
  for (const model::LogicalTensor& t : layout->catalogue().tensors) out.tensors.push_back({t.name, t.dtype, t.shape});
  return out;
}

model::Catalogue catalogue_of(const store::Model& model) {
  model::Catalogue out;
  for (const store::TensorInfo& t : model.tensors) out.tensors.push_back({t.name, t.shape, t.dtype});
  return out;
}

}  // namespace refit::cli
