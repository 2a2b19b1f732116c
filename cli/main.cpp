#include <fmt/format.h>

#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/version.h"

namespace refit::cli {
namespace {
std::map<std::string, Setup>& registry() {
  static std::map<std::string, Setup> commands;
  return commands;
}

nlohmann::json to_json(const Error& e) {
  nlohmann::json out{{"code", std::string(to_string(e.code))}, {"message", e.message}};
  const std::pair<const char*, const std::string*> fields[] = {
      {"peer", &e.peer}, {"stage", &e.stage}, {"bucket", &e.bucket}, {"tensor", &e.tensor}};
  for (const auto& [key, value] : fields)
    if (!value->empty()) out[key] = *value;
  if (e.need) out["need"] = *e.need;
  if (e.have) out["have"] = *e.have;
  return out;
}
}  // namespace

Registration::Registration(const char* name, Setup setup) { registry().emplace(name, setup); }

void fail(Context& context, const Error& error) { fail(context, std::vector<Error>{error}); }
void fail(Context& context, const std::vector<Error>& errors) {
  context.exit_code = 1;
  if (context.json) {
    nlohmann::json list = nlohmann::json::array();
    for (const Error& e : errors) list.push_back(to_json(e));
    fmt::print("{}\n", nlohmann::json{{"ok", false}, {"errors", list}}.dump(-1, ' ', false,
                                                                            nlohmann::json::error_handler_t::replace));
    return;
  }
  for (const Error& e : errors) fmt::print(stderr, "refit: {}\n", e.to_string());
}

}  // namespace refit::cli

int main(int argc, char** argv) {
  refit::cli::Context context;
  CLI::App app{
      "Refit moves the newest weights of a model from its trainer to its inference engines: in their layout, all or "
      "nothing, proven."};
  app.set_version_flag("--version", refit::cli::version_text);
  app.require_subcommand(1);
  for (const auto& [name, setup] : refit::cli::registry()) setup(app, context);
  CLI11_PARSE(app, argc, argv);
  return context.exit_code;
}
