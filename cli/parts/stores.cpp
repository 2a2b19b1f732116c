#include "cli/parts/stores.h"

#include "cli/parts/events.h"

namespace refit::cli {

void declare(CLI::App& c, const char* url_option, const char* what, StoreAccess& a) {
  c.add_option(url_option, a.url, what);
  c.add_option("--region", a.region, "S3 region (else AWS_REGION, the profile, us-east-1)");
  c.add_option("--endpoint-url", a.endpoint, "S3-compatible server (else AWS_ENDPOINT_URL, the profile, Amazon)");
  c.add_option("--profile", a.profile, "Profile of ~/.aws/credentials (else AWS_PROFILE, default)");
  c.add_option("--addressing", a.addressing, "Bucket in the path or in the host name")
      ->check(CLI::IsMember({"auto", "path", "virtual"}))
      ->capture_default_str();
  c.add_option("--request-timeout-s", a.timeout_s, "How long one version may take to bring or to fetch")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
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
