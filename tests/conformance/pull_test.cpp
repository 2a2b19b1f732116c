#include "pull_suite.h"

#include "beds.h"

namespace refit::conformance {
namespace {

class Pull : public testing::TestWithParam<Param> {};
TEST_P(Pull, Holds) { run_check(GetParam()); }

INSTANTIATE_TEST_SUITE_P(loopback, Pull,
                         testing::ValuesIn(params("loopback", make_bed<NamedBed>("loopback"), pull_checks())), name_of);
INSTANTIATE_TEST_SUITE_P(sim, Pull, testing::ValuesIn(params("sim", make_bed<SimBed>(), pull_checks())), name_of);
INSTANTIATE_TEST_SUITE_P(shm, Pull, testing::ValuesIn(params("shm", make_bed<ShmBed>(), pull_checks())), name_of);
// The library itself, where `make test-nixl` says that it is here.
std::vector<Param> real_nixl() {
  if (std::getenv("REFIT_TEST_NIXL") == nullptr) return {};
  return params("nixl", make_bed<NamedBed>("nixl"), pull_checks());
}
INSTANTIATE_TEST_SUITE_P(nixl, Pull, testing::ValuesIn(real_nixl()), name_of);
INSTANTIATE_TEST_SUITE_P(nixl_host_double, Pull,
                         testing::ValuesIn(params("nixl_host_double", make_bed<NamedBed>("nixl_host_double"),
                                                  pull_checks())),
                         name_of);

}  // namespace
}  // namespace refit::conformance
