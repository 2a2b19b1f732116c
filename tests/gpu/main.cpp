// refit_gpu_check: every GPU claim of Refit, tried on this machine's first GPU, or with --double on the host double.
#include <cstdio>
#include <cstdlib>
#include <ctime>

#include "gpu/bench.h"

namespace refit::gpu {
namespace {

constexpr char kUsage[] =
    "refit_gpu_check [--double] [--report FILE] [--no-figures]\n"
    "  --double      the same checks over cuda_host_double: all but the hardware\n"
    "  --report      default gpu-report.json (with --double: none)\n"
    "exit 0: all passed; 1: a check failed; 2: no usable GPU, the message says what lacks\n";

struct Options {
  bool is_double = false, figures = true;
  int peer = -1;
  std::string report;
};

bool parse(int argc, char** argv, Options& out) {
  for (int i = 1; i < argc; ++i) {
    const std::string a = argv[i];
    if (a == "--double") out.is_double = true;
    else if (a == "--no-figures") out.figures = false;
    else if (a == "--report" && i + 1 < argc) out.report = argv[++i];
    else if (a == "--peer" && i + 1 < argc) out.peer = std::atoi(argv[++i]);
    else return false;
  }
  if (out.report.empty() && !out.is_double) out.report = "gpu-report.json";
  return true;
}

std::string head(const Bench& b) {
  int driver = 0;
  (void)b.api->driver_version(&driver);
  char date[40];
  const std::time_t now = std::time(nullptr);
  std::strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&now));
  return "\"program\": \"refit_gpu_check\", \"api\": " + quoted(b.api->name) + ", \"date\": " + quoted(date) +
         ",\n \"device\": " + quoted(b.device.name()) + ", \"uuid\": " + quoted(memory::to_string(b.device.uuid())) +
         ", \"compute_capability\": " + std::to_string(b.device.compute()) + ", \"driver\": " + std::to_string(driver);
}

int fail(const Error& e) {
  std::fprintf(stderr, "refit_gpu_check: %s\nrefit_gpu_check: nothing was checked.\n", e.to_string().c_str());
  return 2;
}

int run(const Options& o, const char* program) {
  Peer peer;  // before any call of CUDA: a forked process cannot use it
  const std::string started = peer.start(program, o.is_double);
  const memory::CudaApi* api = &memory::cuda_host_double();
  if (!o.is_double) {
    auto found = memory::cuda_driver();
    if (!found.ok()) return fail(found.error());
    api = *found;
  }
  auto bench = Bench::make(*api);
  if (!bench.ok()) return fail(bench.error());
  Report report;
  bench->report = &report;
  std::printf("refit_gpu_check on %s\n", bench->device.text().c_str());
  report.check("flow.second_process", started);
  const auto flow = [&](Bench& b) { check_flow(b, peer); };
  const auto figures = [&](Bench& b) {
    if (o.figures && o.is_double) std::printf("figures of cuda_host_double, which say nothing about a GPU:\n");
    if (o.figures) measure(b);
  };
  const std::function<void(Bench&)> groups[] = {check_memory, check_moves, check_casts, check_quantise, check_delta,
                                                flow,         check_nccl,  check_torch, figures};
  // Written after each group: what hangs or kills the program later leaves what was found before.
  for (std::size_t i = 0; i < std::size(groups); ++i) {
    groups[i](*bench);
    if (o.report.empty() || report.write(o.report, head(*bench), i + 1 == std::size(groups))) continue;
    std::fprintf(stderr, "refit_gpu_check: cannot write %s\n", o.report.c_str());
    return 1;
  }
  std::printf("%d checks on %s: %s\n", report.checks(), bench->api->name, report.ok() ? "all passed" : "FAILED");
  return report.ok() ? 0 : 1;
}

}  // namespace
}  // namespace refit::gpu

int main(int argc, char** argv) {
  refit::gpu::Options o;
  if (!refit::gpu::parse(argc, argv, o)) return std::fputs(refit::gpu::kUsage, stderr), 64;
  if (o.peer >= 0) return refit::gpu::run_peer(o.peer, o.is_double);
  return refit::gpu::run(o, "/proc/self/exe");
}
