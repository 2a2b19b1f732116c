#!/usr/bin/env python3
"""Runs every comparison of this folder and keeps docs/proven-against.md: what each showed is written there, and a run that
shows anything else fails.

usage: run.py [--refit BINARY] [--write] [SCRIPT ...]      (without a script: those of .cache/venv-live)
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
PAGE = HERE.parents[1] / "docs/proven-against.md"
COMPARISONS = ["transformers_models.py", "torch_shards.py", "vllm_layouts.py", "megatron_modules.py", "nnx_models.py", "tunix_models.py"]
ENVIRONMENTS = {"sglang_layouts.py": ".cache/venv-sglang"}
SKIPPED = 77
DEADLINE = 1800

INTRODUCTION = """# Proven against

Refit's rules compared with modules that Refit did not write. `make test-live` and `make test-sglang` run all of it again and fail
when a row is missing, new, or compared another number of things; with WRITE=1 they write this page. Models are tiny and random,
with an odd vocabulary, two KV heads and widths that differ pairwise; no parameter keeps a value that a fresh model gives it.
`things` counts tensors, parameters over all ranks, shards, or logits.

What stands in for what a machine without a GPU lacks:
- vLLM: ranks are played in one process (a group of one says that it is member r of T); experts without gates are allowed though its
  CPU kernels lack them. Its models, and SGLang's, are compared before the engine repacks them.
- SGLang: two operators of another engine are names without bodies; no NCCL communicator. DP attention is that with
  `--enable-dp-lm-head`.
- Tunix: its models alone, without the trainers that its package imports.
- Megatron-Core: `torch.cuda.current_device`, `Tensor.cuda` and the GPU's random state are replaced; latent attention's kernel is
  plain causal attention, Qwen3-Next's and 3.5's norms count from 1 as under Transformer Engine, the delta net's L2 norm is a line of
  torch, Nemotron-H's mixer takes a norm with nothing but its weight. gpt-oss runs without sliding windows and yarn. Nemotron-H's
  convolution has the names of this release there (`mixer.conv1d.weight`), and a draft layer's inner layer
  (`mtp.layers.0.transformer_layer`); Refit writes those of later ones. Draft layers (", drafts") are the last layer's shapes with random
  values, because transformers has none: names, shapes and bytes are compared, no forward pass.
"""


def section(script, result):
    """One framework's part of the page."""
    framework = result["rows"][0]["framework"]
    versions = ", ".join(f"{p} {v}" for p, v in result["versions"].items())
    lines = [f"## {framework}", "", f"{versions}. `{environment(script)}/bin/python tests/live/{script}`", "", "| family | compared | layouts | things |", "|---|---|---|---|"]
    rows = {}
    for row in result["rows"]:
        one = rows.setdefault((row["family"], row["compared"]), [[], 0])
        one[0].append("`" + row["layouts"].replace("|", "\\|") + "`")
        one[1] += row["checked"]
    lines += [f"| {family} | {compared} | {' '.join(layouts)} | {checked} |" for (family, compared), (layouts, checked) in rows.items()]
    return framework, "\n".join(lines) + "\n"


def page(results):
    """The page with the parts of this run; parts of frameworks that were skipped stay as they are."""
    old = PAGE.read_text() if PAGE.exists() else ""
    parts = {text.split("\n", 1)[0]: "## " + text.rstrip("\n") + "\n" for text in old.split("\n## ")[1:]}
    parts |= dict(section(script, result) for script, result in results)
    return "\n".join([INTRODUCTION, *parts.values()])


def environment(script):
    return ENVIRONMENTS.get(script, ".cache/venv-live")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--refit", default=str(HERE.parents[1] / "build/release/cli/refit"))
    parser.add_argument("--write", action="store_true")
    parser.add_argument("scripts", nargs="*", default=COMPARISONS)
    arguments = parser.parse_args()
    passed, failed, skipped, results = 0, 0, 0, []
    env = dict(os.environ, HF_HUB_OFFLINE="1")
    traced = subprocess.run([sys.executable, HERE / "tracing.py"], timeout=DEADLINE, env=env)
    passed, failed = passed + (traced.returncode == 0), failed + (traced.returncode != 0)
    for script in arguments.scripts:
        python = HERE.parents[1] / environment(script) / "bin/python"
        if not python.exists():
            print(f"{script}: SKIPPED: {environment(script)} was not made")
            skipped += 1
            continue
        with tempfile.TemporaryDirectory() as folder:
            rows = pathlib.Path(folder) / "rows.json"
            done = subprocess.run([python, HERE / script, "--refit", arguments.refit, "--rows", rows], timeout=DEADLINE, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            if done.returncode == SKIPPED:
                print(f"{script}: {done.stdout.strip().splitlines()[-1]}")
                skipped += 1
                continue
            result = json.loads(rows.read_text()) if rows.exists() else {"rows": [], "failed": ["ended without a result"], "versions": {}}
            passed, failed = passed + len(result["rows"]), failed + len(result["failed"])
            print(f"{script}: {len(result['rows'])} rows passed, {len(result['failed'])} failed", flush=True)
            if result["failed"] or done.returncode:
                print(done.stdout[-20000:])
                failed += not result["failed"]
            results.append((script, result))
    if not failed and results:
        text = page(results)
        if arguments.write:
            PAGE.write_text(text)
        same = PAGE.exists() and PAGE.read_text() == text
        passed, failed = passed + same, failed + (not same)
        if not same:
            (PAGE.parents[1] / "build/proven-against.md").write_text(text)
            print("docs/proven-against.md is not what this run showed (build/proven-against.md is); WRITE=1 replaces it")
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
