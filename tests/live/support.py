"""What the comparisons share: the refit binary, safetensors, and the rows of docs/proven-against.md."""
import argparse
import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", HF_HUB_DISABLE_PROGRESS_BARS="1", TOKENIZERS_PARALLELISM="false")

SKIPPED = 77  # exit status of a comparison whose framework is missing


class Desk:
    """One comparison's run: `refit` calls, a scratch folder, passed rows."""

    def __init__(self, framework, packages):
        parser = argparse.ArgumentParser()
        parser.add_argument("--refit", default=str(ROOT / "build/release/cli/refit"))
        parser.add_argument("--rows", help="file for the rows that passed, JSON")
        parser.add_argument("--only", default="", help="families whose name has this in it")
        self.arguments = parser.parse_args()
        self.framework, self.packages, self.rows, self.failed = framework, packages, [], []
        self.base = pathlib.Path(tempfile.mkdtemp(prefix="refit-live-"))

    def wanted(self, names):
        return [n for n in names if self.arguments.only in n]

    def refit(self, *arguments, refused=None):
        """JSON of `refit …`; with `refused`, the command must fail and say so."""
        done = subprocess.run([self.arguments.refit, *map(str, arguments), "--json"], capture_output=True, text=True, timeout=120)
        if (done.returncode != 0) != (refused is not None) or refused and refused not in done.stdout + done.stderr:
            raise AssertionError(f"refit {' '.join(map(str, arguments))}: {done.returncode} {(done.stdout + done.stderr)[-2000:]}")
        return json.loads(done.stdout) if done.stdout else {}

    def knows(self, model, name):
        """Whether this refit has rules for the saved model's family; says so when it has not."""
        done = subprocess.run([self.arguments.refit, "plan", "--model", str(model / "config.json"), "--from", "hf", "--to", "hf", "--json"], capture_output=True, text=True, timeout=120)
        known = "no rules for model_type" not in done.stdout
        if not known:
            print(f"SKIPPED: {name}: this refit has no rules for it", flush=True)
        return known

    def convert(self, model, spec, out, source="hf"):
        shutil.rmtree(out, ignore_errors=True)
        return self.refit("convert", "--model", model, "--from", source, "--to", spec, "--out", out)

    @contextlib.contextmanager
    def row(self, family, compared, layouts=""):
        """A row of the table, kept when the body passes. The body gets a dict: `checked` counts what was compared."""
        counts = {"checked": 0}
        try:
            yield counts
        except Exception as e:
            import traceback
            traceback.print_exc()
            self.failed.append(f"{family}: {compared} {layouts}: {e}")
            return
        if counts["checked"] == 0:
            self.failed.append(f"{family}: {compared} {layouts}: nothing was compared")
            return
        print(f"ok: {self.framework}: {family}: {compared} {layouts}: {counts['checked']}", flush=True)
        self.rows.append({"framework": self.framework, "family": family, "compared": compared, "layouts": layouts, "checked": counts["checked"]})

    def finish(self):
        shutil.rmtree(self.base, ignore_errors=True)
        for text in self.failed:
            print("FAILED:", text)
        if self.arguments.rows:
            import importlib.metadata
            versions = {p: importlib.metadata.version(p) for p in self.packages}
            pathlib.Path(self.arguments.rows).write_text(json.dumps({"rows": self.rows, "failed": self.failed, "versions": versions}))
        print(f"{self.framework}: {len(self.rows)} rows passed, {len(self.failed)} failed")
        sys.exit(1 if self.failed or not self.rows else 0)


def need(*modules):
    """Leaves with the reason when a framework is missing."""
    import importlib
    for name in modules:
        try:
            importlib.import_module(name)
        except ImportError as e:
            print(f"SKIPPED: {name} cannot be imported: {e}")
            sys.exit(SKIPPED)


def tensors(directory, stem):
    """All tensors of `directory`'s files called `stem` and a dot or dash, by safetensors' own reader."""
    from safetensors.torch import load_file
    out = {}
    for path in sorted(pathlib.Path(directory).glob(stem + "[.-]*safetensors")):
        out |= load_file(path)
    return out


def equal(got, want, what, names=True):
    """Bit for bit, names included."""
    import torch
    if names:
        assert got.keys() == want.keys(), f"{what}: names differ: {sorted(got.keys() ^ want.keys())[:8]}"
    for name in want:
        a, b = got[name].contiguous(), want[name].contiguous()
        assert a.dtype == b.dtype and a.shape == b.shape, f"{what}: {name}: {a.dtype} {list(a.shape)} is not {b.dtype} {list(b.shape)}"
        same = torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))
        assert same, f"{what}: {name}: values differ"
    return len(want)


def ranks(directory):
    return len(json.loads((pathlib.Path(directory) / "layout.json").read_text())["ranks"])
