// Random jobs under GoogleTest.
#pragma once
#include <gtest/gtest.h>

#include "unit/kernel/jobs.h"
