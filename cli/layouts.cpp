#include "cli/layouts.h"

#include <fmt/format.h>

#include "files/files.h"

namespace refit::cli {
namespace {
constexpr std::int64_t kMaxLayoutBytes = std::int64_t{1} << 30;

struct Unit {
  const char* name;
  std::int64_t bytes;
};
constexpr Unit kUnits[] = {{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", std::int64_t{1} << 40}};
}  // namespace

Result<std::shared_ptr<const model::Layout>> layout_file(const std::string& path) {
  REFIT_ASSIGN(const std::string text, files::read_text(path, kMaxLayoutBytes));
  auto layout = model::read_layout(text);
  if (layout.ok()) return layout;
  Error e = std::move(layout).error();
  e.message = path + ": " + e.message;
  return e;
}

std::string human_bytes(std::int64_t bytes) {
  const auto value = static_cast<double>(bytes);
  for (int i = 3; i >= 0; --i)
    if (bytes >= kUnits[i].bytes)
      return fmt::format("{:.2f} {}", value / static_cast<double>(kUnits[i].bytes), kUnits[i].name);
  return fmt::format("{} B", bytes);
}

Result<std::int64_t> rank_bytes(const model::RankLayout& rank) {
  std::int64_t sum = 0;
  for (const model::BufferSpec& b : rank.buffers) {
    const auto next = checked_add(sum, b.bytes);
    if (!next) return Error(Code::kInvalid, "the layout's buffers overflow 63 bits");
    sum = *next;
  }
  return sum;
}

void PlanSizes::declare(CLI::App& command) {
  command.add_option("--bucket-bytes", bucket_bytes, "Largest bucket (refit.bucket_bytes)")->capture_default_str();
  command.add_option("--staging-bytes", staging_bytes, "Staging memory of a target rank (refit.staging_bytes)")
      ->capture_default_str();
  command.add_option("--allow-cast", allow_cast,
                     "Tensor name pattern (* = any text) whose casts may lose values; may be repeated");
}

Result<plan::Options> PlanSizes::options() const {
  plan::Options out;
  out.files = true;
  out.allow_cast = allow_cast;
  REFIT_ASSIGN(out.bucket_bytes, parse_bytes(bucket_bytes, "--bucket-bytes"));
  REFIT_ASSIGN(out.staging_bytes, parse_bytes(staging_bytes, "--staging-bytes"));
  return out;
}

}  // namespace refit::cli
