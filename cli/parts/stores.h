// What `publish --to` and `serve --follow` share: how a store is named and reached, and the tensors of a model in
// order.
#pragma once
#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/demo/model_source.h"
#include "model/model.h"
#include "store/store.h"

namespace refit::cli {

struct StoreAccess {
  std::string url;
  std::string region, endpoint, profile, addressing = "auto";
  double timeout_s = 0;  // of one version; 0: the configuration's, 600
};
void declare(CLI::App& command, const char* url_option, const char* what, StoreAccess& access);
// Ends what is under way when the process is asked to end.
Result<std::unique_ptr<store::ObjectStore>> open_store(const StoreAccess& access, const char* url_option);

nlohmann::ordered_json to_event(const store::Cost& cost);

// The tensors of a checkpoint or of a configuration, as a store keeps them.
Result<store::Model> store_model(const ModelSource& model);
model::Catalogue catalogue_of(const store::Model& model);

// `publish --to` and `serve --follow`.
struct PublishStoreOptions {
  StoreAccess store;
  std::string model, watch, sign, encoding, chunk_bytes = "4MiB", object_bytes;
  std::int64_t steps = 0, from_step = 0, anchor_every = 10;
  std::uint64_t seed = 1, keep = 2;
  double share = 0.01, lease_s = 60, grace_s = 300, poll_s = 1, watch_timeout_s = 60;
  int threads = 1;
  bool hold = false, json = false;
};
Status publish_to_store(const PublishStoreOptions& options);

// Fills what no option said from the sparse section of a training configuration: bucket and prefix, region, deadline,
// and for a publisher encoding and object size. Without a path nothing happens.
Status from_config(const std::string& path, const std::vector<std::string>& sets, StoreAccess& access,
                   PublishStoreOptions* publisher);

struct FollowStoreOptions {
  StoreAccess store;
  std::string spec, state, trust, lease, model, watch;
  std::uint32_t replica = 0;
  std::int64_t until_step = -1, proof_every = 10;
  std::uint64_t seed = 1;
  double share = 0.01, poll_s = 1;
  int threads = 1;
  bool check = false, once = false, json = false;
};
Status follow_store(const FollowStoreOptions& options);

}  // namespace refit::cli
