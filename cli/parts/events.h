// What the long-running parts (coordinator, publish, serve) tell: one event a line, as text or as a JSON object, from
// any of their threads; and how they are asked to end.
#pragma once
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>

#include "core/core.h"

namespace refit::cli {

// *thread-safe*.
class Events {
 public:
  explicit Events(bool json) : json_(json) {}
  // In text: "WHO WHAT key value key value"; values that are null are left out.
  void tell(const std::string& who, const std::string& what,
            const nlohmann::ordered_json& fields = nlohmann::ordered_json::object());

 private:
  std::mutex mutex_;
  const bool json_;
};

// SIGINT or SIGTERM came since the first call.
bool asked_to_end();

nlohmann::ordered_json to_event(const Error& error);

}  // namespace refit::cli
