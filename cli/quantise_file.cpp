#include "cli/quantise_file.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string_view>

namespace refit::cli {
namespace {

using codec::Part;
using codec::Quant;
using files::TensorEntry;
using files::TensorSpec;

constexpr std::string_view kWeight = ".weight", kScaleSuffixes[] = {"_scale_inv", "_scale"};

struct Source {
  files::MappedFile file;
  files::SafetensorsHeader header;

  std::span<const std::byte> bytes(const TensorEntry& t) const {
    return file.bytes().subspan(static_cast<std::size_t>(header.data_offset + t.offset),
                                static_cast<std::size_t>(t.bytes));
  }
  const TensorEntry* find(const std::string& name) const {
    const auto at = std::ranges::find(header.tensors, name, &TensorEntry::name);
    return at == header.tensors.end() ? nullptr : &*at;
  }
};

Result<Source> open_source(const std::string& path) {
  REFIT_ASSIGN(files::MappedFile file, files::MappedFile::open(path));
  auto header = files::parse_safetensors(file.bytes());
  if (!header.ok()) {
    Error e = std::move(header).error();
    e.message = path + ": " + e.message;
    return e;
  }
  return Source{std::move(file), std::move(*header)};
}

using Places = std::map<std::string, std::span<std::byte>>;  // of the tensors in the file to write

// A tensor to write and what fills it; nothing where another one does.
struct Output {
  TensorSpec spec;
  std::function<Status(std::span<std::byte>, const Places&)> fill;
};

Output copy_of(const Source& from, const TensorEntry& t) {
  return {{t.name, t.dtype, t.shape}, [bytes = from.bytes(t)](std::span<std::byte> to, const Places&) {
            std::copy(bytes.begin(), bytes.end(), to.begin());
            return Status();
          }};
}

// Wide items first, so that each tensor is aligned to its items.
Result<std::int64_t> write(const std::string& path, std::vector<Output>& outputs,
                           const std::map<std::string, std::string>& metadata) {
  std::stable_sort(outputs.begin(), outputs.end(),
                   [](const Output& a, const Output& b) { return item_size(a.spec.dtype) > item_size(b.spec.dtype); });
  std::vector<TensorSpec> specs;
  for (const Output& o : outputs) specs.push_back(o.spec);
  REFIT_ASSIGN(files::SafetensorsWriter writer, files::SafetensorsWriter::create(path, specs, metadata));
  Places places;
  for (std::size_t i = 0; i < specs.size(); ++i) places[specs[i].name] = writer.tensor(i);
  for (const Output& o : outputs) {
    if (!o.fill) continue;
    if (Status filled = o.fill(places.at(o.spec.name), places); !filled.ok())
      return std::move(filled).error().at_tensor(o.spec.name);
  }
  const auto bytes = static_cast<std::int64_t>(writer.data().size());
  REFIT_TRY(writer.commit());
  return bytes;
}

Part part_of(const Dims& shape, DType dtype) { return {0, 0, shape[0], shape[1], shape[1], dtype}; }

// ---- what stays

// Parts of a dotted name that engines leave in the model's dtype.
bool stays(std::string_view name) {
  constexpr std::array kWords{"norm", "embed", "router"};
  static const std::set<std::string_view> kParts{"lm_head", "output_layer", "gate",      "shared_expert_gate",
                                                 "wte",     "in_proj_ba",   "in_proj_a", "in_proj_b"};
  for (std::size_t at = 0; at <= name.size();) {
    const std::size_t dot = std::min(name.find('.', at), name.size());
    const std::string_view part = name.substr(at, dot - at);
    const auto in_part = [&](std::string_view word) { return part.find(word) != std::string_view::npos; };
    if (kParts.contains(part) || std::ranges::any_of(kWords, in_part)) return true;
    at = dot + 1;
  }
  return false;
}

bool is_matrix(const TensorEntry& t) {
  return t.shape.size() == 2 && t.name.ends_with(kWeight) && t.bytes > 0 &&
         (t.dtype == DType::kBF16 || t.dtype == DType::kF32);
}
bool kept_by(const TensorEntry& t, const std::vector<std::string>& keep) {
  return stays(t.name) ||
         std::ranges::any_of(keep, [&](const std::string& word) { return t.name.find(word) != std::string::npos; });
}
std::string module_of(const std::string& name) { return name.substr(0, name.size() - kWeight.size()); }

Status holds(const QuantFormat& format, const TensorEntry& t) {
  if (format.quant.scale != codec::ScaleKind::kE8M0 || t.shape[1] % format.quant.block_cols == 0) return {};
  return Error(Code::kUnsupported, "mxfp8 needs columns in multiples of 32, not " + std::to_string(t.shape[1]) +
                                       "; --keep leaves the tensor as it is")
      .at_tensor(t.name);
}

// Filling the codes fills their scales too.
void add_quantised(const Source& from, const TensorEntry& t, const QuantFormat& format,
                   const std::shared_ptr<QuantTensor>& tensor, std::vector<Output>& outputs) {
  const Part part = part_of(t.shape, t.dtype);
  const codec::Cells cells = cells_of(format.quant, part);
  const DType scale_dtype = format.quant.scale == codec::ScaleKind::kE8M0 ? DType::kU8 : DType::kF32;
  const std::string scale = t.name + format.scale_suffix;
  outputs.push_back({{scale, scale_dtype, {cells.rows, cells.cols}}, {}});
  outputs.push_back({{t.name, DType::kF8E4M3, t.shape},
                     [tensor, scale, part, quant = format.quant, values = from.bytes(t)](
                         std::span<std::byte> to, const Places& places) -> Status {
                       REFIT_ASSIGN(tensor->findings, codec::quantise(quant, part, values, places.at(scale), to));
                       return {};
                     }});
}

// ---- the way back

const TensorEntry* scale_for(const Source& from, const TensorEntry& t) {
  for (const std::string_view suffix : kScaleSuffixes)
    if (const TensorEntry* s = from.find(t.name + std::string(suffix)); s != nullptr) return s;
  return nullptr;
}
bool is_coded(const TensorEntry& t) {
  return t.shape.size() == 2 && t.dtype == DType::kF8E4M3 && t.name.ends_with(kWeight);
}

Result<Quant> quant_of(const TensorEntry& t, const TensorEntry& scale) {
  const Part part = part_of(t.shape, DType::kBF16);
  const auto fits = [&](const Quant& q) {
    const codec::Cells c = cells_of(q, part);
    return scale.shape == Dims{c.rows, c.cols} || (c.cols == 1 && scale.shape == Dims{c.rows}) ||
           (c.count() == 1 && scale.shape.empty());
  };
  if (scale.dtype == DType::kU8 && fits(codec::mxfp8())) return codec::mxfp8();
  if (scale.dtype == DType::kF32)
    for (const Quant& q : {codec::fp8_block(), codec::fp8_channel(), codec::fp8_tensor()})
      if (fits(q)) return q;
  return Error(Code::kMismatch, scale.name + " (" + std::string(to_string(scale.dtype)) + ", " +
                                    std::to_string(scale.bytes / item_size(scale.dtype)) +
                                    " elements) is no scale of fp8_block, fp8_channel, fp8_tensor or mxfp8 for it")
      .at_tensor(t.name);
}

Status add_dequantised(const Source& from, const TensorEntry& t, const TensorEntry& scale, DType dtype,
                       std::vector<Output>& outputs) {
  REFIT_ASSIGN(const Quant quant, quant_of(t, scale));
  outputs.push_back(
      {{t.name, dtype, t.shape},
       [quant, part = part_of(t.shape, dtype), codes = from.bytes(t), scales = from.bytes(scale)](
           std::span<std::byte> to, const Places&) { return codec::dequantise(quant, part, codes, scales, to); }});
  return {};
}

}  // namespace

QuantFormat quant_format(const std::string& name, bool power_of_two) {
  if (name == "fp8_channel") return {name, codec::fp8_channel(), "_scale"};
  if (name == "mxfp8") return {name, codec::mxfp8(), "_scale"};
  return {name, codec::fp8_block(power_of_two ? codec::ScaleKind::kPowerOfTwo : codec::ScaleKind::kF32), "_scale_inv"};
}

Result<QuantReport> quantise_file(const std::string& in, const std::string& out, const QuantFormat& format,
                                  const std::vector<std::string>& keep) {
  REFIT_ASSIGN(const Source from, open_source(in));
  QuantReport report;
  std::vector<Output> outputs;
  std::vector<std::shared_ptr<QuantTensor>> tensors;
  for (const TensorEntry& t : from.header.tensors) {
    report.bytes_in += t.bytes;
    if (!is_matrix(t) || kept_by(t, keep)) {
      report.kept.push_back(t.name);
      if (is_matrix(t)) report.kept_linear.push_back(module_of(t.name));
      outputs.push_back(copy_of(from, t));
      continue;
    }
    REFIT_TRY(holds(format, t));
    if (from.find(t.name + format.scale_suffix) != nullptr)
      return Error(Code::kMismatch, "it has a tensor of scales already").at_tensor(t.name);
    tensors.push_back(std::make_shared<QuantTensor>(QuantTensor{t.name, t.shape, {}}));
    add_quantised(from, t, format, tensors.back(), outputs);
  }
  REFIT_ASSIGN(report.bytes_out, write(out, outputs, from.header.metadata));
  for (const auto& tensor : tensors) report.converted.push_back(*tensor);
  return report;
}

Result<QuantReport> dequantise_file(const std::string& in, const std::string& out, DType dtype) {
  REFIT_ASSIGN(const Source from, open_source(in));
  QuantReport report;
  std::vector<Output> outputs;
  std::set<const TensorEntry*> used;
  for (const TensorEntry& t : from.header.tensors) {
    if (!is_coded(t)) continue;
    const TensorEntry* const scale = scale_for(from, t);
    if (scale == nullptr)
      return Error(Code::kMismatch, "codes without a tensor " + t.name + "_scale_inv or _scale").at_tensor(t.name);
    REFIT_TRY(add_dequantised(from, t, *scale, dtype, outputs));
    used.insert({&t, scale});
    report.converted.push_back({t.name, t.shape, {}});
  }
  for (const TensorEntry& t : from.header.tensors) {
    report.bytes_in += t.bytes;
    if (used.contains(&t)) continue;
    report.kept.push_back(t.name);
    outputs.push_back(copy_of(from, t));
  }
  REFIT_ASSIGN(report.bytes_out, write(out, outputs, from.header.metadata));
  return report;
}

}  // namespace refit::cli
