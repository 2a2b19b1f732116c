// Front header of model: logical tensors, rules and layouts. Pure: header bytes in, no files.
#pragma once
#include "model/block_format.h"
#include "model/layout.h"
#include "model/outside_names.h"
#include "model/recipe.h"
#include "model/values.h"
