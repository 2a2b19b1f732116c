#include "agent/bridge.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

namespace refit::agent {

namespace {
constexpr std::array<std::string_view, 3> kEncodes = {"raw", "xor", "overwrite"};
}  // namespace

std::string_view to_string(Encode encode) { return kEncodes[static_cast<std::size_t>(encode)]; }

Result<Encode> encode_from_string(std::string_view name) {
  if (name == "delta") return Encode::kXor;
  const auto at = std::find(kEncodes.begin(), kEncodes.end(), name);
  if (at == kEncodes.end())
    return Error(Code::kInvalid, "encoding '" + std::string(name) + "' is none of raw, xor (or delta), overwrite");
  return static_cast<Encode>(at - kEncodes.begin());
}

std::string options_to_json(const JobOptions& options) {
  const plan::Options& o = options.plan;
  nlohmann::json j{{"bucket_bytes", o.bucket_bytes},
                   {"staging_bytes", o.staging_bytes},
                   {"partial", o.partial},
                   {"allow_cast", o.allow_cast}};
  if (options.encode != Encode::kRaw) j["encoding"] = to_string(options.encode);
  return j.dump();
}

Result<JobOptions> options_from_json(const std::string& text) {
  const nlohmann::json j = nlohmann::json::parse(text, nullptr, false);
  if (!j.is_object()) return Error(Code::kCorrupt, "the plan options are not a JSON object");
  JobOptions job;
  plan::Options& out = job.plan;
  for (const auto& [key, value] : j.items()) {
    if (key == "bucket_bytes" && value.is_number_integer()) {
      out.bucket_bytes = value.get<std::int64_t>();
    } else if (key == "staging_bytes" && value.is_number_integer()) {
      out.staging_bytes = value.get<std::int64_t>();
    } else if (key == "partial" && value.is_boolean()) {
      out.partial = value.get<bool>();
    } else if (key == "allow_cast" && value.is_array()) {
      for (const nlohmann::json& v : value) {
        if (!v.is_string()) return Error(Code::kInvalid, "plan option 'allow_cast' holds something that is not a text");
        out.allow_cast.push_back(v.get<std::string>());
      }
    } else if (key == "encoding" && value.is_string()) {
      REFIT_ASSIGN(job.encode, encode_from_string(value.get<std::string>()));
    } else {
      return Error(Code::kInvalid, "plan option '" + key + "' is unknown or of the wrong type");
    }
  }
  if (out.bucket_bytes <= 0) return Error(Code::kInvalid, "refit.bucket_bytes must be positive");
  if (out.staging_bytes <= 0) return Error(Code::kInvalid, "refit.staging_bytes must be positive");
  return job;
}

}  // namespace refit::agent
