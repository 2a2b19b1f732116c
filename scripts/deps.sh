#!/usr/bin/env bash
# Installs the Debian packages that are missing, and a venv with NumPy for the reference tests. Says what it does.
set -eu
cd "$(dirname "$0")/.."
mkdir -p build .cache

packages=(g++ cmake ninja-build pkg-config ccache python3 python3-venv
  libzmq3-dev cppzmq-dev libflatbuffers-dev flatbuffers-compiler libhwy-dev libxxhash-dev
  libcli11-dev libfmt-dev nlohmann-json3-dev libgtest-dev libgmock-dev)

if ! command -v dpkg-query >/dev/null; then
  echo "deps: this is not a Debian system; install by hand what corresponds to: ${packages[*]}" >&2
  exit 1
fi
missing=()
for p in "${packages[@]}"; do
  [ "$(dpkg-query -W -f='${db:Status-Status}' "$p" 2>/dev/null || true)" = installed ] || missing+=("$p")
done
if [ ${#missing[@]} -gt 0 ]; then
  as_root=()
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || { echo "deps: need root or sudo to install: ${missing[*]}" >&2; exit 1; }
    as_root=(sudo)
  fi
  echo "deps: installing ${missing[*]}"
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >build/deps.log
fi

venv=.cache/venv-test
if ! "$venv/bin/python" -c 'import numpy' 2>/dev/null; then
  echo "deps: making $venv (numpy)"
  rm -rf "$venv"
  python3 -m venv "$venv"
  "$venv/bin/pip" install -q 'numpy>=1.26,<3'
fi
