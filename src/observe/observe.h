// Front header of observe: metrics, traces and logs, made from phase events and reports. Above everything that it looks
// at; nothing that it looks at knows of it.
#pragma once
#include "observe/book.h"
#include "observe/listener.h"
#include "observe/spans.h"
#include "observe/table.h"
#include "observe/trace.h"
#include "observe/watchers.h"
