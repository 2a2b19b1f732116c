#include "agent/bridge.h"

#include <nlohmann/json.hpp>

namespace refit::agent {

std::string options_to_json(const plan::Options& o) {
  return nlohmann::json{{"bucket_bytes", o.bucket_bytes},
                        {"staging_bytes", o.staging_bytes},
                        {"partial", o.partial},
                        {"allow_cast", o.allow_cast}}
      .dump();
}

Result<plan::Options> options_from_json(const std::string& text) {
  const nlohmann::json j = nlohmann::json::parse(text, nullptr, false);
  if (!j.is_object()) return Error(Code::kCorrupt, "the plan options are not a JSON object");
  plan::Options out;
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
    } else {
      return Error(Code::kInvalid, "plan option '" + key + "' is unknown or of the wrong type");
    }
  }
  if (out.bucket_bytes <= 0) return Error(Code::kInvalid, "refit.bucket_bytes must be positive");
  if (out.staging_bytes <= 0) return Error(Code::kInvalid, "refit.staging_bytes must be positive");
  return out;
}

}  // namespace refit::agent
