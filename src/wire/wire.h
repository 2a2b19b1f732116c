// Front header of wire: everything that leaves a process. Control messages, the bucket header, the lent manifest page.
// Byte by byte in schema/wire.md.
#pragma once
#include "wire/bucket.h"
#include "wire/manifest.h"
#include "wire/messages.h"
