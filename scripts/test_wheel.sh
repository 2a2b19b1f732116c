#!/usr/bin/env bash
# Builds the wheel of the Python package with scikit-build-core and tries it in a clean environment: first without any
# framework, then with NumPy. Nothing of the build tree is used.
set -eu
cd "$(dirname "$0")/.."
home=build/wheel
rm -rf "$home/dist" "$home/venv"
mkdir -p "$home"
export CCACHE_BASEDIR=${CCACHE_BASEDIR:-$PWD} CCACHE_NOHASHDIR=1
.cache/venv/bin/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir "$home/dist" ./python
.cache/venv/bin/python -m venv "$home/venv"
python=$PWD/$home/venv/bin/python
"$python" -m pip install --quiet --disable-pip-version-check --no-deps "$home"/dist/weight_refit-*.whl
cd "$home"
"$python" - <<'P'
import importlib.metadata
import sys

import refit

assert refit.__version__ == importlib.metadata.version("weight-refit"), refit.__version__
layout = refit.Layout.from_model("llama-3.1-8b@layers=1", "tp=2")
assert refit.Plan(layout, refit.Layout.from_model("llama-3.1-8b@layers=1", "vllm:tp=4")).coverage == 1.0
assert "numpy" not in sys.modules and "torch" not in sys.modules
print("the wheel works without any framework:", layout)
P
"$python" -m pip install --quiet --disable-pip-version-check "numpy>=1.26,<3" ml_dtypes==0.6.0
cd ../../tests/python/package
exec "$python" -m unittest -v test_layouts test_arrays test_job
