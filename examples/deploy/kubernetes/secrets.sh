#!/usr/bin/env bash
# Makes the keys of one job and the Secrets of the manifests beside this file: each workload gets its own keys and nobody else's.
# Usage: secrets.sh NAMESPACE [SOURCES [REPLICAS [TARGET_RANKS]]]. Needs refit and kubectl; leaves no key on this machine.
set -euo pipefail
namespace=$1 sources=${2:-2} replicas=${3:-2} ranks=${4:-1}
keys=$(mktemp -d)
trap 'rm -rf "$keys"' EXIT
refit keygen --out "$keys" --sources "$sources" --replicas "$replicas" --target-ranks "$ranks" >&2

secret() { # NAME FILE…
  local name=$1 file from=()
  shift
  for file; do from+=("--from-file=$keys/$file"); done
  kubectl --namespace "$namespace" create secret generic "$name" "${from[@]}"
}
secret refit-coordinator coordinator.key members.pub client-0.0.key
secret refit-trainer $(cd "$keys" && ls source-0.*.key)
for ((r = 0; r < replicas; r++)); do
  secret "refit-rollout-$r" $(cd "$keys" && ls "target-$r".*.key)
done
