// Front header of files: checkpoints on disk. Everything read is hostile until checked; everything written appears
// complete or not at all.
#pragma once
#include "files/checkpoint.h"
#include "files/mapped_file.h"
#include "files/safetensors.h"
#include "files/writer.h"
