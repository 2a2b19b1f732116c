// Front header of facade: the public interface itself. Nobody below includes it.
#pragma once
#include "refit/refit.h"
