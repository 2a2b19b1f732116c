// One program for all targets: REFIT_FUZZ_TARGET names the one to run.
#include "fuzz/fuzz.h"

namespace {

const refit::fuzz::Target& chosen() {
  static const refit::fuzz::Target kTarget = [] {
    const char* name = std::getenv("REFIT_FUZZ_TARGET");
    for (const refit::fuzz::Target& t : refit::fuzz::all_targets())
      if (name != nullptr && std::string_view(name) == t.name) return t;
    std::fprintf(stderr, "REFIT_FUZZ_TARGET must name a target; `fuzz_replay` lists them\n");
    std::exit(2);
  }();
  return kTarget;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  (void)chosen().run(std::as_bytes(std::span(data, size)));
  return 0;
}
