// Front header of engine: what a trainer and an inference engine must offer, and in-process reference forms of both.
#pragma once
#include "engine/commit_word.h"
#include "engine/reference_engine.h"
#include "engine/reference_trainer.h"
#include "engine/seam.h"
#include "engine/training_step.h"
#include "engine/walk.h"
