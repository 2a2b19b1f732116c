#!/usr/bin/env bash
# Puts Tunix's models into .cache/tunix, for tests/live/tunix_models.py; nothing to do when they are there.
set -eu
cd "$(dirname "$0")/.."
list=tests/live/requirements-tunix.txt home=.cache/tunix
cmp -s "$list" "$home/requirements.txt" && exit 0
rm -rf "$home"
.cache/venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --target "$home" -r "$list"
cp "$list" "$home/requirements.txt"
