#include "cli/delta_file.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>

namespace refit::cli {
namespace {

using Bytes = std::vector<std::byte>;
using files::TensorEntry;

constexpr char kMagic[4] = {'R', 'T', 'D', 'F'};
constexpr std::uint16_t kFormat = 1;
constexpr std::size_t kHead = 48, kSealed = 32, kEntry = 8;
constexpr std::uint64_t kMaxTensors = 1 << 24;
constexpr std::size_t kMostNames = 20;  // in an error

void put(std::byte* at, std::uint64_t v, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; ++i) at[i] = static_cast<std::byte>(v >> (8 * i));
}
std::uint64_t get(const std::byte* at, std::size_t bytes) {
  std::uint64_t v = 0;
  for (std::size_t i = 0; i < bytes; ++i) v |= static_cast<std::uint64_t>(at[i]) << (8 * i);
  return v;
}

// ---- safetensors sides

struct Side {
  std::span<const std::byte> file;
  files::SafetensorsHeader header;
  std::vector<TensorEntry> tensors;  // by name

  std::size_t at(const TensorEntry& t) const { return static_cast<std::size_t>(header.data_offset + t.offset); }
  std::span<const std::byte> bytes(const TensorEntry& t) const {
    return file.subspan(at(t), static_cast<std::size_t>(t.bytes));
  }
  std::span<const std::byte> head() const { return file.first(static_cast<std::size_t>(header.data_offset)); }
};

Result<Side> side_of(std::span<const std::byte> file, const std::string& path) {
  Side out;
  out.file = file;
  auto header = files::parse_safetensors(file);
  if (!header.ok()) {
    Error e = std::move(header).error();
    e.message = path + ": " + e.message;
    return e;
  }
  out.header = std::move(*header);
  out.tensors = out.header.tensors;
  std::sort(out.tensors.begin(), out.tensors.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return out;
}

codec::Shape shape_of(const TensorEntry& t) {
  const std::int64_t width = item_size(t.dtype);
  return {static_cast<int>(width), t.bytes / width};
}

std::string text_of(const TensorEntry& t) {
  std::string out = std::string(to_string(t.dtype)) + " [";
  for (std::size_t i = 0; i < t.shape.size(); ++i) out += (i != 0 ? ", " : "") + std::to_string(t.shape[i]);
  return out + "]";
}

std::string list(const std::vector<std::string>& names) {
  if (names.empty()) return "none";
  std::string out;
  for (std::size_t i = 0; i < std::min(names.size(), kMostNames); ++i) out += (i != 0 ? ", " : "") + names[i];
  if (names.size() > kMostNames) out += " and " + std::to_string(names.size() - kMostNames) + " more";
  return out;
}

// Both hold the same tensors, or the lists of what differs.
Status same_tensors(const Side& a, const std::string& a_name, const Side& b, const std::string& b_name) {
  std::vector<std::string> only_a, only_b, differ;
  auto i = a.tensors.begin();
  auto j = b.tensors.begin();
  while (i != a.tensors.end() || j != b.tensors.end()) {
    if (j == b.tensors.end() || (i != a.tensors.end() && i->name < j->name)) {
      only_a.push_back((i++)->name);
    } else if (i == a.tensors.end() || j->name < i->name) {
      only_b.push_back((j++)->name);
    } else {
      if (i->dtype != j->dtype || i->shape != j->shape)
        differ.push_back(i->name + " (" + text_of(*i) + " against " + text_of(*j) + ")");
      ++i, ++j;
    }
  }
  if (only_a.empty() && only_b.empty() && differ.empty()) return {};
  return Error(Code::kMismatch, "a delta needs the same tensors on both sides; only in " + a_name + ": " +
                                    list(only_a) + "; only in " + b_name + ": " + list(only_b) +
                                    "; other shape or dtype: " + list(differ));
}

// ---- the container

struct Container {
  codec::Form form = codec::Form::kUndoable;
  std::span<const std::byte> base_head, next_head;  // of the safetensors files
  std::vector<std::span<const std::byte>> messages;
};

Hash128 seal_of(std::span<const std::byte> head, std::span<const std::byte> rest) {
  Hasher hasher;
  hasher.add(head.first(kSealed));
  hasher.add(rest);
  return hasher.finish();
}
// Canonical order: high half first, big-endian.
std::array<std::byte, 16> canonical(const Hash128& h) {
  std::array<std::byte, 16> out;
  for (std::size_t i = 0; i < 8; ++i) {
    out[i] = static_cast<std::byte>(h.hi >> (56 - 8 * i));
    out[8 + i] = static_cast<std::byte>(h.lo >> (56 - 8 * i));
  }
  return out;
}

Status write_container(const std::string& path, const Container& c, const std::vector<Bytes>& messages) {
  const std::size_t heads = c.base_head.size() + c.next_head.size(), table = kEntry * messages.size();
  std::size_t total = kHead + heads + table;
  for (const Bytes& m : messages) total += m.size();
  REFIT_ASSIGN(files::FileWriter file, files::FileWriter::create(path, static_cast<std::int64_t>(total)));
  std::byte* const to = file.bytes().data();
  std::memcpy(to, kMagic, sizeof(kMagic));
  put(to + 4, kFormat, 2);
  put(to + 6, static_cast<std::uint64_t>(c.form), 2);
  put(to + 8, c.base_head.size(), 8);
  put(to + 16, c.next_head.size(), 8);
  put(to + 24, messages.size(), 8);
  std::byte* at = std::copy(c.base_head.begin(), c.base_head.end(), to + kHead);
  at = std::copy(c.next_head.begin(), c.next_head.end(), at);
  for (const Bytes& m : messages) put(std::exchange(at, at + kEntry), m.size(), kEntry);
  const auto seal = canonical(seal_of(file.bytes(), file.bytes().subspan(kHead, heads + table)));
  std::copy(seal.begin(), seal.end(), to + kSealed);
  for (const Bytes& m : messages) at = std::copy(m.begin(), m.end(), at);
  return file.commit();
}

Error corrupt(const std::string& what) { return {Code::kCorrupt, "delta file: " + what}; }

Result<Container> read_container(std::span<const std::byte> file) {
  if (file.size() < kHead || std::memcmp(file.data(), kMagic, sizeof(kMagic)) != 0)
    return corrupt("no delta file (magic)");
  const std::byte* at = file.data();
  if (const auto format = get(at + 4, 2); format != kFormat)
    return Error(Code::kUnsupported, "delta file: format " + std::to_string(format) + "; this build reads 1");
  const std::uint64_t form = get(at + 6, 2), base = get(at + 8, 8), next = get(at + 16, 8), count = get(at + 24, 8);
  constexpr std::uint64_t kMostHead = static_cast<std::uint64_t>(files::kMaxHeaderBytes) + 8;
  if (form > 1 || base > kMostHead || next > kMostHead || count > kMaxTensors) return corrupt("an impossible header");
  const std::uint64_t fixed = base + next + kEntry * count;
  if (file.size() - kHead < fixed) return corrupt("it ends inside its tables");
  const auto tables = file.subspan(kHead, fixed);
  const auto seal = canonical(seal_of(file, tables));
  if (std::memcmp(seal.data(), at + kSealed, seal.size()) != 0) return corrupt("its tables do not match their hash");
  Container out;
  out.form = static_cast<codec::Form>(form);
  out.base_head = tables.first(base);
  out.next_head = next == 0 ? out.base_head : tables.subspan(base, next);
  auto rest = file.subspan(kHead + fixed);
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint64_t n = get(tables.data() + base + next + kEntry * i, kEntry);
    if (n > rest.size()) return corrupt("it ends inside message " + std::to_string(i));
    out.messages.push_back(rest.first(n));
    rest = rest.subspan(n);
  }
  if (!rest.empty()) return corrupt("bytes behind the last message");
  return out;
}

// A private copy: what was checked is what is applied.
Result<Bytes> read_delta(const std::string& path) {
  REFIT_ASSIGN(const files::MappedFile file, files::MappedFile::open(path));
  return Bytes(file.bytes().begin(), file.bytes().end());
}

DeltaTensor describe(const TensorEntry& t, std::size_t wire, const codec::Delta& delta) {
  return {t.name, t.dtype, t.shape, static_cast<std::int64_t>(wire), delta.header(), codec::census(delta)};
}

void add(DeltaReport& report, DeltaTensor tensor) {
  report.raw_bytes += tensor.header.shape.bytes();
  report.tensors.push_back(std::move(tensor));
}

Result<codec::Delta> check_tensor(const TensorEntry& t, codec::Form form, std::span<const std::byte> message,
                                  codec::Workspace& work) {
  auto delta = codec::check(work, message);
  if (!delta.ok()) return std::move(delta).error().at_tensor(t.name);
  const codec::Header& h = delta->header();
  const codec::Shape shape = shape_of(t);
  if (h.form != form || h.shape.width != shape.width || h.shape.elements != shape.elements)
    return corrupt("a message that is not of its tensor's form or shape").at_tensor(t.name);
  return delta;
}

// One tensor from `from` into its place in the output, proven by digest.
Status move_tensor(const codec::Delta& delta, std::span<const std::byte> from, std::span<std::byte> to, bool undo,
                   codec::Workspace& work) {
  const Hash128 held = hash128(from);
  REFIT_TRY(undo ? codec::admit_undo(delta, held) : codec::admit(delta, held));
  if (!from.empty()) std::memcpy(to.data(), from.data(), from.size());
  undo ? codec::undo(work, delta, to) : codec::apply(work, delta, to);
  const codec::Identity& id = delta.header().identity;
  if (hash128(to) != (undo ? id.base : id.next)) return corrupt("the result has another digest than it announces");
  return {};
}

// A file with the given safetensors header and as many bytes of data.
Result<files::FileWriter> create_with_head(const std::string& path, std::span<const std::byte> head,
                                           std::int64_t data) {
  const auto total = checked_add(static_cast<std::int64_t>(head.size()), data);
  if (!total) return corrupt("an impossible size");
  REFIT_ASSIGN(files::FileWriter file, files::FileWriter::create(path, *total));
  std::copy(head.begin(), head.end(), file.bytes().begin());
  return file;
}

}  // namespace

Result<DeltaReport> encode_delta(const std::string& base_path, const std::string& next_path, const std::string& out,
                                 codec::Form form, codec::Workspace& work) {
  REFIT_ASSIGN(const files::MappedFile base_file, files::MappedFile::open(base_path));
  REFIT_ASSIGN(const files::MappedFile next_file, files::MappedFile::open(next_path));
  REFIT_ASSIGN(const Side base, side_of(base_file.bytes(), base_path));
  REFIT_ASSIGN(const Side next, side_of(next_file.bytes(), next_path));
  REFIT_TRY(same_tensors(base, base_path, next, next_path));
  std::int64_t room = 0;
  for (const TensorEntry& t : base.tensors) {
    REFIT_ASSIGN(const std::int64_t bound, codec::message_bound(shape_of(t)));
    room = std::max(room, bound);
  }
  const auto buffer = std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(room));
  DeltaReport report{form, {}, 0, 0};
  std::vector<Bytes> messages;
  for (std::size_t i = 0; i < base.tensors.size(); ++i) {
    const TensorEntry& t = base.tensors[i];
    const auto from = base.bytes(t), to = next.bytes(next.tensors[i]);
    REFIT_ASSIGN(const std::int64_t n, codec::encode(work, shape_of(t), form, {hash128(from), hash128(to)}, from, to,
                                                     {buffer.get(), static_cast<std::size_t>(room)}));
    messages.emplace_back(buffer.get(), buffer.get() + n);
    REFIT_ASSIGN(const codec::Delta delta, check_tensor(t, form, messages.back(), work));
    add(report, describe(t, messages.back().size(), delta));
  }
  const bool same = std::ranges::equal(base.head(), next.head());
  const Container container{form, base.head(), same ? std::span<const std::byte>() : next.head(), {}};
  REFIT_TRY(write_container(out, container, messages));
  REFIT_ASSIGN(const files::MappedFile written, files::MappedFile::open(out));
  report.wire_bytes = static_cast<std::int64_t>(written.bytes().size());
  return report;
}

Result<DeltaReport> apply_delta(const std::string& from_path, const std::string& delta_path, const std::string& out,
                                bool undo, codec::Workspace& work) {
  REFIT_ASSIGN(const files::MappedFile from_file, files::MappedFile::open(from_path));
  REFIT_ASSIGN(const Side from, side_of(from_file.bytes(), from_path));
  REFIT_ASSIGN(const Bytes file, read_delta(delta_path));
  REFIT_ASSIGN(const Container container, read_container(file));
  const std::int64_t data = static_cast<std::int64_t>(from.file.size()) - from.header.data_offset;
  REFIT_ASSIGN(files::FileWriter writer, create_with_head(out, undo ? container.base_head : container.next_head, data));
  REFIT_ASSIGN(const Side to, side_of(writer.bytes(), delta_path));
  REFIT_TRY(same_tensors(from, from_path, to, delta_path));
  if (container.messages.size() != to.tensors.size()) return corrupt("not one message per tensor");
  DeltaReport report{container.form, {}, static_cast<std::int64_t>(file.size()), 0};
  for (std::size_t i = 0; i < to.tensors.size(); ++i) {
    const TensorEntry& t = to.tensors[i];
    REFIT_ASSIGN(const codec::Delta delta, check_tensor(t, container.form, container.messages[i], work));
    const auto place = writer.bytes().subspan(to.at(t), static_cast<std::size_t>(t.bytes));
    if (Status moved = move_tensor(delta, from.bytes(from.tensors[i]), place, undo, work); !moved.ok())
      return std::move(moved).error().at_tensor(t.name);
    add(report, describe(t, container.messages[i].size(), delta));
  }
  REFIT_TRY(writer.commit());
  return report;
}

Result<DeltaReport> stat_delta(const std::string& path, codec::Workspace& work) {
  REFIT_ASSIGN(const Bytes file, read_delta(path));
  REFIT_ASSIGN(const Container container, read_container(file));
  std::int64_t data = 0;
  for (const auto& message : container.messages) {
    REFIT_ASSIGN(const codec::Header h, codec::read_header(message));
    const auto sum = checked_add(data, h.shape.bytes());
    if (!sum) return corrupt("an impossible size");
    data = *sum;
  }
  REFIT_ASSIGN(const files::SafetensorsHeader header, files::parse_safetensors_head(container.base_head, data));
  std::vector<TensorEntry> tensors = header.tensors;
  std::sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  if (container.messages.size() != tensors.size()) return corrupt("not one message per tensor");
  DeltaReport report{container.form, {}, static_cast<std::int64_t>(file.size()), 0};
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    REFIT_ASSIGN(const codec::Delta delta, check_tensor(tensors[i], container.form, container.messages[i], work));
    add(report, describe(tensors[i], container.messages[i].size(), delta));
  }
  return report;
}

}  // namespace refit::cli
