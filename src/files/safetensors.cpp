#include "files/safetensors.h"

#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>

#include "model/model.h"

namespace refit::files {
namespace {
using nlohmann::json;

constexpr std::pair<std::string_view, DType> kNames[] = {
    {"BOOL", DType::kBool}, {"U8", DType::kU8},   {"I8", DType::kI8},          {"I16", DType::kI16},
    {"I32", DType::kI32},   {"I64", DType::kI64}, {"F16", DType::kF16},        {"BF16", DType::kBF16},
    {"F32", DType::kF32},   {"F64", DType::kF64}, {"F8_E4M3", DType::kF8E4M3}, {"F8_E5M2", DType::kF8E5M2}};
constexpr std::size_t kMaxAxes = 64;

Error corrupt_file(const std::string& what) { return Error(Code::kCorrupt, "safetensors: " + what); }
Error corrupt_at(const std::string& tensor, const std::string& what) {
  return corrupt_file("tensor '" + tensor.substr(0, 200) + "' " + what).at_tensor(tensor.substr(0, 200));
}

Result<std::int64_t> size_number(const json& v, const std::string& tensor, const char* what) {
  if (!v.is_number_unsigned() || v.get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX))
    return corrupt_at(tensor, std::string(what) + " has a number that is no size");
  return static_cast<std::int64_t>(v.get<std::uint64_t>());
}

Result<TensorEntry> read_entry(const std::string& name, const json& v, std::int64_t data_bytes) {
  if (!v.is_object() || v.size() != 3 || !v.contains("dtype") || !v.contains("shape") || !v.contains("data_offsets"))
    return corrupt_at(name, "must have exactly dtype, shape and data_offsets");
  if (!v["dtype"].is_string() || !v["shape"].is_array() || !v["data_offsets"].is_array() ||
      v["data_offsets"].size() != 2)
    return corrupt_at(name, "has a field of the wrong type");
  if (v["shape"].size() > kMaxAxes) return corrupt_at(name, "has more than 64 axes");
  TensorEntry out{.name = name, .dtype = {}, .shape = {}, .offset = 0, .bytes = 0};
  auto dtype = safetensors_dtype(v["dtype"].get_ref<const std::string&>());
  if (!dtype.ok()) return std::move(dtype).error().at_tensor(name.substr(0, 200));
  out.dtype = *dtype;
  for (const json& n : v["shape"]) {
    REFIT_ASSIGN(out.shape.emplace_back(), size_number(n, name, "shape"));
  }
  REFIT_ASSIGN(out.offset, size_number(v["data_offsets"][0], name, "data_offsets"));
  REFIT_ASSIGN(const std::int64_t end, size_number(v["data_offsets"][1], name, "data_offsets"));
  if (end < out.offset || end > data_bytes) return corrupt_at(name, "ends outside the data section");
  out.bytes = end - out.offset;
  const auto elements = checked_extent_product(out.shape);
  const auto bytes = elements ? checked_mul(*elements, item_size(out.dtype)) : std::nullopt;
  const bool zero = std::find(out.shape.begin(), out.shape.end(), 0) != out.shape.end();
  if (!bytes || (zero ? 0 : *bytes) != out.bytes)
    return corrupt_at(name, "has " + std::to_string(out.bytes) + " bytes, which its dtype and shape do not make");
  return out;
}

Status check_cover(std::vector<TensorEntry>& tensors, std::int64_t data_bytes) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return std::tie(a.offset, a.bytes, a.name) < std::tie(b.offset, b.bytes, b.name);
  });
  std::int64_t end = 0;
  for (const TensorEntry& t : tensors) {
    if (t.offset != end)
      return corrupt_at(t.name, t.offset < end ? "overlaps the one before it" : "leaves a gap before it");
    end = t.offset + t.bytes;
  }
  if (end != data_bytes)
    return corrupt_file("the file has " + std::to_string(data_bytes - end) + " bytes after the last tensor");
  return {};
}

Status read_metadata(const json& v, SafetensorsHeader& out) {
  if (!v.is_object()) return corrupt_file("__metadata__ is not an object");
  for (const auto& [key, value] : v.items()) {
    if (!value.is_string()) return corrupt_file("__metadata__ key '" + key.substr(0, 200) + "' is not a string");
    out.metadata.emplace(key, value.get<std::string>());
  }
  return {};
}

}  // namespace

Result<DType> safetensors_dtype(std::string_view name) {
  for (const auto& [text, dtype] : kNames)
    if (text == name) return dtype;
  return Error(Code::kUnsupported, "safetensors: dtype '" + std::string(name.substr(0, 40)) + "' has no counterpart");
}

std::string_view safetensors_name(DType dtype) {
  for (const auto& [text, value] : kNames)
    if (value == dtype) return text;
  REFIT_CHECK(false);
  return {};
}

Result<SafetensorsHeader> parse_safetensors(std::span<const std::byte> file) {
  if (file.size() < 8)
    return corrupt_file("the file has " + std::to_string(file.size()) + " bytes, less than a header length");
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < 8; ++i) length |= static_cast<std::uint64_t>(file[i]) << (8 * i);
  if (length > static_cast<std::uint64_t>(kMaxHeaderBytes))
    return corrupt_file("the header claims " + std::to_string(length) + " bytes, at most " +
                   std::to_string(kMaxHeaderBytes) + " are allowed");
  if (length > file.size() - 8)
    return corrupt_file("the header claims " + std::to_string(length) + " bytes, the file has " +
                   std::to_string(file.size() - 8));
  const auto head = file.first(8 + static_cast<std::size_t>(length));
  return parse_safetensors_head(head, static_cast<std::int64_t>(file.size() - head.size()));
}

Result<SafetensorsHeader> parse_safetensors_head(std::span<const std::byte> head, std::int64_t data_bytes) {
  if (head.size() < 8) return corrupt_file("the header has " + std::to_string(head.size()) + " bytes");
  const std::size_t length = head.size() - 8;
  const std::string_view text(reinterpret_cast<const char*>(head.data()) + 8, length);
  if (text.empty() || text[0] != '{') return corrupt_file("the header does not start with '{'");
  if (Status valid = model::check_json(text); !valid.ok()) return corrupt_file("header: " + valid.error().message);
  const json header = json::parse(text, nullptr, false);
  SafetensorsHeader out;
  out.data_offset = static_cast<std::int64_t>(head.size());
  for (const auto& [name, value] : header.items()) {
    if (name == "__metadata__") {
      REFIT_TRY(read_metadata(value, out));
      continue;
    }
    REFIT_ASSIGN(out.tensors.emplace_back(), read_entry(name, value, data_bytes));
  }
  REFIT_TRY(check_cover(out.tensors, data_bytes));
  return out;
}

}  // namespace refit::files
