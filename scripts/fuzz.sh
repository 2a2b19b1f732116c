#!/usr/bin/env bash
# Coverage-guided fuzzing of every kind of bytes that comes from outside (tests/fuzz), with ASan and UBSan.
#   scripts/fuzz.sh [SECONDS per target, 10] [TARGET…]     KEEP=1 writes what it found back to tests/fuzz/corpus
# Ends with the count of executions of each target; exit code 1 when one found a fault (build/fuzz/faults has the input).
set -eu
cd "$(dirname "$0")/.."
seconds=${1:-10}
[ $# -gt 0 ] && shift
command -v clang++-19 >/dev/null || { echo "fuzz: needs Debian's clang-19 and libclang-rt-19-dev" >&2; exit 2; }
mkdir -p build
cmake --preset fuzz >build/configure-fuzz.log || { cat build/configure-fuzz.log; exit 1; }
cmake --build --preset fuzz -j "$(nproc)" --target fuzz_coverage fuzz_replay
bin=build/fuzz/tests/fuzz
work=build/fuzz/corpus
mkdir -p "$work" build/fuzz/faults
"$bin/fuzz_replay" --write "$work"
targets=("$@")
[ ${#targets[@]} -gt 0 ] || mapfile -t targets < <(ls "$work")
failed=0
one() {  # one target; its last lines tell executions and coverage
  local log="build/fuzz/$1.log"
  REFIT_FUZZ_TARGET=$1 "$bin/fuzz_coverage" -max_total_time="$seconds" -max_len=4096 -timeout=10 -rss_limit_mb=3000 \
    -print_final_stats=1 -artifact_prefix="build/fuzz/faults/$1-" "$work/$1" >"$log" 2>&1 || { echo "$1: FAULT, see $log"; return 1; }
  echo "$1: $(grep -o 'stat::number_of_executed_units: .*' "$log" | grep -o '[0-9]*') executions, $(grep -o 'cov: [0-9]*' "$log" | tail -1 | grep -o '[0-9]*') edges"
}
export -f one
export bin work seconds
printf '%s\n' "${targets[@]}" | xargs -P "$(nproc)" -I{} bash -c 'one {}' || failed=1
if [ -n "${KEEP:-}" ]; then
  rm -rf build/fuzz/merged
  for t in "${targets[@]}"; do
    mkdir -p "build/fuzz/merged/$t"
    REFIT_FUZZ_TARGET=$t "$bin/fuzz_coverage" -merge=1 -max_len=4096 "build/fuzz/merged/$t" "$work/$t" >"build/fuzz/$t.merge.log" 2>&1
    "$bin/fuzz_replay" --target "$t" --keep build/fuzz/merged
  done
fi
exit $failed
