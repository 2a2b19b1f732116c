// Front header of core: the vocabulary that every other room shares. No room below it.
#pragma once
#include "core/box.h"
#include "core/checked.h"
#include "core/deadline.h"
#include "core/dtype.h"
#include "core/env.h"
#include "core/grid.h"
#include "core/hash.h"
#include "core/ids.h"
#include "core/result.h"
#include "core/runtime.h"
#include "core/segment.h"
#include "core/sizes.h"
