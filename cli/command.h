// How a command registers itself with the program. One file per command; nothing else needs editing.
#pragma once
#include <CLI/CLI.hpp>
#include <functional>
#include <string>

#include "core/core.h"

namespace refit::cli {

// Shared by all commands. `json`: print one JSON object on stdout and nothing else there.
struct Context {
  bool json = false;
  int exit_code = 0;  // what main() returns: 0 only on success
};

// Prints the error (JSON form {"ok":false,"errors":[…]} on stdout, else one line a message on stderr) and sets the exit
// code.
void fail(Context& context, const Error& error);
void fail(Context& context, const std::vector<Error>& errors);

using Setup = void (*)(CLI::App& app, Context& context);
struct Registration {
  Registration(const char* name, Setup setup);
};

}  // namespace refit::cli

// In a command's file, at namespace scope: REFIT_COMMAND("plan", setup_plan);
#define REFIT_COMMAND(name, setup) static const ::refit::cli::Registration setup##_registration(name, setup)
