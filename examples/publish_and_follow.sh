#!/usr/bin/env bash
# A trainer that brings versions to a directory, and a follower that knows nothing but the directory. s3://BUCKET/PREFIX in place of
# file:// does the same far away (docs/guides/s3.md). Usage: publish_and_follow.sh DIR; refit must be on PATH.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
cd "$1"
store=file://$PWD/store

# Checkpoints that appear while a run goes on; the publisher takes whole ones only.
python3 "$here/tiny_checkpoint.py" made --steps 2
mkdir checkpoints
refit publish --to "$store" --watch checkpoints --json >publisher.log &
publisher=$!
refit_follow() {
  refit serve --follow "$store" --target vllm:tp=2 --state state --until-step 2 --json >follower.log
}
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT

committed() { # STEP: waits until that step's version is in the store
  for ((i = 0; i < 300; i++)); do
    grep -q "\"event\":\"committed\".*\"step\":$1[,}]" publisher.log && return
    kill -0 "$publisher" || return 1
    sleep 0.1
  done
  echo "step $1 was not committed within 30 s" >&2
  return 1
}

mv made/step-0 checkpoints/
committed 0
refit_follow &
follower=$!
for step in 1 2; do
  mv "made/step-$step" checkpoints/
  committed "$step"
done
wait "$follower"
grep -o '"event":"serves"[^{]*"step":[0-9]*' follower.log
