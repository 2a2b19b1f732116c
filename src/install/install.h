// Front header of install: the receiving transaction. It knows landing tables, not plans.
#pragma once
#include "install/executor.h"
#include "install/landing_table.h"
#include "install/target.h"
