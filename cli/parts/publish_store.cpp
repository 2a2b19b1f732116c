// refit publish --to: brings the versions of a model to a store, where nobody need be listening.
#include <algorithm>
#include <filesystem>

#include "cli/parts/events.h"
#include "cli/parts/member.h"
#include "cli/parts/stores.h"

namespace refit::cli {
namespace {

constexpr double kLongestS = 30 * 86400;  // of a lease, and of grace
constexpr double kCollectS = 120;         // one look at what may go

// Whole tensors of one step: a checkpoint's own mapped bytes, or a copy that training-like steps change.
class Tensors {
 public:
  static Result<std::shared_ptr<Tensors>> open(ModelSource model, const store::Model& expected) {
    REFIT_ASSIGN(const store::Model found, store_model(model));
    if (!(found == expected))
      return Error(Code::kMismatch, model.name() + ": other names, shapes, dtypes or configuration than the store's");
    auto out = std::make_shared<Tensors>();
    out->names_ = catalogue_of(expected);
    out->model_ = std::move(model);
    return out;
  }
  // Copies everything, with all steps up to `step` applied.
  Result<std::shared_ptr<Tensors>> stepped(const engine::StepRule& rule, std::uint64_t seed, std::int64_t step) const {
    auto out = std::make_shared<Tensors>();
    out->names_ = names_;
    for (const model::LogicalTensor& t : names_.tensors) {
      std::int64_t count = 1;
      for (const std::int64_t n : t.shape) count *= n;
      std::vector<std::byte>& copy = out->copies_.emplace_back(static_cast<std::size_t>(count * item_size(t.dtype)));
      if (count == 0) continue;
      model_->read(t, seed, 0, copy.data(), count);
      for (std::int64_t s = 1; s <= step; ++s) engine::apply_step(rule, s, t.name, t.dtype, 0, copy.data(), count);
    }
    return out;
  }
  store::TensorBytes bytes() const {
    return [this](std::size_t t) -> store::View {
      return copies_.empty() ? model_->checkpoint_bytes(names_.tensors[t].name) : store::View(copies_[t]);
    };
  }

 private:
  std::optional<ModelSource> model_;
  model::Catalogue names_;
  std::vector<std::vector<std::byte>> copies_;
};
using Step = std::shared_ptr<Tensors>;

class StorePublisher {
 public:
  explicit StorePublisher(const PublishStoreOptions& o)
      : o_(o),
        events_(o.json),
        pool_(o.threads),
        collector_({.keep = o.keep,
                    .lease_ns = static_cast<std::int64_t>(o.lease_s * 1e9),
                    .grace_ns = static_cast<std::int64_t>(o.grace_s * 1e9)}),
        rule_{.seed = o.seed, .share = o.share} {}

  Status run() {
    REFIT_TRY(open());
    if (asked_to_end()) return {};
    if (!o_.model.empty()) REFIT_TRY(first());
    while (!asked_to_end()) {
      if (!o_.watch.empty()) REFIT_TRY(look());
      if (o_.watch.empty() && !o_.hold) break;
      system_env().wait(Deadline::after_s(o_.poll_s));
      clean();
    }
    return {};
  }

 private:
  Status open() {
    REFIT_ASSIGN(store_, open_store(o_.store, "--to"));
    std::optional<ModelSource> model;
    if (!o_.model.empty()) {
      REFIT_ASSIGN(model, ModelSource::open(o_.model));
      REFIT_ASSIGN(model_, store_model(*model));
    }
    while (!model && !asked_to_end()) {  // the trainer's first checkpoint makes the model known
      REFIT_ASSIGN(const Numbered newest, newest_directory(o_.watch));
      if (newest.number >= 0 && half_.changed(newest.path)) {
        Result<ModelSource> found = ModelSource::open(newest.path);
        Result<store::Model> known = found.ok() ? store_model(*found) : Result<store::Model>(found.error());
        if (known.ok()) {
          model_ = std::move(*known);
          model = std::move(*found);
          break;
        }
        half_.keep(known.error());
      }
      system_env().wait(Deadline::after_s(o_.poll_s));
    }
    if (asked_to_end()) return {};
    store::PublishOptions options{.anchor_every = o_.anchor_every, .pool = &pool_};
    REFIT_ASSIGN(options.chunk_bytes, parse_bytes(o_.chunk_bytes, "--chunk-bytes"));
    REFIT_ASSIGN(options.object_bytes, parse_bytes(o_.object_bytes, "--object-bytes"));
    options.form = o_.encoding == "overwrite" ? codec::Form::kOverwrite : codec::Form::kUndoable;
    if (!o_.sign.empty()) {
      REFIT_ASSIGN(store::SigningKey key, store::SigningKey::read(o_.sign));
      options.key = std::move(key);
    }
    REFIT_ASSIGN(store::Publisher publisher,
                 store::Publisher::open(*store_, model_, std::move(options), Deadline::after_s(o_.store.timeout_s)));
    publisher_ = std::make_unique<store::Publisher>(std::move(publisher));
    if (!o_.model.empty()) {
      REFIT_ASSIGN(start_, Tensors::open(std::move(*model), model_));
    }
    events_.tell("publisher", "opened",
                 {{"store", store_->name()},
                  {"lineage", publisher_->lineage().hex()},
                  {"version", publisher_->newest().number},
                  {"step", publisher_->newest_step()}});
    return {};
  }

  // --model as it is, then training-like steps. Steps that are committed already only serve as a base.
  Status first() {
    const bool stepping = o_.watch.empty() && o_.steps > 0;
    const bool random = start_->bytes()(0).empty();  // a configuration by name: values are made, not read
    for (std::int64_t step = o_.from_step; step <= std::max(o_.steps, o_.from_step) && !asked_to_end(); ++step) {
      Step next = start_;
      if (step > 0 || random) {
        REFIT_ASSIGN(next, start_->stepped(rule_, o_.seed, step));
      }
      const bool known = (stepping || !o_.watch.empty()) && step <= publisher_->newest_step();
      if (!known) REFIT_TRY(publish(step, next));
      base_ = next;
    }
    return {};
  }

  // A newer checkpoint than what is committed.
  Status look() {
    REFIT_ASSIGN(const Numbered newest, newest_directory(o_.watch));
    if (newest.number <= publisher_->newest_step() || !half_.changed(newest.path)) return {};
    if (!base_) base_ = former();
    Result<ModelSource> model = ModelSource::open(newest.path);
    Result<Step> next = model.ok() ? Tensors::open(std::move(*model), model_) : Result<Step>(model.error());
    if (!next.ok()) {
      half_.keep(next.error());
      return {};
    }
    REFIT_TRY(publish(newest.number, *next));
    base_ = *next;
    return {};
  }

  // After a restart: the directory that the newest committed version came from, if it is still there. Its bytes are
  // believed by their hashes only.
  Step former() const {
    std::error_code error;
    for (auto it = std::filesystem::directory_iterator(o_.watch, error);
         !error && it != std::filesystem::directory_iterator(); it.increment(error)) {
      const std::string name = it->path().filename().string();
      const std::size_t digits = name.find_last_not_of("0123456789") + 1;
      if (name.starts_with('.') || digits == name.size() ||
          name.substr(digits) != std::to_string(publisher_->newest_step()))
        continue;
      Result<ModelSource> model = ModelSource::open(it->path().string());
      if (!model.ok()) return nullptr;
      const Result<Step> found = Tensors::open(std::move(*model), model_);
      return found.ok() ? *found : nullptr;
    }
    return nullptr;
  }

  Status publish(std::int64_t step, const Step& next) {
    const std::int64_t start = monotonic_ns();
    const store::TensorBytes base = base_ ? base_->bytes() : store::TensorBytes();
    REFIT_ASSIGN(const store::Published p,
                 publisher_->publish(step, next->bytes(), base, Deadline::after_s(o_.store.timeout_s)));
    const auto changed = static_cast<double>(p.changed), elements = static_cast<double>(p.elements);
    events_.tell("publisher", "committed",
                 {{"version", p.number},
                  {"step", p.step},
                  {"digest", p.content.hex()},
                  {"anchor", p.anchor},
                  {"chunks", p.chunks},
                  {"unchanged", p.unchanged},
                  {"deltas", p.deltas},
                  {"complete", p.complete},
                  {"changed_percent", elements > 0 ? 100 * changed / elements : 0.0},
                  {"bits_per_change", p.deltas > 0 ? 8 * static_cast<double>(p.delta_bytes) / changed : 0.0},
                  {"payload_bytes", p.payload_bytes},
                  {"manifest_bytes", p.manifest_bytes},
                  {"objects", p.objects},
                  {"resumed", p.resumed},
                  {"encode_seconds", static_cast<double>(p.encode_ns) * 1e-9},
                  {"upload_seconds", static_cast<double>(p.upload_ns) * 1e-9},
                  {"seconds", static_cast<double>(monotonic_ns() - start) * 1e-9},
                  {"cost", to_event(p.cost)}});
    clean();
    return {};
  }

  // What can't be removed now is tried again later; publishing goes on meanwhile.
  void clean() {
    const std::int64_t now = monotonic_ns();  // looks cost requests: a few in the life of a lease
    if (cleaned_ns_ != 0 && now - cleaned_ns_ < static_cast<std::int64_t>(o_.lease_s * 1e9) / 4) return;
    cleaned_ns_ = now;
    const Result<store::Collected> c =
        store::collect(publisher_->history(), collector_, now, Deadline::after_s(kCollectS));
    if (!c.ok() && c.error().code != Code::kCancelled && c.error().to_string() != uncollected_) {
      uncollected_ = c.error().to_string();
      events_.tell("publisher", "retention-failed", {{"error", uncollected_}});
    }
    if (c.ok() && (c->attempts > 0 || c->leases > 0))
      events_.tell("publisher", "collected",
                   {{"versions", c->versions}, {"objects", c->objects}, {"leases", c->leases}});
  }

  const PublishStoreOptions& o_;
  Events events_;
  ThreadPool pool_;
  store::Collector collector_;
  const engine::StepRule rule_;
  std::unique_ptr<store::ObjectStore> store_;
  store::Model model_;
  std::unique_ptr<store::Publisher> publisher_;
  Step start_, base_;
  HalfWritten half_{o_.watch_timeout_s, [this](const std::string& what, const nlohmann::ordered_json& fields) {
                      events_.tell("publisher", what, fields);
                    }};
  std::string uncollected_;
  std::int64_t cleaned_ns_ = 0;
};

}  // namespace

Status publish_to_store(const PublishStoreOptions& o) {
  if (!o.watch.empty() && o.steps > 0)
    return Error(Code::kInvalid, "--steps and --watch both say what comes next: give one");
  if (o.model.empty() && o.watch.empty())
    return Error(Code::kInvalid, "--to needs --model (what to publish) or --watch (where checkpoints appear)");
  for (const auto& [option, value] : {std::pair("--lease-s", o.lease_s), std::pair("--grace-s", o.grace_s)})
    if (!(value <= kLongestS))
      return Error(Code::kInvalid, std::string(option) + ": at most " + std::to_string(static_cast<int>(kLongestS)));
  if (o.grace_s < o.lease_s)
    return Error(Code::kInvalid, "--grace-s is shorter than --lease-s: a version could go before its reader is missed");
  (void)asked_to_end();
  const Status s = StorePublisher(o).run();
  return !s.ok() && s.error().code == Code::kCancelled && asked_to_end() ? Status() : s;
}

}  // namespace refit::cli
