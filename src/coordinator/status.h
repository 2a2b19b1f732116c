// What `refit status` and `refit verify` print, as JSON text.
#pragma once
#include <string>

#include "coordinator/step.h"

namespace refit::coordinator {

// Keys: lineage, epoch, membership_epoch, layout_epoch, plan, version {number, digest, step}, stage, txn, members
// [{name, member, incarnation, state, version, digest, connected, silent_ns, buckets_done, bytes_done,
// published (sources: the step that they offer)}], replicas
// [{instance, state, version}], last {outcome, number, error}, dropped, queues {journal, verify}.
std::string status_json(const State& state);
// {"ok":…, "version":…, "digest":…, "members":[{name, version, digest, domain, full, word, proof, errors}]}
std::string verify_json(const State& state, const VerifyCall& call);

}  // namespace refit::coordinator
