#include "push_suite.h"

#include "beds.h"

namespace refit::conformance {
namespace {

class Push : public testing::TestWithParam<Param> {};
TEST_P(Push, Holds) { run_check(GetParam()); }

INSTANTIATE_TEST_SUITE_P(loopback, Push,
                         testing::ValuesIn(params("loopback", make_bed<NamedBed>("loopback"), push_checks())), name_of);
INSTANTIATE_TEST_SUITE_P(sim, Push, testing::ValuesIn(params("sim", make_bed<SimBed>(), push_checks())), name_of);

INSTANTIATE_TEST_SUITE_P(tcp, Push, testing::ValuesIn(params("tcp", make_bed<TcpBed>("mac"), push_checks())), name_of);
INSTANTIATE_TEST_SUITE_P(tcp_plain, Push,
                         testing::ValuesIn(params("tcp_plain", make_bed<TcpBed>("none"), push_checks())), name_of);

INSTANTIATE_TEST_SUITE_P(zmq_sparse, Push,
                         testing::ValuesIn(params("zmq_sparse", make_bed<TcpBed>("mac", "zmq_sparse"), push_checks())),
                         name_of);

}  // namespace
}  // namespace refit::conformance
