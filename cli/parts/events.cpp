#include "cli/parts/events.h"

#include <fmt/format.h>
#include <signal.h>

#include <atomic>
#include <cstdio>

namespace refit::cli {
namespace {
std::atomic<bool> end_asked{false};
void on_end(int) { end_asked = true; }
}  // namespace

bool asked_to_end() {
  static const bool installed = [] {
    ::signal(SIGINT, on_end);
    ::signal(SIGTERM, on_end);
    return true;
  }();
  return installed && end_asked.load();
}

void Events::tell(const std::string& who, const std::string& what, const nlohmann::ordered_json& fields) {
  std::string line;
  if (json_) {
    nlohmann::ordered_json all{{"who", who}, {"event", what}};
    all.update(fields);
    line = all.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  } else {
    line = who + " " + what;
    for (const auto& [key, value] : fields.items())
      if (!value.is_null()) line += " " + key + " " + (value.is_string() ? value.get<std::string>() : value.dump());
  }
  const std::lock_guard lock(mutex_);
  fmt::print("{}\n", line);
  std::fflush(stdout);
}

nlohmann::ordered_json to_event(const Error& e) {
  return {{"code", std::string(to_string(e.code))},
          {"peer", e.peer},
          {"stage", e.stage},
          {"bucket", e.bucket},
          {"tensor", e.tensor},
          {"message", e.message}};
}

}  // namespace refit::cli
