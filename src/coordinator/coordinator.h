// Front header of coordinator: membership, rounds, two-phase commit, journal, status. It sees neither weights nor
// plans.
#pragma once
#include "coordinator/driver.h"
#include "coordinator/journal.h"
#include "coordinator/roster.h"
#include "coordinator/status.h"
#include "coordinator/step.h"
