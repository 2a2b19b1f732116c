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
SPECS = ["fsdp=3", "fsdp=3,flat=zero3", "fsdp=3,flat=fsdp1", "fsdp=2,tp=2", "tp=4", "vllm:tp=2", "vllm:tp=8", "sglang:tp=4", "megatron:tp=2,pp=2", "megatron:pp=2,vpp=2,first=2", "megatron:tp=4,pp=2,spec=local", "jax", "jax:tp=2", "jax:preset=tunix", "jax:preset=maxtext", "jax:preset=maxtext_scanned"]
MOE = ["vllm:tp=2,dp=2,ep=4", "sglang:tp=4,ep=2", "megatron:tp=2,ep=4", "megatron:tp=2,pp=2,ep=2,etp=2", "megatron:ep=8,spec=local"]
# Sides that have no rules for a checkpoint, with the tensor that they name.
FLAT = {name: {"fsdp=3,flat=fsdp1": why} for name, why in {"deepseek_v3": "'eh_proj'", "qwen3_next": "'mtp'", "qwen3 fp8": "weight_scale_inv", "deepseek fp8": "weight_scale_inv", "nemotron_h": "fc1_latent_proj", "gpt_oss mxfp4": "down_proj_blocks"}.items()}
WITHOUT = {"gemma4": {"megatron": "layers.3.self_attn.q_proj"}, "nemotron_h": {"sglang": "embeddings", "vllm:tp=8": "n_groups 4"}, "nemotron_h of one group": {"sglang": "embeddings", "megatron:tp": "n_groups 1"},
           "gpt_oss mxfp4": {"megatron": "gate_up_proj_blocks"}, "qwen3 fp8": {"megatron": "q_proj"}, "deepseek fp8": {"megatron": "q_a_proj", "vllm:tp=8": "whole blocks"}}
PRESETS = {"jax:preset=tunix": {"llama", "llama tied", "qwen2", "qwen3"}} | dict.fromkeys(("jax:preset=maxtext", "jax:preset=maxtext_scanned"), {"llama", "llama tied", "qwen3", "gemma3"})
JAX = {"gemma4", "gemma4 moe", "llama", "llama tied", "qwen2", "qwen3", "gemma3", "qwen3_moe", "qwen3_next"}


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
        if spec.startswith("jax:preset") and name not in PRESETS.get(spec, ()):
            continue
        if spec.startswith("jax") and name not in JAX or spec == "vllm:tp=8" and "linear_num_key_heads" in config:
            continue
        refused = next((why for side, why in (WITHOUT.get(name, {}) | FLAT.get(name, {})).items() if spec.startswith(side)), None)
        if refused:
            refit("--model", source, "--to", spec, "--out", base / "no", refused=refused)
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
    if any(side.startswith("megatron") for side in WITHOUT.get(name, {})):
        return len(SPECS) + (len(MOE) if moe else 0)
    a, b = "fsdp=2,tp=2", "megatron:tp=2,pp=2"
    refit("--model", base / "fsdp=2_tp=2", "--from", a, "--to", b, "--out", base / "across")
    for rank in range(4):
        equal(tiny.read_all(base / "across", f"rank{rank}"), tiny.read_all(base / "megatron_tp=2_pp=2", f"rank{rank}"), f"{name} {a} to {b}")
    return len(SPECS) + (len(MOE) if moe else 0)


def cut(a, parts, part, axis=0):
    return np.split(a, parts, axis=axis)[part]


def f32(a):
    return (a.astype(np.uint32) << 16).view(np.float32)


def references(base):
    """Some parameters of the harder families, by formulas of their own."""
    checked = 0

    def compare(name, spec, formula):
        nonlocal checked
        source = base / name
        if not source.exists():
            tiny.write(source, name)
        t = tiny.read_all(source, "model")
        refit("--model", source, "--to", spec, "--out", base / "out")
        for rank in range(len(json.loads((base / "out/layout.json").read_text())["ranks"])):
            held = tiny.read_all(base / "out", f"rank{rank}")
            for parameter, want in formula(t, rank).items():
                assert np.array_equal(held[parameter], want) and held[parameter].dtype == want.dtype, f"{name} {spec} rank {rank}: {parameter}"
                checked += 1
        shutil.rmtree(base / "out")

    groups, values, hk, hv, q, kv, hd = 4, 2, 3, 5, 8, 4, 6  # key heads, value heads of each, and sizes of tiny.delta

    def grouped(t):  # q, k, v, z, b, a of Qwen3-Next, in head order
        x = t["model.layers.0.linear_attn.in_proj_qkvz.weight"].reshape(groups, -1, 12)
        y = t["model.layers.0.linear_attn.in_proj_ba.weight"].reshape(groups, -1, 12)
        edges = np.cumsum([hk, hk, values * hv])
        return [part.reshape(-1, 12) for part in np.split(x, edges, axis=1) + np.split(y, [values], axis=1)]

    def flat(t):  # the same of Qwen3.5
        a = "model.layers.0.linear_attn.in_proj_"
        return np.split(t[a + "qkv.weight"], [groups * hk, 2 * groups * hk]) + [t[a + f"{x}.weight"] for x in "zba"]

    def gated_qkv(t):
        p = "model.layers.1.self_attn."
        both = t[p + "q_proj.weight"].reshape(kv, q // kv, 2, hd, 12)
        k, v = (t[p + f"{x}_proj.weight"].reshape(kv, hd, 12) for x in "kv")
        return np.concatenate([np.concatenate([both[g, :, 0].reshape(-1, 12), both[g, :, 1].reshape(-1, 12), k[g], v[g]]) for g in range(kv)])

    def conv(t, rank):
        parts = np.split(t["model.layers.0.linear_attn.conv1d.weight"], [groups * hk, 2 * groups * hk])
        return np.concatenate([cut(part, 2, rank) for part in parts])

    def delta_megatron(inputs):
        return lambda t, rank: {
            "decoder.layers.0.self_attention.in_proj.weight": np.concatenate([cut(part, 2, rank) for part in inputs(t)]),
            "decoder.layers.0.self_attention.conv1d.weight": conv(t, rank),
            "decoder.layers.0.self_attention.out_norm.weight": f32(t["model.layers.0.linear_attn.norm.weight"]) - np.float32(1),
            "decoder.layers.0.self_attention.out_proj.weight": cut(t["model.layers.0.linear_attn.out_proj.weight"], 2, rank, 1),
            "decoder.layers.1.self_attention.linear_qkv.weight": cut(gated_qkv(t), 2, rank)}

    def delta_vllm(joined):
        def formula(t, rank):
            a = "model.layers.0.linear_attn."
            out = {a + "conv1d.weight": conv(t, rank), a + "A_log": cut(f32(t[a + "A_log"]), 2, rank), a + "dt_bias": cut(t[a + "dt_bias"], 2, rank)}
            if joined:
                parts = flat(t)
                return out | {a + "in_proj_qkvz.weight": np.concatenate([cut(x, 2, rank) for x in parts[:4]]), a + "in_proj_ba.weight": np.concatenate([cut(x, 2, rank) for x in parts[4:]])}
            return out | {a + "in_proj_qkvz.weight": cut(t[a + "in_proj_qkvz.weight"], 2, rank), a + "in_proj_ba.weight": cut(t[a + "in_proj_ba.weight"], 2, rank)}
        return formula

    compare("qwen3_next", "megatron:tp=2", delta_megatron(grouped))
    compare("qwen3_5_moe", "megatron:tp=2", delta_megatron(flat))
    compare("qwen3_next", "vllm:tp=2,draft=skip", delta_vllm(False))
    compare("qwen3_5", "vllm:tp=2", delta_vllm(True))

    e = "model.layers.2.mlp.experts."

    def oss_vllm(t, rank):
        w13, w2 = t[e + "gate_up_proj"], t[e + "down_proj"]
        return {e + "routed_experts.w13_weight": cut(w13, 4, rank, 2).transpose(0, 2, 1), e + "routed_experts.w13_bias": cut(t[e + "gate_up_proj_bias"], 4, rank, 1),
                e + "routed_experts.w2_weight": cut(w2, 4, rank, 1).transpose(0, 2, 1), e + "routed_experts.w2_bias": t[e + "down_proj_bias"] * np.uint16(rank == 0),
                "model.layers.2.attn.sinks": cut(t["model.layers.2.self_attn.sinks"], 4, rank)}

    def oss_megatron(t, rank):
        out, m = {}, "decoder.layers.2.mlp.experts."
        width, group = rank % 2, rank // 2
        for j in range(4):
            x = group * 4 + j
            for kind, a in (("weight", t[e + "gate_up_proj"][x].T), ("bias", t[e + "gate_up_proj_bias"][x])):
                out[m + f"linear_fc1.{kind}{j}"] = np.concatenate([cut(a[0::2], 2, width), cut(a[1::2], 2, width)])
            out[m + f"linear_fc2.weight{j}"] = cut(t[e + "down_proj"][x].T, 2, width, 1)
            out[m + f"linear_fc2.bias{j}"] = t[e + "down_proj_bias"][x]
        return out

    compare("gpt_oss", "vllm:tp=4", oss_vllm)
    compare("gpt_oss", "megatron:tp=2,ep=2,etp=2", oss_megatron)

    def latent_vllm(t, rank):
        p = "model.layers.2."
        s, g = p + "self_attn.", p + "mlp."
        out = {s + "fused_qkv_a_proj.weight": np.concatenate([t[s + "q_a_proj.weight"], t[s + "kv_a_proj_with_mqa.weight"]]), g + "gate.e_score_correction_bias": t[g + "gate.e_score_correction_bias"],
               g + "shared_experts.gate_up_proj.weight": np.concatenate([cut(t[g + f"shared_experts.{x}_proj.weight"], 4, rank) for x in ("gate", "up")])}
        for x in ("q_b", "kv_b"):
            out[s + x + "_proj.weight"] = cut(t[s + x + "_proj.weight"], 4, rank)
        return out

    def latent_megatron(t, rank):
        p, m = "model.layers.4.", "mtp.layers.0."
        inner = m + "mtp_model_layer."
        return {} if rank < 2 else {m + "eh_proj.weight": cut(t[p + "eh_proj.weight"], 2, rank % 2), m + "final_layernorm.weight": t[p + "shared_head.norm.weight"], inner + "mlp.router.expert_bias": t[p + "mlp.gate.e_score_correction_bias"],
                                    inner + "self_attention.linear_kv_down_proj.weight": t[p + "self_attn.kv_a_proj_with_mqa.weight"], inner + "self_attention.linear_kv_up_proj.weight": cut(t[p + "self_attn.kv_b_proj.weight"], 2, rank % 2)}

    def gemma_vllm(t, rank):
        k = lambda i, x: t[f"model.layers.{i}.self_attn.{x}_proj.weight"]
        head = lambda a, size, n: a[n * size:(n + 1) * size]
        # 4 ranks: 4 KV heads of 6 in sliding layers, 2 of 10 in full ones, where keys are values; none in the last layer.
        out = {"model.layers.0.self_attn.qkv_proj.weight": np.concatenate([cut(k(0, "q"), 4, rank), head(k(0, "k"), 6, rank), head(k(0, "v"), 6, rank)]),
               "model.layers.1.self_attn.qkv_proj.weight": np.concatenate([cut(k(1, "q"), 4, rank)] + [head(k(1, "k"), 10, rank // 2)] * 2),
               "model.layers.3.self_attn.q_proj.weight": cut(k(3, "q"), 4, rank), "model.layers.2.layer_scalar": t["model.layers.2.layer_scalar"],
               "model.per_layer_model_projection.weight": cut(t["model.per_layer_model_projection.weight"], 4, rank)}
        table = np.concatenate([t["model.embed_tokens_per_layer.weight"], np.zeros((52, 32), np.uint16)])
        return out | {"model.embed_tokens_per_layer.weight": cut(table, 4, rank)}

    def gemma_experts(t, rank):
        p = "model.layers.2."
        stack, down = t[p + "experts.gate_up_proj"], t[p + "experts.down_proj"]
        return {p + "experts.routed_experts.w13_weight": np.concatenate([cut(stack[:, :16], 4, rank, 1), cut(stack[:, 16:], 4, rank, 1)], 1),
                p + "experts.routed_experts.w2_weight": cut(down, 4, rank, 2), p + "router.per_expert_scale": t[p + "router.per_expert_scale"]}

    compare("gemma4", "vllm:tp=4", gemma_vllm)
    compare("gemma4 moe", "vllm:tp=4", gemma_experts)

    def mamba(parts, groups, side):
        def formula(t, rank):
            m, n = "backbone.layers.0.mixer.", 3 * groups
            own = m.replace("backbone", "model") if side == "vllm" else "decoder.layers.0.mixer."
            lone = lambda a: a if groups == 1 else cut(a, parts, rank)
            z, x, b, c, dt = np.split(t[m + "in_proj.weight"], np.cumsum([40, 40, n, n]))
            cx, cb, cc = np.split(t[m + "conv1d.weight"], np.cumsum([40, n]))
            own_cut = lambda name: cut(t[m + name], parts, rank)
            out = {own + "in_proj.weight": np.concatenate([cut(z, parts, rank), cut(x, parts, rank), lone(b), lone(c), cut(dt, parts, rank)]),
                   own + ("conv1d.weight" if side == "vllm" else "conv1d_weight"): np.concatenate([cut(cx, parts, rank), lone(cb), lone(cc)]), own + "norm.weight": own_cut("norm.weight"), own + "dt_bias": own_cut("dt_bias")}
            if side == "vllm":
                return out | {own + "A": -np.exp(f32(own_cut("A_log")).astype(np.float64)).astype(np.float32), own + "D": own_cut("D")}
            return out | {own + "A_log": f32(own_cut("A_log")), own + "D": f32(own_cut("D"))}
        return formula

    compare("nemotron_h", "vllm:tp=4", mamba(4, 4, "vllm"))
    compare("nemotron_h of one group", "vllm:tp=4", mamba(4, 1, "vllm"))
    compare("nemotron_h", "megatron:tp=4", mamba(4, 4, "megatron"))

    def blocks_vllm(t, rank):
        e = "model.layers.1.mlp.experts."
        v, wide = e + "routed_experts.", slice(2 * 64 * rank, 2 * 64 * (rank + 1))
        fill = lambda a, axis, to: np.concatenate([a, np.zeros(a.shape[:axis] + (to - a.shape[axis],) + a.shape[axis + 1:], a.dtype)], axis)
        return {v + "w13_weight": fill(t[e + "gate_up_proj_blocks"].reshape(8, 192, 16)[:, wide], 1, 128), v + "w13_weight_scale": fill(t[e + "gate_up_proj_scales"][:, wide], 1, 128), v + "w13_bias": fill(t[e + "gate_up_proj_bias"][:, wide], 1, 128),
                v + "w2_weight": fill(t[e + "down_proj_blocks"].reshape(8, 32, 48)[:, :, 32 * rank:32 * (rank + 1)], 2, 32), v + "w2_weight_scale": fill(t[e + "down_proj_scales"][:, :, 2 * rank:2 * rank + 2], 2, 2), v + "w2_bias": t[e + "down_proj_bias"] * np.uint16(rank == 0)}

    def scales_vllm(t, rank):
        p = "model.layers.1."
        s = lambda x: t[p + x + "_proj.weight_scale_inv"]
        return {p + "self_attn.qkv_proj.weight_scale_inv": np.concatenate([cut(s("self_attn.q"), 8, rank)] + [cut(s(f"self_attn.{x}"), 4, rank // 2) for x in "kv"]),
                p + "mlp.gate_up_proj.weight_scale_inv": np.concatenate([cut(s(f"mlp.{x}"), 8, rank) for x in ("gate", "up")]), p + "mlp.down_proj.weight_scale_inv": cut(s("mlp.down"), 8, rank, 1),
                p + "mlp.down_proj.weight": cut(t[p + "mlp.down_proj.weight"], 8, rank, 1)}

    compare("gpt_oss mxfp4", "vllm:tp=2", blocks_vllm)
    compare("qwen3 fp8", "vllm:tp=8", scales_vllm)
    compare("kimi_k2", "vllm:tp=4", latent_vllm)
    compare("deepseek_v3", "megatron:tp=2,pp=2", latent_megatron)
    print(f"{checked} parameters agree with formulas")


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


def flat_shards(base):
    """FSDP1's and ZeRO-3's arrays by formula: a unit's parameters in the order of registration, in equal padded shards."""
    source = base / "hf"
    _, tensors = tiny.write(source, "qwen2")
    layer = [f"self_attn.{x}_proj.{kind}" for x in "qkv" for kind in ("weight", "bias")] + ["self_attn.o_proj.weight"] + [f"mlp.{x}_proj.weight" for x in ("gate", "up", "down")] + ["input_layernorm.weight", "post_attention_layernorm.weight"]
    units = {f"model.layers.{i}._flat_param": [f"model.layers.{i}.{n}" for n in layer] for i in range(4)} | {"_flat_param": ["model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"]}

    def shards(arrays, ranks, align):
        parts = []
        for a in arrays:
            parts.append(np.zeros(-sum(map(len, parts)) % align, a.dtype))
            parts.append(a.ravel())
        flat = np.concatenate(parts)
        return np.split(np.pad(flat, (0, -len(flat) % ranks)), ranks)

    for flat, align in (("fsdp1", 1), ("fsdp1_orig", 8), ("zero3", 1)):
        out = base / flat
        refit("--model", source, "--to", f"fsdp=5,flat={flat}", "--out", out)
        named = {n: [n] for n in tensors} if flat == "zero3" else units
        want = {n: shards([tensors[m] for m in members], 5, align) for n, members in named.items()}
        for rank in range(5):
            equal(tiny.read_all(out, f"rank{rank}"), {n: w[rank] for n, w in want.items()}, f"{flat} rank {rank}")
        check_layout_file(out, tensors)


def outside_names(base):
    """Wrappers' names and the language part of a model that sees, from checkpoints and back."""
    source = base / "hf"
    config, tensors = tiny.write(source, "gemma3")
    wrapped = {"module._orig_mod." + n: a for n, a in tensors.items()}
    tiny.write_file(source / "model.safetensors", wrapped)
    refit("--model", source, "--to", "vllm:tp=2", "--out", base / "v")
    refit("--model", base / "v", "--from", "vllm:tp=2", "--to", "hf", "--out", base / "back")
    equal(tiny.read_all(base / "back", "model"), tensors, "wrapped names")
    tiny.write_file(source / "model.safetensors", wrapped | {"model.norm.weight": tensors["model.norm.weight"]})
    refit("--model", source, "--to", "vllm:tp=2", "--out", base / "no", refused="tensor model.norm.weight is there twice")
    whole = {n.replace("model.", "model.language_model.", 1): a for n, a in tensors.items()}
    tiny.write_file(source / "model.safetensors", whole | {"model.vision_tower.post_layernorm.weight": tensors["model.norm.weight"]})
    (source / "config.json").write_text(json.dumps(dict(model_type="gemma3", architectures=["Gemma3ForConditionalGeneration"], text_config=config)))
    refit("--model", source, "--to", "fsdp=3", "--out", base / "no", refused="vision=skip")
    report = refit("--model", source, "--from", "hf:vision=skip", "--to", "fsdp=3", "--out", base / "f")
    assert report["skipped"] == ["model.vision_tower.post_layernorm.weight"], report
    refit("--model", base / "f", "--from", "fsdp=3", "--to", "hf", "--out", base / "language")
    equal(tiny.read_all(base / "language", "model"), whole, "language part")


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


def keys_as_values(base):
    """A side that keeps one tensor in two places gives it back only when both agree."""
    source = base / "hf"
    tiny.write(source, "gemma4")
    refit("--model", source, "--to", "vllm:tp=2", "--out", base / "v")
    held = tiny.read_all(base / "v", "rank0")
    qkv = held["model.layers.1.self_attn.qkv_proj.weight"] = held["model.layers.1.self_attn.qkv_proj.weight"].copy()
    assert qkv.shape == (60, 12) and np.array_equal(qkv[40:50], qkv[50:])
    qkv[55, 3] ^= 1
    tiny.write_file(base / "v/rank0.safetensors", held)
    refit("--model", base / "v", "--from", "vllm:tp=2", "--to", "hf", "--out", base / "out", refused="hold different values of the box")


def main():
    # `--every N` (slow builds): each N-th family only.
    every = int(sys.argv[sys.argv.index("--every") + 1]) if "--every" in sys.argv else 1
    trips = 0
    families = list(tiny.FAMILIES)[::every]
    for name in families:
        with tempfile.TemporaryDirectory() as folder:
            trips += round_trips(pathlib.Path(folder), name)
    for part in (references, flat_shards, outside_names, shards_and_naming, keys_as_values, refusals):
        with tempfile.TemporaryDirectory() as folder:
            part(pathlib.Path(folder))
    print(f"{trips} round trips of {len(families)} checkpoints restore every byte")


if __name__ == "__main__":
    main()
