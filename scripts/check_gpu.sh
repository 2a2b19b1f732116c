#!/usr/bin/env bash
# There is no GPU code in Refit yet. This says so, and what the machine would offer, instead of passing quietly.
set -u
echo "check-gpu: Refit has no GPU code path in this version; nothing can be checked."
if command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null; then
  echo "check-gpu: the GPUs above would be available."
else
  echo "check-gpu: no NVIDIA driver or device found (nvidia-smi does not list one)."
fi
command -v nvcc >/dev/null && nvcc --version | tail -1 || echo "check-gpu: no nvcc on PATH."
exit 2
