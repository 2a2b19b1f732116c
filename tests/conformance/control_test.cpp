#include "control_suite.h"

#include "beds.h"

namespace refit::conformance {
namespace {

class Control : public testing::TestWithParam<Param> {};
TEST_P(Control, Holds) { run_check(GetParam()); }

INSTANTIATE_TEST_SUITE_P(loopback, Control,
                         testing::ValuesIn(params("loopback", make_bed<NamedBed>("loopback"), control_checks())),
                         name_of);
INSTANTIATE_TEST_SUITE_P(zmq, Control, testing::ValuesIn(params("zmq", make_bed<NamedBed>("zmq"), control_checks())),
                         name_of);
INSTANTIATE_TEST_SUITE_P(zmq_tcp, Control,
                         testing::ValuesIn(params("zmq_tcp", make_bed<ZmqTcpBed>(), control_checks())), name_of);

}  // namespace
}  // namespace refit::conformance
