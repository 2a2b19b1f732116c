#!/usr/bin/env bash
# Builds refit_gpu_check by itself (g++, cmake, make or ninja, nvcc and nothing else) and runs it on this machine's first GPU, or with
# --double over the host double. Says what lacks instead of passing quietly: exit 2. REPORT names the report's file.
set -eu
cd "$(dirname "$0")/.."
report="${REPORT:-gpu-report.json}"
double=""
[ "${1:-}" = --double ] && double=1

lacking=()
for tool in cmake g++; do
  command -v $tool >/dev/null || lacking+=("$tool")
done
generator=()
if ! command -v make >/dev/null; then
  if command -v ninja >/dev/null; then generator=(-G Ninja); else lacking+=("make or ninja"); fi
fi
nvcc="$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)"
if [ -z "$double" ]; then
  [ -x "$nvcc" ] || lacking+=("nvcc (CUDA toolkit 12 or newer, on PATH or in /usr/local/cuda)")
  nvidia-smi -L 2>/dev/null | grep -q GPU || lacking+=("an NVIDIA driver and device (nvidia-smi -L lists none)")
fi
if [ ${#lacking[@]} -gt 0 ]; then
  echo "check-gpu: nothing was checked. This machine lacks:" >&2
  printf '  %s\n' "${lacking[@]}" >&2
  echo "check-gpu: 'scripts/check_gpu.sh --double' runs all but the hardware." >&2
  exit 2
fi

if [ -z "$double" ]; then
  nvidia-smi -L
  rm -f "$report"  # no older one may pass for this run's
fi
mkdir -p build
found=(); [ -x "$nvcc" ] && found=(-DREFIT_NVCC="$nvcc")
cmake -S tests/gpu -B build/gpu "${generator[@]}" "${found[@]}" >build/gpu-configure.log 2>&1 || { cat build/gpu-configure.log >&2; exit 2; }
cmake --build build/gpu -j "$(nproc)"
if [ -n "$double" ]; then
  exec build/gpu/refit_gpu_check --double
fi
# NCCL of the python environment, where the loader's path has none.
nccl="$(python3 -c 'import nvidia.nccl as n; print(list(n.__path__)[0] + "/lib")' 2>/dev/null || true)"
[ -z "$nccl" ] || export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$nccl"
code=0
timeout -k 10 420 build/gpu/refit_gpu_check --report "$report" || code=$?
case $code in 124 | 137) echo "check-gpu: stopped after 420 s" >&2 && code=1 ;; esac
if grep -q '"complete": true' "$report" 2>/dev/null; then
  echo "check-gpu: $report; keep it as docs/gpu-reports/DATE-DEVICE.json and date the rows of docs/gpu-validation.md"
elif [ -f "$report" ]; then
  echo "check-gpu: $report ends where the program did" >&2
fi
exit $code
