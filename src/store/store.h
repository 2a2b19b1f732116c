// Front header of store: versions of a model as immutable objects. The object seam (object_store.h) has two forms, a
// directory and S3; above it publishing, following and retention see keys and bytes only.
#pragma once
#include "store/digest.h"
#include "store/directory_store.h"
#include "store/follow_state.h"
#include "store/follower.h"
#include "store/format.h"
#include "store/history.h"
#include "store/object_store.h"
#include "store/publisher.h"
#include "store/retention.h"
#include "store/s3_options.h"
#include "store/url.h"
