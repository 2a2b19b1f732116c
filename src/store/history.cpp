#include "store/history.h"

#include <algorithm>

namespace refit::store {
namespace {

constexpr std::size_t kLongestChain = 1024;  // links between an anchor and a version
constexpr std::size_t kMostBelow = 64;       // links read below an anchor for the sake of a shorter way

Error lies(std::uint64_t number, const std::string& what) {
  return Error(Code::kCorrupt, "manifest of version " + std::to_string(number) + " " + what).at_stage("manifest");
}

}  // namespace

Status Trust::admit(const Manifest& m) {
  if (any) return {};
  if (!key && !pinned) {
    key = m.signer;
    pinned = true;
  }
  if (key == m.signer) return {};
  const char* what = !key        ? "is signed, the ones before were not"
                     : !m.signer ? "is not signed, and a key is trusted"
                                 : "is signed with another key than the trusted one";
  return Error(Code::kMismatch, "manifest of version " + std::to_string(m.number) + " " + what).at_stage("manifest");
}

Result<History> History::open(ObjectStore& store, Trust trust, Deadline deadline) {
  REFIT_ASSIGN(const std::optional<Bytes> root, store.get(kRootKey, kRootBytes, deadline));
  if (!root) return Error(Code::kBusy, "nothing was published there yet").at_peer(store.name()).at_stage("root");
  Result<Lineage> lineage = read_root(*root);
  if (!lineage.ok()) return Error(lineage.error()).at_peer(store.name()).at_stage("root");
  return History(store, *lineage, trust);
}

Result<std::vector<std::uint64_t>> History::committed(Deadline deadline) const {
  REFIT_ASSIGN(const std::vector<Listed> listed, store_->list(kCommittedPrefix, deadline));
  std::vector<std::uint64_t> out;
  for (const Listed& l : listed)
    if (const auto number = number_of_committed(l.key)) out.push_back(*number);
  std::sort(out.begin(), out.end());
  return out;
}

Result<std::optional<Link>> History::load(std::uint64_t number, Deadline deadline) {
  REFIT_ASSIGN(const std::optional<Bytes> bytes, store_->get(committed_key(number), kMarkerBytes, deadline));
  if (!bytes) return std::optional<Link>();
  Result<Marker> marker = read_marker(*bytes);
  if (!marker.ok()) return Error(marker.error()).at_peer(store_->name()).at_stage("marker");
  if (marker->number != number || marker->lineage != lineage_)
    return Error(Code::kCorrupt, "commit marker " + std::to_string(number) + " is of another version or lineage")
        .at_peer(store_->name())
        .at_stage("marker");
  return load(number, marker->epoch, marker->manifest, marker->manifest_bytes, deadline);
}

Result<std::optional<Link>> History::load_parent(const Manifest& m, Deadline deadline) {
  return load(m.parent_number, m.parent_epoch, m.parent, kMaxManifestBytes, deadline);
}

Result<std::optional<Link>> History::load(std::uint64_t number, std::uint64_t epoch, const Sha256& sha,
                                          std::int64_t limit, Deadline deadline) {
  REFIT_ASSIGN(const std::optional<Bytes> bytes, store_->get(manifest_key(number, epoch), limit, deadline));
  if (!bytes) return std::optional<Link>();
  if (sha256(*bytes) != sha)
    return lies(number, "is not what its SHA-256 says (damaged, or replaced)").at_peer(store_->name());
  Result<Manifest> m = read_manifest(*bytes);
  if (!m.ok()) return Error(m.error()).at_peer(store_->name()).at_stage("manifest");
  if (m->number != number || m->epoch != epoch || m->lineage != lineage_)
    return lies(number, "is of another version or lineage").at_peer(store_->name());
  if (Status s = trust_.admit(*m); !s.ok()) return Error(s.error()).at_peer(store_->name());
  REFIT_ASSIGN([[maybe_unused]] const Model* model, model_of(*m, deadline));
  if (Status s = check_manifest(*m, grid_); !s.ok())
    return Error(s.error()).at_peer(store_->name()).at_stage("manifest");
  return std::optional<Link>(Link{std::move(*m), sha, std::ssize(*bytes)});
}

Result<const Model*> History::model_of(const Manifest& m, Deadline deadline) {
  if (model_) {
    if (m.model == model_sha256_ && m.chunk_bytes == grid_.chunk_bytes())
      return static_cast<const Model*>(model_.get());
    return Error(Code::kMismatch, "version " + std::to_string(m.number) +
                                      " is of another model, or cut in other chunks, than the versions before it")
        .at_peer(store_->name())
        .at_stage("manifest");
  }
  REFIT_ASSIGN(const std::optional<Bytes> bytes, store_->get(model_key(m.model), kMaxModelBytes, deadline));
  if (!bytes || sha256(*bytes) != m.model)
    return Error(Code::kCorrupt, bytes ? "the model's description is not what its SHA-256 says"
                                       : "the model's description is missing: object " + model_key(m.model))
        .at_peer(store_->name())
        .at_stage("model");
  Result<Model> model = read_model(*bytes);
  if (!model.ok()) return Error(model.error()).at_peer(store_->name()).at_stage("model");
  Result<Grid> grid = Grid::make(*model, m.chunk_bytes);
  if (!grid.ok()) return Error(grid.error()).at_peer(store_->name()).at_stage("model");
  model_ = std::make_unique<Model>(std::move(*model));
  grid_ = std::move(*grid);
  model_sha256_ = m.model;
  return static_cast<const Model*>(model_.get());
}

Result<std::optional<std::vector<Link>>> History::chain(Link top, const Content& known, std::uint64_t floor,
                                                        Deadline deadline, std::int64_t most_bytes) {
  std::vector<Link> out;
  std::int64_t bytes = top.bytes;
  out.push_back(std::move(top));
  bool grounded = false;  // what is read suffices
  std::size_t below = 0;
  while (true) {
    const Manifest& last = out.back().manifest;
    grounded = grounded || last.anchor || last.parent_number == 0 ||
               (known.number != 0 && last.parent_number == known.number && last.parent == known.manifest);
    if (last.parent_number == 0 || (grounded && (last.parent_number <= floor || below++ == kMostBelow))) break;
    if (out.size() == kLongestChain) return lies(last.number, "has no anchor below it").at_peer(store_->name());
    REFIT_ASSIGN(std::optional<Link> parent, load_parent(last, deadline));
    if (!parent && grounded) break;
    if (!parent) return std::optional<std::vector<Link>>();
    bytes += parent->bytes;
    if (bytes > most_bytes && grounded) break;
    if (bytes > most_bytes)
      return Error(Code::kExhausted, "the manifests from version " + std::to_string(out.front().manifest.number) +
                                         " down to its anchor are too long: fewer versions between anchors")
          .at_peer(store_->name())
          .at_stage("manifest")
          .amounts(most_bytes, bytes);
    out.push_back(std::move(*parent));
  }
  return std::optional<std::vector<Link>>(std::move(out));
}

Result<Content> content_at(const std::vector<Link>& chain, const Content& known, const Grid& grid) {
  // The lowest link whose chunks are all known: an anchor, or the one above `known`.
  std::size_t i = 0;
  const auto grounds = [&](const Manifest& m) {
    return known.number != 0 && m.parent_number == known.number && m.parent == known.manifest;
  };
  while (!chain[i].manifest.anchor && chain[i].manifest.parent_number != 0 && !grounds(chain[i].manifest) &&
         i + 1 < chain.size())
    ++i;
  Content out;
  out.chunks = grounds(chain[i].manifest) ? known.chunks : std::vector<Hash128>(grid.chunks());
  for (std::size_t k = i + 1; k-- > 0;) {
    const Manifest& m = chain[k].manifest;
    for (std::size_t e = 0; e < m.entries.size(); ++e) {
      const Entry& entry = m.entries[e];
      if (e > 0 && m.entries[e - 1].chunk == entry.chunk && m.entries[e - 1].next != entry.next)
        return lies(m.number, "says two things of chunk " + std::to_string(entry.chunk));
      out.chunks[entry.chunk] = entry.next;
    }
    if (content_of(out.chunks) != m.content) return lies(m.number, "leaves out or invents chunks (content digest)");
  }
  out.number = chain.front().manifest.number;
  out.manifest = chain.front().sha256;
  return out;
}

}  // namespace refit::store
