#include "store/publisher.h"

#include <algorithm>
#include <atomic>
#include <cstring>

namespace refit::store {
namespace {

void each(ThreadPool* pool, std::int64_t n, const std::function<void(std::int64_t)>& task) {
  if (pool != nullptr) return pool->parallel_for(n, task);
  for (std::int64_t i = 0; i < n; ++i) task(i);
}

View part(View tensor, const Grid::Place& p) {
  return tensor.subspan(static_cast<std::size_t>(p.offset), static_cast<std::size_t>(p.bytes));
}

// Equal attempts have equal names, so that one that died is gone on with.
std::uint64_t epoch_of(const Manifest& m, const PublishOptions& o) {
  Hasher h;
  if (o.key) h.add(o.key->public_key());
  h.add_u64(m.lineage.hi).add_u64(m.lineage.lo).add_u64(m.number).add_i64(m.step).add(m.parent.bytes);
  h.add(m.model.bytes).add_u64(m.content.hi).add_u64(m.content.lo).add_i64(m.chunk_bytes);
  h.add_u64(m.anchor ? 1 : 0).add_u64(static_cast<std::uint64_t>(o.form)).add_i64(o.object_bytes);
  for (const Entry& e : m.entries) h.add_u64(e.chunk).add_u64(static_cast<std::uint64_t>(e.encoding));
  return h.finish().lo;
}

Cost minus(const Cost& a, const Cost& b) {
  return {a.requests - b.requests, a.retries - b.retries, a.bytes_up - b.bytes_up, a.bytes_down - b.bytes_down};
}

}  // namespace

Result<Publisher> Publisher::open(ObjectStore& store, Model model, PublishOptions options, Deadline deadline) {
  Publisher out(store, std::move(model), std::move(options));
  if (out.options_.anchor_every < 1 || out.options_.object_bytes < 1)
    return Error(Code::kInvalid, "anchors every 0 versions, or objects of no bytes");
  const std::string text = write_model(out.model_);
  const View bytes = std::as_bytes(std::span(text));
  out.model_sha256_ = sha256(bytes);
  REFIT_TRY(out.open_root(deadline));
  REFIT_TRY(out.read_newest(deadline));
  if (out.content_.number == 0) {
    REFIT_ASSIGN(out.grid_, Grid::make(out.model_, out.options_.chunk_bytes));
    REFIT_TRY(out.put_once(model_key(out.model_sha256_), bytes, "model", deadline));
  }
  return out;
}

Status Publisher::open_root(Deadline deadline) {
  std::array<std::byte, 16> random{};
  REFIT_TRY(system_env().random(random));
  const Hash128 fresh = hash128(random);
  REFIT_ASSIGN([[maybe_unused]] const bool made, store_->put_new(kRootKey, write_root(fresh), deadline));
  REFIT_ASSIGN(History history, History::open(*store_, {.key = {}, .pinned = false, .any = true}, deadline));
  history_ = std::make_unique<History>(std::move(history));
  lineage_ = history_->lineage();
  // The same bytes once more: a store that ignores the condition loses nothing by it, and is found out.
  REFIT_ASSIGN(const bool again, store_->put_new(kRootKey, write_root(lineage_), deadline));
  if (!again) return {};
  return Error(Code::kUnsupported,
               "the store ignores conditional writes (If-None-Match: *), so two publishers could commit one number")
      .at_peer(store_->name())
      .at_stage("root");
}

Status Publisher::read_newest(Deadline deadline) {
  REFIT_ASSIGN(const std::vector<std::uint64_t> numbers, history_->committed(deadline));
  if (numbers.empty()) return {};
  REFIT_ASSIGN(std::optional<Link> top, history_->load(numbers.back(), deadline));
  if (!top)
    return Error(Code::kCorrupt, "version " + std::to_string(numbers.back()) + " is committed and has no manifest")
        .at_peer(store_->name())
        .at_stage("manifest");
  if (top->manifest.model != model_sha256_)
    return Error(Code::kMismatch, "the store holds versions of another model (configuration, names, shapes or dtypes)")
        .at_peer(store_->name())
        .at_stage("model");
  grid_ = history_->grid();
  REFIT_ASSIGN(const auto chain, history_->chain(std::move(*top), {}, ~std::uint64_t{0}, deadline));
  if (!chain)
    return Error(Code::kCorrupt, "the anchor below version " + std::to_string(numbers.back()) + " is missing")
        .at_peer(store_->name())
        .at_stage("manifest");
  REFIT_ASSIGN(content_, content_at(*chain, {}, grid_));
  epoch_ = chain->front().manifest.epoch;
  step_ = chain->front().manifest.step;
  since_anchor_ = std::ssize(*chain) - 1;
  return {};
}

Result<Published> Publisher::publish(std::int64_t step, const TensorBytes& next, const TensorBytes& base,
                                     Deadline deadline) {
  if (unsure_) REFIT_TRY(read_newest(deadline));
  unsure_ = false;
  Published report;
  const Cost before = store_->cost();
  const std::int64_t start = monotonic_ns();
  Manifest m;
  m.lineage = lineage_;
  m.number = content_.number + 1;
  m.step = step;
  m.parent_number = content_.number;
  m.parent_epoch = epoch_;
  m.parent = content_.manifest;
  m.model = model_sha256_;
  m.chunk_bytes = grid_.chunk_bytes();
  m.anchor = content_.number == 0 || since_anchor_ + 1 >= options_.anchor_every;

  Content now;
  now.number = m.number;
  now.chunks.resize(grid_.chunks());
  for (std::size_t t = 0; t < grid_.tensors(); ++t)
    if (std::ssize(next(t)) != grid_.tensor_bytes(t))
      return Error(Code::kMismatch, "has another size than the store's model")
          .at_tensor(model_.tensors[t].name)
          .amounts(grid_.tensor_bytes(t), std::ssize(next(t)));
  each(options_.pool, std::ssize(now.chunks), [&](std::int64_t c) {
    const Grid::Place& p = grid_[static_cast<std::size_t>(c)];
    now.chunks[static_cast<std::size_t>(c)] = hash128(part(next(p.tensor), p));
  });
  m.content = content_of(now.chunks);

  // Which chunks have a delta: those that changed and whose base is at hand and is what the parent says.
  const bool has_parent = content_.number != 0;
  std::vector<char> delta(grid_.chunks(), 0);
  if (has_parent && base)
    each(options_.pool, std::ssize(delta), [&](std::int64_t i) {
      const auto c = static_cast<std::size_t>(i);
      const Grid::Place& p = grid_[c];
      if (now.chunks[c] == content_.chunks[c]) return;
      const View tensor = base(p.tensor);
      delta[c] = std::ssize(tensor) == grid_.tensor_bytes(p.tensor) && hash128(part(tensor, p)) == content_.chunks[c];
    });
  for (std::size_t c = 0; c < grid_.chunks(); ++c) {
    const bool changed = !has_parent || now.chunks[c] != content_.chunks[c];
    report.unchanged += changed ? 0 : 1;
    if (!changed) report.elements += grid_[c].bytes / grid_[c].width;
    const auto add = [&](Encoding encoding) {
      Entry e;
      e.chunk = static_cast<std::uint32_t>(c);
      e.encoding = encoding;
      if (encoding == Encoding::kDelta) e.base = content_.chunks[c];
      e.next = now.chunks[c];
      m.entries.push_back(e);
    };
    if (m.anchor || (changed && delta[c] == 0)) add(Encoding::kComplete);
    if (delta[c] != 0) add(Encoding::kDelta);
  }
  report.chunks = std::ssize(now.chunks);
  // A name that says all of this: an attempt that died had the same one.
  m.epoch = epoch_of(m, options_);
  REFIT_ASSIGN(const std::vector<Listed> there, store_->list(version_prefix(m.number, m.epoch), deadline));

  codec::Workspace work(kernel::Exec{options_.pool});
  Bytes payload, message;
  std::vector<Entry> kept;
  std::int64_t upload_ns = 0;
  const auto flush = [&]() -> Status {
    if (payload.empty()) return {};
    const std::int64_t from = monotonic_ns();
    m.objects.push_back(std::ssize(payload));
    REFIT_TRY(put_data(m, payload, there, report, deadline));
    upload_ns += monotonic_ns() - from;
    report.payload_bytes += std::ssize(payload);
    payload.clear();
    return {};
  };
  for (Entry e : m.entries) {
    const Grid::Place& p = grid_[e.chunk];
    const View to = part(next(p.tensor), p);
    View bytes = to;
    if (e.encoding == Encoding::kDelta) {
      const codec::Shape shape{p.width, p.bytes / p.width};
      REFIT_ASSIGN(const std::int64_t bound, codec::message_bound(shape));
      message.resize(static_cast<std::size_t>(bound));
      REFIT_ASSIGN(const std::int64_t n,
                   codec::encode(work, shape, options_.form, {e.base, e.next}, part(base(p.tensor), p), to, message));
      bytes = View(message).first(static_cast<std::size_t>(n));
      const codec::Census census = codec::census_of_own(bytes);
      report.elements += shape.elements;
      report.changed += census.changed;
      if (n >= p.bytes) {  // all of it is shorter
        if (m.anchor) continue;
        e.encoding = Encoding::kComplete;
        e.base = {};
        bytes = to;
      }
    }
    (e.encoding == Encoding::kDelta ? report.deltas : report.complete) += 1;
    if (e.encoding == Encoding::kDelta) report.delta_bytes += std::ssize(bytes);
    if (!payload.empty() && std::ssize(payload) + std::ssize(bytes) > options_.object_bytes) REFIT_TRY(flush());
    e.object = static_cast<std::uint32_t>(m.objects.size());
    e.offset = std::ssize(payload);
    e.bytes = std::ssize(bytes);
    e.sha256 = sha256(bytes);
    payload.insert(payload.end(), bytes.begin(), bytes.end());
    kept.push_back(e);
  }
  REFIT_TRY(flush());
  m.entries = std::move(kept);
  report.upload_ns = upload_ns;
  report.encode_ns = monotonic_ns() - start - upload_ns;

  const Bytes manifest = write_manifest(m, options_.key ? &*options_.key : nullptr);
  if (std::ssize(manifest) > kMaxManifestBytes)
    return Error(Code::kInvalid, "the manifest is longer than readers take: larger --chunk-bytes or --object-bytes")
        .at_stage("manifest")
        .amounts(kMaxManifestBytes, std::ssize(manifest));
  now.manifest = sha256(manifest);
  REFIT_TRY(put_once(manifest_key(m.number, m.epoch), manifest, "manifest", deadline));
  // From here on it is committed: readers look at markers only.
  unsure_ = true;
  const Marker marker{lineage_, m.number, m.epoch, std::ssize(manifest), now.manifest};
  REFIT_TRY(put_once(committed_key(m.number), write_marker(marker), "marker", deadline));

  unsure_ = false;
  content_ = std::move(now);
  epoch_ = m.epoch;
  step_ = step;
  since_anchor_ = m.anchor ? 0 : since_anchor_ + 1;
  report.number = m.number;
  report.epoch = m.epoch;
  report.step = step;
  report.content = m.content;
  report.anchor = m.anchor;
  report.objects = std::ssize(m.objects);
  report.manifest_bytes = std::ssize(manifest);
  report.cost = minus(store_->cost(), before);
  return report;
}

Status Publisher::put_data(const Manifest& m, const Bytes& payload, const std::vector<Listed>& there, Published& report,
                           Deadline deadline) {
  const std::string key = data_key(m.number, m.epoch, static_cast<std::uint32_t>(m.objects.size() - 1));
  const Sha256 sha = sha256(payload);
  const bool listed = std::any_of(there.begin(), there.end(),
                                  [&](const Listed& l) { return l.key == key && l.bytes == std::ssize(payload); });
  if (listed) {  // an attempt that died had brought it: by our own digest, else it is written again
    REFIT_ASSIGN(const std::optional<Stat> stat, store_->stat(key, deadline));
    if (stat && stat->bytes == std::ssize(payload) && stat->sha256 == sha) {
      ++report.resumed;
      return {};
    }
  }
  if (Status s = store_->put(key, payload, sha, deadline); !s.ok()) return Error(s.error()).at_stage("upload");
  return {};
}

Status Publisher::put_once(const std::string& key, View bytes, const char* stage, Deadline deadline) {
  Result<bool> made = store_->put_new(key, bytes, deadline);
  if (!made.ok()) return std::move(made).error().at_stage(stage);
  if (*made) return {};
  Result<std::optional<Bytes>> there =
      store_->get(key, std::max<std::int64_t>(kMaxManifestBytes, std::ssize(bytes)), deadline);
  if (!there.ok()) return std::move(there).error().at_stage(stage);
  if (*there && std::ranges::equal(**there, bytes)) return {};  // by an earlier attempt
  return Error(Code::kMismatch, "another publisher wrote " + key + ": only one may publish to a store at a time")
      .at_peer(store_->name())
      .at_stage(stage);
}

}  // namespace refit::store
