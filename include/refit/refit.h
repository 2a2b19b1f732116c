// The public interface of Refit. Standard types only; every failure is thrown as refit::Error.
#pragma once
#include "refit/coordinator.h"
#include "refit/decision.h"
#include "refit/error.h"
#include "refit/layout.h"
#include "refit/member.h"
#include "refit/plan.h"

// Inside the library the plain names belong to its own rooms.
#ifndef REFIT_INSIDE
namespace refit {
using namespace api;  // NOLINT(google-build-using-namespace): refit::Layout is refit::api::Layout
}
#endif
