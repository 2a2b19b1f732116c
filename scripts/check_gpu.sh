#!/usr/bin/env bash
# Builds refit_gpu_check by itself (g++, cmake, nvcc and nothing else) and runs it on this machine's first GPU, or with
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

[ -n "$double" ] || nvidia-smi -L
mkdir -p build
found=(); [ -x "$nvcc" ] && found=(-DREFIT_NVCC="$nvcc")
cmake -S tests/gpu -B build/gpu "${found[@]}" >build/gpu-configure.log 2>&1 || { cat build/gpu-configure.log >&2; exit 2; }
cmake --build build/gpu -j "$(nproc)"
if [ -n "$double" ]; then
  exec build/gpu/refit_gpu_check --double
fi
code=0
timeout 480 build/gpu/refit_gpu_check --report "$report" || code=$?
[ -f "$report" ] && echo "check-gpu: $report; keep it as docs/gpu-reports/DATE-DEVICE.json and date the rows of docs/gpu-validation.md"
exit $code
