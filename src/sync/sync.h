// Front header of sync: what a training loop drives.
#pragma once
#include "sync/staleness.h"
#include "sync/synchronizer.h"
