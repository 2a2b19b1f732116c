#include "store/format.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <nlohmann/json.hpp>

#include "codec/codec.h"
#include "store/follow_state.h"

namespace refit::store {
namespace {
using nlohmann::json;

constexpr std::uint16_t kStoreFormat = 1, kAnchorFlag = 1, kSignedFlag = 2;
constexpr std::size_t kManifestHead = 176, kObjectBytes = 8, kEntryBytes = 96, kSignatureBlock = 32 + 64;
// A manifest of an anchor in which every chunk changed has two entries for each; the rest is for objects.
constexpr std::int64_t kMaxChunks = 5'500'000;
static_assert(kMaxChunks * 2 * std::int64_t{kEntryBytes} + (16 << 20) < kMaxManifestBytes);

Error bad(const std::string& what) { return {Code::kCorrupt, what}; }

// Little-endian integers, canonical hashes.
struct Out {
  Bytes bytes;
  void number(std::uint64_t v, std::size_t width) {
    for (std::size_t i = 0; i < width; ++i) bytes.push_back(static_cast<std::byte>(v >> (8 * i)));
  }
  void number(std::int64_t v) { number(static_cast<std::uint64_t>(v), 8); }
  void hash(const Hash128& h) {
    for (const std::uint64_t word : {h.hi, h.lo})
      for (int shift = 56; shift >= 0; shift -= 8) bytes.push_back(static_cast<std::byte>(word >> shift));
  }
  void raw(View v) { bytes.insert(bytes.end(), v.begin(), v.end()); }
  void head(const char* magic, std::uint16_t flags) {
    raw(std::as_bytes(std::span(magic, 4)));
    number(kStoreFormat, 2);
    number(flags, 2);
  }
  Bytes sealed() && {
    hash(hash128(bytes));
    return std::move(bytes);
  }
};

struct In {
  const std::byte* at;
  std::uint64_t number(std::size_t width) {
    std::uint64_t v = 0;
    for (std::size_t i = 0; i < width; ++i) v |= std::to_integer<std::uint64_t>(*at++) << (8 * i);
    return v;
  }
  std::int64_t length() { return static_cast<std::int64_t>(number(8)); }
  Hash128 hash() {
    std::uint64_t words[2] = {};
    for (std::uint64_t& w : words)
      for (int i = 0; i < 8; ++i) w = w << 8 | std::to_integer<std::uint64_t>(*at++);
    return {words[0], words[1]};
  }
  template <std::size_t N>
  void raw(std::array<std::byte, N>& out) {
    std::memcpy(out.data(), at, N);
    at += N;
  }
};

// Magic, format and flags of an object; the flags.
Result<std::uint16_t> read_head(View bytes, const char* magic, std::size_t least, const char* what) {
  if (bytes.size() < least || std::memcmp(bytes.data(), magic, 4) != 0)
    return bad(std::string(what) + ": not one (magic or length)");
  In in{bytes.data() + 4};
  if (const auto format = in.number(2); format != kStoreFormat)
    return Error(Code::kUnsupported, std::string(what) + ": format " + std::to_string(format) + "; this build reads 1");
  return static_cast<std::uint16_t>(in.number(2));
}

// A small object that ends with its own hash.
Result<In> read_sealed(View bytes, const char* magic, std::int64_t size, const char* what) {
  REFIT_ASSIGN(const std::uint16_t flags, read_head(bytes, magic, 8, what));
  if (std::ssize(bytes) != size) return bad(std::string(what) + ": has another length");
  In tail{bytes.data() + size - 16};
  if (flags != 0 || tail.hash() != hash128(bytes.first(bytes.size() - 16)))
    return bad(std::string(what) + ": does not match its own hash");
  return In{bytes.data() + 8};
}

std::optional<std::uint64_t> from_digits(std::string_view text, std::size_t digits, int base) {
  std::uint64_t v = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), v, base);
  if (text.size() != digits || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return v;
}
std::string decimal(std::uint64_t v) {
  const std::string digits = std::to_string(v);
  return std::string(20 - digits.size(), '0') + digits;
}
std::string hexadecimal(std::uint64_t v) { return Hash128{0, v}.hex().substr(16); }

}  // namespace

// ---- model

std::string write_model(const Model& model) {
  json tensors = json::array();
  for (const TensorInfo& t : model.tensors)
    tensors.push_back({{"dtype", to_string(t.dtype)}, {"name", t.name}, {"shape", t.shape}});
  return json{{"config", model.config}, {"tensors", std::move(tensors)}}.dump();
}

Result<Model> read_model(View bytes) {
  const auto* text = reinterpret_cast<const char*>(bytes.data());
  const json j = json::parse(text, text + bytes.size(), nullptr, false);
  if (!j.is_object() || j.size() != 2 || !j.contains("config") || !j["config"].is_string() || !j.contains("tensors") ||
      !j["tensors"].is_array())
    return bad("model: not an object of config and tensors");
  Model out{j["config"].get<std::string>(), {}};
  for (const json& t : j["tensors"]) {
    if (!t.is_object() || t.size() != 3 || !t.contains("name") || !t["name"].is_string() || !t.contains("dtype") ||
        !t["dtype"].is_string() || !t.contains("shape") || !t["shape"].is_array())
      return bad("model: a tensor is not an object of name, dtype and shape");
    TensorInfo info;
    info.name = t["name"].get<std::string>();
    const auto dtype = dtype_from_string(t["dtype"].get<std::string>());
    if (!dtype) return bad("model: unknown dtype " + t["dtype"].dump()).at_tensor(info.name);
    info.dtype = *dtype;
    for (const json& n : t["shape"]) {
      if (!n.is_number_integer() || n.get<std::int64_t>() < 0)
        return bad("model: a shape is not of lengths").at_tensor(info.name);
      info.shape.push_back(n.get<std::int64_t>());
    }
    if (!out.tensors.empty() && !(out.tensors.back().name < info.name))
      return bad("model: tensors are not in order of their names").at_tensor(info.name);
    out.tensors.push_back(std::move(info));
  }
  return out;
}

Result<Grid> Grid::make(const Model& model, std::int64_t chunk_bytes) {
  if (chunk_bytes < kMinChunkBytes || chunk_bytes > kMaxChunkBytes || chunk_bytes % 8 != 0)
    return Error(Code::kInvalid, "chunks of " + std::to_string(chunk_bytes) + " bytes: a multiple of 8 from " +
                                     std::to_string(kMinChunkBytes) + " to " + std::to_string(kMaxChunkBytes));
  Grid out;
  out.chunk_bytes_ = chunk_bytes;
  for (std::uint32_t t = 0; t < model.tensors.size(); ++t) {
    const TensorInfo& info = model.tensors[t];
    const auto elements = checked_extent_product(info.shape);
    auto bytes = elements ? checked_mul(*elements, item_size(info.dtype)) : std::nullopt;
    if (bytes && std::find(info.shape.begin(), info.shape.end(), 0) != info.shape.end()) bytes = 0;
    const auto sum = bytes ? checked_add(out.bytes_, *bytes) : std::nullopt;
    if (!sum || ceil_div(*sum, chunk_bytes) + static_cast<std::int64_t>(model.tensors.size()) > kMaxChunks)
      return Error(Code::kInvalid,
                   "more than " + std::to_string(kMaxChunks) +
                       " chunks, which a store can't have (larger --chunk-bytes), or sizes that overflow")
          .at_tensor(info.name);
    out.bytes_ = *sum;
    out.first_.push_back(out.places_.size());
    out.tensor_bytes_.push_back(*bytes);
    for (std::int64_t at = 0; at < *bytes; at += chunk_bytes)
      out.places_.push_back({t, at, std::min(chunk_bytes, *bytes - at), static_cast<int>(item_size(info.dtype))});
  }
  return out;
}

// ---- manifest

Hash128 content_of(const std::vector<Hash128>& chunks) {
  Out out;
  out.bytes.reserve(16 * chunks.size());
  for (const Hash128& h : chunks) out.hash(h);
  return hash128(out.bytes);
}

Bytes write_manifest(const Manifest& m, const SigningKey* key) {
  Out out;
  out.bytes.reserve(kManifestHead + kObjectBytes * m.objects.size() + kEntryBytes * m.entries.size() + kSignatureBlock);
  out.head("RTSM", static_cast<std::uint16_t>((m.anchor ? kAnchorFlag : 0) | (key != nullptr ? kSignedFlag : 0)));
  out.number(m.number, 8);
  out.hash(m.lineage);
  out.number(m.epoch, 8);
  out.number(m.step);
  out.number(m.parent_number, 8);
  out.number(m.parent_epoch, 8);
  out.raw(m.parent.bytes);
  out.raw(m.model.bytes);
  out.hash(m.content);
  out.number(m.chunk_bytes);
  out.number(m.entries.size(), 8);
  out.number(m.objects.size(), 8);
  out.number(0, 8);
  for (const std::int64_t bytes : m.objects) out.number(bytes);
  for (const Entry& e : m.entries) {
    out.number(e.chunk, 4);
    out.number(static_cast<std::uint64_t>(e.encoding), 4);
    out.number(e.object, 4);
    out.number(0, 4);
    out.number(e.offset);
    out.number(e.bytes);
    out.hash(e.base);
    out.hash(e.next);
    out.raw(e.sha256.bytes);
  }
  if (key != nullptr) {
    out.raw(key->public_key());
    const Signature signature = key->sign(out.bytes);
    out.raw(signature);
  }
  return std::move(out.bytes);
}

Result<Manifest> read_manifest(View bytes) {
  REFIT_ASSIGN(const std::uint16_t flags, read_head(bytes, "RTSM", kManifestHead, "manifest"));
  if ((flags & ~(kAnchorFlag | kSignedFlag)) != 0) return bad("manifest: unknown flags");
  In in{bytes.data() + 8};
  Manifest m;
  m.anchor = (flags & kAnchorFlag) != 0;
  m.number = in.number(8);
  m.lineage = in.hash();
  m.epoch = in.number(8);
  m.step = in.length();
  m.parent_number = in.number(8);
  m.parent_epoch = in.number(8);
  in.raw(m.parent.bytes);
  in.raw(m.model.bytes);
  m.content = in.hash();
  m.chunk_bytes = in.length();
  const std::uint64_t entries = in.number(8), objects = in.number(8), reserved = in.number(8);
  const std::size_t tail = (flags & kSignedFlag) != 0 ? kSignatureBlock : 0;
  const std::uint64_t most = bytes.size();  // bounds both before they are multiplied
  if (reserved != 0 || entries > most || objects > most ||
      bytes.size() != kManifestHead + kObjectBytes * objects + kEntryBytes * entries + tail)
    return bad("manifest: its counts do not make its length");
  if (m.number == 0 || m.parent_number >= m.number) return bad("manifest: its parent is no older version");
  for (std::uint64_t i = 0; i < objects; ++i) {
    m.objects.push_back(in.length());
    if (m.objects.back() <= 0) return bad("manifest: object " + std::to_string(i) + " has no bytes");
  }
  for (std::uint64_t i = 0; i < entries; ++i) {
    Entry e;
    e.chunk = static_cast<std::uint32_t>(in.number(4));
    const std::uint64_t encoding = in.number(4);
    e.object = static_cast<std::uint32_t>(in.number(4));
    const std::uint64_t zero = in.number(4);
    e.offset = in.length();
    e.bytes = in.length();
    e.base = in.hash();
    e.next = in.hash();
    in.raw(e.sha256.bytes);
    if (encoding > 1 || zero != 0) return bad("manifest: entry " + std::to_string(i) + " has an unknown encoding");
    e.encoding = static_cast<Encoding>(encoding);
    m.entries.push_back(e);
  }
  if (tail != 0) {
    PublicKey signer{};
    Signature signature{};
    in.raw(signer);
    in.raw(signature);
    if (!verify(signer, bytes.first(bytes.size() - signature.size()), signature))
      return bad("manifest: its signature is false");
    m.signer = signer;
  }
  return m;
}

Status check_manifest(const Manifest& m, const Grid& grid) {
  std::size_t complete = 0;
  for (std::size_t i = 0; i < m.entries.size(); ++i) {
    const Entry& e = m.entries[i];
    const auto say = [&](const std::string& what) {
      return bad("manifest of version " + std::to_string(m.number) + ": chunk " + std::to_string(e.chunk) + " " + what);
    };
    if (e.chunk >= grid.chunks()) return say("does not exist");
    if (i > 0 && std::pair(m.entries[i - 1].chunk, m.entries[i - 1].encoding) >= std::pair(e.chunk, e.encoding))
      return say("is out of order or given twice");
    const Grid::Place& place = grid[e.chunk];
    if (e.object >= m.objects.size() || e.offset < 0 || e.bytes <= 0 || e.offset > m.objects[e.object] ||
        e.bytes > m.objects[e.object] - e.offset)
      return say("lies outside of its object");
    if (e.encoding == Encoding::kComplete) {
      ++complete;
      if (e.bytes != place.bytes || e.base != Hash128{}) return say("is complete and has another length");
    } else {
      REFIT_ASSIGN(const std::int64_t bound, codec::message_bound({place.width, place.bytes / place.width}));
      if (e.bytes > bound || m.parent_number == 0) return say("has an impossible delta");
    }
  }
  if ((m.anchor || m.parent_number == 0) && complete != grid.chunks())
    return bad("manifest of version " + std::to_string(m.number) + ": an anchor without all chunks");
  return {};
}

// ---- small objects

Bytes write_marker(const Marker& m) {
  Out out;
  out.head("RTSC", 0);
  out.number(m.number, 8);
  out.hash(m.lineage);
  out.number(m.epoch, 8);
  out.number(m.manifest_bytes);
  out.raw(m.manifest.bytes);
  return std::move(out).sealed();
}

Result<Marker> read_marker(View bytes) {
  REFIT_ASSIGN(In in, read_sealed(bytes, "RTSC", kMarkerBytes, "commit marker"));
  Marker m;
  m.number = in.number(8);
  m.lineage = in.hash();
  m.epoch = in.number(8);
  m.manifest_bytes = in.length();
  in.raw(m.manifest.bytes);
  if (m.manifest_bytes < 0 || m.manifest_bytes > kMaxManifestBytes) return bad("commit marker: an absurd length");
  return m;
}

Bytes write_root(const Lineage& lineage) {
  Out out;
  out.head("RTSR", 0);
  out.hash(lineage);
  return std::move(out).sealed();
}
Result<Lineage> read_root(View bytes) {
  REFIT_ASSIGN(In in, read_sealed(bytes, "RTSR", kRootBytes, "root"));
  return in.hash();
}

Bytes write_lease(const Lease& lease) {
  Out out;
  out.head("RTSL", 0);
  out.number(lease.counter, 8);
  out.number(lease.from, 8);
  out.number(lease.to, 8);
  return std::move(out).sealed();
}
Result<Lease> read_lease(View bytes) {
  REFIT_ASSIGN(In in, read_sealed(bytes, "RTSL", kLeaseBytes, "lease"));
  Lease out;
  out.counter = in.number(8);
  out.from = in.number(8);
  out.to = in.number(8);
  return out;
}

Bytes write_mark(const FollowMark& m) {
  Out out;
  out.head("RTSF", static_cast<std::uint16_t>((m.trust.pinned ? 1 : 0) | (m.trust.key ? 2 : 0)));
  out.hash(m.lineage);
  out.number(m.number, 8);
  out.raw(m.trust.key.value_or(PublicKey{}));
  return std::move(out).sealed();
}
Result<FollowMark> read_mark(View bytes) {
  REFIT_ASSIGN(const std::uint16_t flags, read_head(bytes, "RTSF", kMarkBytes, "mark"));
  if (std::ssize(bytes) != kMarkBytes || (flags & ~3) != 0) return bad("mark: has another length or unknown flags");
  In tail{bytes.data() + kMarkBytes - 16};
  if (tail.hash() != hash128(bytes.first(bytes.size() - 16))) return bad("mark: does not match its own hash");
  In in{bytes.data() + 8};
  FollowMark out;
  out.lineage = in.hash();
  out.number = in.number(8);
  PublicKey key{};
  in.raw(key);
  out.trust.pinned = (flags & 1) != 0;
  if ((flags & 2) != 0)
    out.trust.key = key;
  else if (key != PublicKey{})
    return bad("mark: holds a key and says that it holds none");
  return out;
}

// ---- keys

std::string model_key(const Sha256& model) { return "models/" + model.hex(); }
std::string version_prefix(std::uint64_t number, std::uint64_t epoch) {
  return kVersionsPrefix + decimal(number) + "-" + hexadecimal(epoch) + "/";
}
std::string manifest_key(std::uint64_t number, std::uint64_t epoch) {
  return version_prefix(number, epoch) + "manifest";
}
std::string data_key(std::uint64_t number, std::uint64_t epoch, std::uint32_t object) {
  return version_prefix(number, epoch) + "data-" + decimal(object).substr(10);
}
std::string committed_key(std::uint64_t number) { return kCommittedPrefix + decimal(number); }
bool is_lease_name(const std::string& name) {
  const auto fine = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-'; };
  return !name.empty() && name.size() <= 64 && std::all_of(name.begin(), name.end(), fine);
}
bool is_lease_key(const std::string& key) {
  return key.starts_with(kLeasesPrefix) && is_lease_name(key.substr(std::char_traits<char>::length(kLeasesPrefix)));
}
std::optional<std::uint64_t> number_of_committed(const std::string& key) {
  constexpr std::size_t kLead = std::char_traits<char>::length(kCommittedPrefix);
  return key.starts_with(kCommittedPrefix) ? from_digits(std::string_view(key).substr(kLead), 20, 10) : std::nullopt;
}
std::optional<Attempt> attempt_of(const std::string& key) {
  constexpr std::size_t kLead = std::char_traits<char>::length(kVersionsPrefix);
  const std::string_view text = key;
  if (!text.starts_with(kVersionsPrefix) || text.size() < kLead + 38 || text[kLead + 20] != '-' ||
      text[kLead + 37] != '/')
    return std::nullopt;
  const auto number = from_digits(text.substr(kLead, 20), 20, 10),
             epoch = from_digits(text.substr(kLead + 21, 16), 16, 16);
  if (!number || !epoch) return std::nullopt;
  return Attempt{*number, *epoch};
}

}  // namespace refit::store
