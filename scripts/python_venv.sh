#!/usr/bin/env bash
# Makes a virtual environment once: python_venv.sh NAME REQUIREMENTS [pip option …]. It lies under .cache/NAME and is made
# anew when the requirements change. Prints its Python. It takes the interpreter that refit._native is built for.
set -eu
cd "$(dirname "$0")/.."
name=$1 requirements=$2
shift 2
home=.cache/$name
if ! cmp -s "$requirements" "$home/requirements.txt"; then
  echo "$name: installing $requirements into $home" >&2
  rm -rf "$home"
  "${REFIT_VENV_BASE:-.cache/venv/bin/python}" -m venv "$home"
  "$home/bin/python" -m pip install --quiet --disable-pip-version-check "$@" -r "$requirements"
  cp "$requirements" "$home/requirements.txt"
fi
echo "$PWD/$home/bin/python"
