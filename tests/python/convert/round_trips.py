#!/usr/bin/env python3
"""`refit convert` on tiny checkpoints of every family: to each side and back, bit for bit; some of the files against
formulas that do not use the rules; and what must be refused.

usage: round_trips.py REFIT      (needs numpy)
"""
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import tiny_families as tiny  # noqa: E402

REFIT = sys.argv[1]
SPECS = ["fsdp=3", "fsdp=2,tp=2", "tp=4", "vllm:tp=2", "vllm:tp=8", "sglang:tp=4", "megatron:tp=2,pp=2", "megatron:pp=2,vpp=2,first=2", "megatron:tp=4,pp=2,spec=local", "jax", "jax:tp=2"]
MOE = ["vllm:tp=2,dp=2,ep=4", "sglang:tp=4,ep=2", "megatron:tp=2,ep=4", "megatron:tp=2,pp=2,ep=2,etp=2", "megatron:ep=8,spec=local"]
JAX = {"llama", "llama tied", "qwen2", "qwen3", "gemma3", "qwen3_moe", "qwen3_next"}


def refit(*args, refused=None):
    done = subprocess.run([REFIT, "convert", *map(str, args), "--json"], capture_output=True, text=True, timeout=60)
    report = json.loads(done.stdout) if done.stdout else {"errors": [{"message": done.stderr}]}
    if refused is None:
        assert done.returncode == 0, f"{args}: {report}"
    else:
        text = json.dumps(report, ensure_ascii=False)
        assert done.returncode != 0 and refused in text, f"{args}: expected '{refused}', got {text}"
    return report


def equal(got, want, what):
    assert got.keys() == want.keys(), f"{what}: names differ: {sorted(got.keys() ^ want.keys())[:6]}"
    for name, a in want.items():
        assert got[name].dtype == a.dtype and got[name].shape == a.shape and got[name].tobytes() == a.tobytes(), f"{what}: {name} differs"


def check_layout_file(directory, tensors):
    """Every holding of layout.json, read from the file that its buffer names, is the checkpoint's box."""
    layout = json.loads((directory / "layout.json").read_text())
    skip = set(layout["recipe"]["values"])
    for rank in layout["ranks"]:
        data = {}
        for name, b in rank["buffers"].items():
            raw = (directory / b["file"]).read_bytes()
            data[name] = raw[8 + int.from_bytes(raw[:8], "little"):]
            assert len(data[name]) == b["bytes"]
        for h in rank["holdings"]:
            t = layout["tensors"][h["tensor"]]
            if h["tensor"] in skip or h.get("dtype", t["dtype"]) != t["dtype"]:
                continue
            radices = h.get("view", [[n] for n in t["shape"]])
            box = tensors[h["tensor"]].reshape([r for axis in radices for r in axis])[tuple(slice(lo, hi) for lo, hi in h["box"])]
            if box.size:
                held = np.ndarray(box.shape, box.dtype, data[h["buffer"]], h["offset"], h["strides"])
                assert np.array_equal(held, box), f"{directory.name} rank {rank['rank']}: {h['tensor']}"


def per_expert(tensors):
    return all(".experts.gate_up_proj" not in n for n in tensors)


def round_trips(base, name):
    source = base / "hf"
    config, tensors = tiny.write(source, name)
    drafts = any(n.startswith(("mtp.", "model.layers.4.")) for n in tensors)
    moe = any(".experts." in n for n in tensors)
    for spec in SPECS + (MOE if moe else []):
        if spec.startswith("jax") and name not in JAX or spec == "vllm:tp=8" and "linear_num_key_heads" in config:
            continue
        skipped = drafts and spec.startswith(("vllm", "sglang"))
        if skipped:
            refit("--model", source, "--to", spec, "--out", base / "no", refused="draft layer")
            assert not (base / "no").exists()
            spec += ",draft=skip"
        there = base / spec.replace(":", "_").replace(",", "_")
        report = refit("--model", source, "--to", spec, "--out", there)
        check_layout_file(there, tensors)
        if skipped:
            assert report["unwanted"], spec
            refit("--model", there, "--from", spec, "--to", "hf", "--out", base / "no", refused="no source rank holds any of it")
            continue
        refit("--model", there, "--from", spec, "--to", "hf", "--out", base / "back")
        equal(tiny.read_all(base / "back", "model"), tensors, f"{name} through {spec}")
        assert json.loads((base / "back/config.json").read_text()) == config
        shutil.rmtree(base / "back")
    # From one side to another, without the checkpoint in between.
    a, b = "fsdp=2,tp=2", "megatron:tp=2,pp=2"
    refit("--model", base / "fsdp=2_tp=2", "--from", a, "--to", b, "--out", base / "across")
    for rank in range(4):
        equal(tiny.read_all(base / "across", f"rank{rank}"), tiny.read_all(base / "megatron_tp=2_pp=2", f"rank{rank}"), f"{name} {a} to {b}")
    return len(SPECS) + (len(MOE) if moe else 0)


def shards_and_naming(base):
    source = base / "hf"
    _, tensors = tiny.write(source, "qwen3_moe")
    refit("--model", source, "--to", "vllm:tp=2", "--out", base / "s", "--shard-bytes", "4KiB")
    assert len(list((base / "s").glob("rank1-*-of-*.safetensors"))) > 2
    check_layout_file(base / "s", tensors)
    refit("--model", base / "s", "--from", "vllm:tp=2", "--to", "hf", "--out", base / "b", "--shard-bytes", "4KiB")
    index = json.loads((base / "b/model.safetensors.index.json").read_text())["weight_map"]
    assert index.keys() == tensors.keys()
    equal(tiny.read_all(base / "b", "model"), tensors, "shards")
    refit("--model", base / "b", "--to", "hf:naming=fused", "--out", base / "f")
    fused = tiny.read_all(base / "f", "model")
    e = "model.layers.0.mlp.experts."
    assert np.array_equal(fused[e + "gate_up_proj"][3], np.concatenate([tensors[e + "3.gate_proj.weight"], tensors[e + "3.up_proj.weight"]]))
    # A checkpoint with stacked experts gets them back stacked.
    refit("--model", base / "f", "--to", "megatron:ep=2", "--out", base / "m")
    refit("--model", base / "m", "--from", "megatron:ep=2", "--to", "hf", "--out", base / "g")
    equal(tiny.read_all(base / "g", "model"), fused, "fused naming")


def refusals(base):
    source = base / "hf"
    config, tensors = tiny.write(source, "qwen3_next")
    out = ["--out", base / "out"]
    refit("--model", source, "--to", "vllm:tp=3,draft=skip", *out, refused="num_attention_heads 8 does not divide by tp=3")
    refit("--model", source, "--to", "megatron:ep=3", *out, refused="num_experts 8 does not divide by ep=3")
    refit("--model", source, "--to", "torch", *out, refused="unknown side 'torch'")
    refit("--model", source, "--to", "jax:pp=2", *out, refused="unknown key 'pp'")
    refit("--model", base / "nowhere", "--to", "hf", *out, refused="no such file")
    refit("--model", source, "--from", "vllm:tp=2", "--to", "hf", *out, refused="layout.json")
    # A value that w − 1 does not keep.
    norm = "model.layers.0.linear_attn.norm.weight"
    lossy = dict(tensors, **{norm: tensors[norm].copy()})
    lossy[norm][3] = 0x2f01  # about 1e-10
    tiny.write_file(source / "model.safetensors", lossy)
    refit("--model", source, "--to", "megatron", *out, refused="loses the value at element 3")
    assert refit("--model", source, "--to", "megatron", "--out", base / "lossy", "--allow-cast", norm)["ok"]
    # Missing and leftover names, shapes that contradict the configuration.
    for change, message in [(lambda t: t.pop("model.norm.weight"), "lacks model.norm.weight"), (lambda t: t.update({"model.vision.weight": np.zeros(3, np.uint16)}), "describes model.vision.weight"),
                            (lambda t: t.update({"model.norm.weight": np.zeros(3, np.uint16)}), "model.norm.weight as [3], config.json says [12]")]:
        broken = dict(tensors)
        change(broken)
        tiny.write_file(source / "model.safetensors", broken)
        refit("--model", source, "--to", "megatron", *out, refused=message)
    tiny.write_file(source / "model.safetensors", tensors)
    refit("--model", source, "--to", "megatron:tp=2", "--out", base / "m")
    refit("--model", base / "m", "--from", "megatron:tp=4", "--to", "hf", *out, refused="is of 'megatron:tp=2'")
    rank = tiny.read_all(base / "m", "rank1")
    less = {n: a for n, a in rank.items() if "out_norm" not in n} | {"stray": rank["decoder.final_layernorm.weight"]}
    tiny.write_file(base / "m/rank1.safetensors", less)
    refit("--model", base / "m", "--from", "megatron:tp=2", "--to", "hf", *out, refused="stray, which the layout does not know")
    # Two owners of one tensor that differ.
    other = dict(rank, **{"decoder.final_layernorm.weight": rank["decoder.final_layernorm.weight"] ^ 1})
    tiny.write_file(base / "m/rank1.safetensors", other)
    refit("--model", base / "m", "--from", "megatron:tp=2", "--to", "hf", *out, refused="source ranks 0 and 1 hold different values")
    # Padding is ignored on the way back.
    padded = dict(rank)
    for name in ("embedding.word_embeddings.weight", "output_layer.weight"):
        padded[name] = rank[name].copy()
        padded[name][4:] = 0x40e0  # rows 132 and above of the vocabulary
    tiny.write_file(base / "m/rank1.safetensors", padded)
    refit("--model", base / "m", "--from", "megatron:tp=2", "--to", "hf", "--out", base / "good")
    equal(tiny.read_all(base / "good", "model"), tensors, "padding")
    assert not (base / "out").exists() and not list(base.glob("*.partial-*"))


def main():
    trips = 0
    for name in tiny.FAMILIES:
        with tempfile.TemporaryDirectory() as folder:
            trips += round_trips(pathlib.Path(folder), name)
    for part in (shards_and_naming, refusals):
        with tempfile.TemporaryDirectory() as folder:
            part(pathlib.Path(folder))
    print(f"{trips} round trips of {len(tiny.FAMILIES)} checkpoints restore every byte")


if __name__ == "__main__":
    main()
