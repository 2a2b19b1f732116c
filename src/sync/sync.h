// Front header of sync: what a training loop drives, and what its configuration means.
#pragma once
#include "sync/config.h"
#include "sync/constraints.h"
#include "sync/decision_json.h"
#include "sync/factory.h"
#include "sync/host.h"
#include "sync/lifecycle.h"
#include "sync/staleness.h"
#include "sync/synchronizer.h"
