#!/usr/bin/env python3
"""The same work through peers and Refit, interleaved in one run: run.py [--rows PREFIX,…] [--bytes N] …

Makes the peers' environments the first time (4.5 GB under .cache), takes turns over all rows in each pass, and writes peers.json
and the page with its plots into --out. A row that is missing or fails is kept with its reason. README.md says what each row is."""

import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import zipfile

import children
import machine

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
MCORE = "0.19.2"
DENSITIES = (0.001, 0.01, 0.03, 0.05)
DENSE = ("torch_shm", "refit_shm", "ray", "nixl", "refit_tcp", "refit_tcp_mac", "gloo_exact", "nixl_tcp", "mooncake_tcp", "gloo_gather", "torchstore")
# Which planner worlds `refit bench plan` has a row for.
PLANS = ("qwen3-30b-a3b", "deepseek-v3")
SHORT = {"torch", "numpy", "nixl-cu12", "mooncake-transfer-engine-non-cuda", "ray", "zstandard", "ml_dtypes", "torchstore", "torchmonarch"}


def options():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default="", help="beginnings of row names, by comma: ceilings, dense.nixl, delta, quantise, refit, plan")
    parser.add_argument("--bytes", type=int, default=2_430_000_000, help="the dense model, about")
    parser.add_argument("--mib", type=int, default=600, help="buffers of codecs and quantisation")
    parser.add_argument("--passes", type=int, default=3, help="turns over all rows")
    parser.add_argument("--repeats", type=int, default=3, help="timed repeats of a row in each pass")
    parser.add_argument("--planner-ranks", type=int, default=256, help="destinations that Megatron's planner plans; fewer than 256 are extrapolated")
    parser.add_argument("--seconds", type=float, default=300, help="deadline of one row in one pass")
    parser.add_argument("--refit", type=pathlib.Path, default=ROOT / "build/release", help="build folder")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build/peers")
    parser.add_argument("--torchstore", action="store_true", help="make its environment too (another 4 GB) and run its row")
    parser.add_argument("--quick", action="store_true", help="small and once, to see that everything works; no figure of it means anything")
    o = parser.parse_args()
    if o.quick:
        o.bytes, o.mib, o.passes, o.repeats, o.planner_ranks = 300_000_000, 96, 1, 1, 1
    return o


def say(text):
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def environment(name, requirements, *pip):
    """Python of a virtual environment, made once; (None, reason) where it cannot be made."""
    done = subprocess.run(
        [ROOT / "scripts/python_venv.sh", name, (HERE / requirements).relative_to(ROOT), *pip], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=3600
    )  # fmt: skip
    if done.returncode:
        return None, f"no environment: {(done.stderr.strip().splitlines() or ['?'])[-1]}"
    return pathlib.Path(done.stdout.strip()), None


def megatron(python):
    """The unpacked wheel: (folder, None) or (None, reason). It wants a newer Python than the rest; its planner's files do not."""
    folder = ROOT / ".cache" / f"megatron-core-{MCORE}"
    if folder.is_dir():
        return folder, None
    with tempfile.TemporaryDirectory(dir=ROOT / ".cache/") as scratch:
        got = subprocess.run(
            [python, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--python-version", "3.12", "-d", scratch, f"megatron-core=={MCORE}"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600,
        )  # fmt: skip
        wheels = list(pathlib.Path(scratch).glob("*.whl"))
        if not wheels:
            return None, f"no wheel: {(got.stdout.strip().splitlines() or ['?'])[-1]}"
        zipfile.ZipFile(wheels[0]).extractall(pathlib.Path(scratch) / "unpacked")
        os.replace(pathlib.Path(scratch) / "unpacked", folder)
    return folder, None


class Run:
    def __init__(self, o):
        self.o, self.beginnings = o, [b for b in o.rows.split(",") if b]
        self.rows = {}  # name -> {"passes": [what each pass said]}
        self.python, self.no_python = environment("venv-peers", "requirements.txt", "--no-deps")
        self.torchstore, self.no_torchstore = None, "its environment was not asked for (--torchstore)"
        if o.torchstore:
            self.torchstore, self.no_torchstore = environment("venv-peers-torchstore", "requirements-torchstore.txt")
        self.mcore, self.no_mcore = megatron(self.python) if self.python else (None, self.no_python)
        self.refit = o.refit.resolve() / "cli/refit"
        self.package = {"PYTHONPATH": str(o.refit.resolve() / "python")}

    def wanted(self, name):
        return not self.beginnings or any(name.startswith(b) or b.startswith(name + ".") for b in self.beginnings)

    def row(self, name, command, seconds=None, env=None):
        """One pass of a row; command: a list, or the reason why there is none."""
        if not self.wanted(name):
            return
        start = time.monotonic()
        if isinstance(command, str):
            said = {"error": command}
        else:
            with tempfile.TemporaryDirectory(prefix="p") as scratch, tempfile.TemporaryDirectory(prefix="refit-peers-", dir="/dev/shm") as shared:
                places = {"TMPDIR": scratch, "REFIT_PEERS_SHM": shared}  # what a row that was ended leaves goes with them
                said = children.run(command, seconds or self.o.seconds, {**places, **(env or {})})
        entry = self.rows.setdefault(name, {"passes": []})
        if not isinstance(command, str):
            entry["command"] = " ".join(self.shorten(c) for c in command)
        entry["passes"].append(said)
        say(f"{name}: {said['error'] if 'error' in said else 'ok'} ({time.monotonic() - start:.1f} s)")

    def shorten(self, word):
        """A command as one would type it in the checkout."""
        text = str(word)
        for path, name in ((self.refit, "refit"), (self.python, "python"), (self.torchstore, "python"), (self.mcore, f".cache/megatron-core-{MCORE}")):
            if path and text == str(path):
                return name
        text = text.replace(f"{ROOT}/", "")
        return f"…/{os.path.basename(text)}" if text.startswith("/") else text

    def script(self, name, *arguments, python=""):
        """A program of this folder by the peers' Python or another; without one, the reason."""
        python = self.python if python == "" else python
        if python is None:
            return self.no_torchstore if self.python else self.no_python
        return [python, HERE / name, *map(str, arguments)]

    def one_pass(self, number):
        o = self.o
        k = ("--repeats", o.repeats)
        self.row("ceilings", self.script("ceilings.py", "--bytes", min(o.bytes, 1 << 30), *k, "--build", o.out.resolve()))
        turn = number % len(DENSE)
        for name in DENSE[turn:] + DENSE[:turn]:  # another one begins each pass
            python = self.torchstore if name == "torchstore" else self.python
            work = self.script("dense.py", name, "--bytes", o.bytes, *k, "--seconds", o.seconds, python=python)
            self.row(f"dense.{name}", work, o.seconds + 30, self.package)
        model = ["llama-3.2-1b@layers=1"] if o.bytes < 10**9 else []  # 0.65 GB; else the bench's own, 2.5 GB
        bench = lambda name, *words: [self.refit, "bench", name, "--json", *map(str, words)]  # noqa: E731
        self.row("refit.shm", bench("shm", *k, *model))
        self.row("refit.tcp", bench("tcp", *k, *model))
        for density in DENSITIES:
            self.row(f"delta.{density * 100:g}%", self.script("delta.py", "--density", density, "--bytes", o.mib << 20, *k, "--seed", number + 1))
        self.row("refit.delta", bench("delta", *k, "--mib", o.mib), 2 * o.seconds)
        self.row("quantise.torch", self.script("quantise.py", "--bytes", o.mib << 20, *k, "--build", o.out.resolve()), 2 * o.seconds)
        self.row("refit.quantize", bench("quantize", *k, "--mib", o.mib))
        self.row("refit.gather", bench("gather", *k, "--mib", o.mib))
        if number == 0 and not o.quick:  # minutes, and no peer beside it
            self.row("refit.transpose", bench("transpose", *k), 2 * o.seconds)
        for world in PLANS:
            self.row(f"plan.{world}.refit", self.script("planner_refit.py", "--model", world, *k), env=self.package)
            ranks, times = (o.planner_ranks, 1) if number == 0 else (8, o.repeats)  # the world once, then 8 destinations
            work = self.script("planner.py", "--mcore", self.mcore, "--model", world, "--ranks", ranks, "--repeats", times) if self.mcore else self.no_mcore
            self.row(f"plan.{world}.megatron", work, 4 * o.seconds)
        self.row("refit.plan", bench("plan", *k, "plan.deepseek-v3"))

    def document(self, started, seconds, load):
        o = self.o
        mine = machine.versions(self.python) if self.python else {}
        if self.torchstore:
            mine.update({f"{n} (torchstore's)": v for n, v in machine.versions(self.torchstore).items() if n.lower() in SHORT})
        return {
            "format": 1, "started": started, "seconds": round(seconds), "command": " ".join(["bench/peers/run.py", *(self.shorten(a) for a in sys.argv[1:])]),
            "options": {k: v if isinstance(v, (int, float, str)) else self.shorten(v) for k, v in vars(o).items()},
            "machine": machine.describe(), "load": load,
            "versions": {n: v for n, v in mine.items() if n.lower() in SHORT or "torchstore" in n} | {"megatron-core": MCORE, "refit": machine.commit(ROOT)},
            "rows": self.rows,
        }  # fmt: skip


def main():
    o = options()
    if not (o.refit / "cli/refit").exists():
        sys.exit(f"run.py: no {o.refit}/cli/refit: build it first (make build), or say --refit FOLDER")
    o.out.mkdir(parents=True, exist_ok=True)
    children.adopt()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("run.py: told to end"))
    run = Run(o)
    started, start, before = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()), time.monotonic(), machine.load()
    if before[0] > 1:
        say(f"load average {before[0]}: figures of a busy machine, ratios included, say little")
    loads = [before]
    try:
        for number in range(o.passes):
            say(f"pass {number + 1} of {o.passes}")
            run.one_pass(number)
            loads.append(machine.load())
            # After each pass: a run that is broken off keeps what it has.
            document = run.document(started, time.monotonic() - start, {"start": before, "end": loads[-1], "after_passes": loads[1:]})
            (o.out / "peers.json").write_text(json.dumps(document, indent=1) + "\n")
    finally:
        children.reap()
    import page

    page.write(document, o.out)
    say(f"{o.out}/peers.json, {o.out}/peers.md")
    failed = [name for name, row in run.rows.items() if all("error" in p for p in row["passes"])]
    if failed:
        say(f"without a figure: {', '.join(failed)}")


if __name__ == "__main__":
    main()
