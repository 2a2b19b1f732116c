// Front header of install: what a target rank does with a round, as a pure state machine. Executors stand beside it.
#pragma once
#include "install/link.h"
#include "install/target.h"
