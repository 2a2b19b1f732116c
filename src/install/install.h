// Front header of install: the receiving transaction. What a target rank does with a round as a pure state machine, and
// the executor that moves the bytes. It knows landing tables, not plans.
#pragma once
#include "install/executor.h"
#include "install/landing_table.h"
#include "install/link.h"
#include "install/target.h"
