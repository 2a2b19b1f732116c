#!/usr/bin/env python3
"""Checks expanded layouts against formulas written down independently of the rules.

usage: check_rules.py DUMP_LAYOUT      (needs numpy)

DUMP_LAYOUT prints a layout's holdings; this script fills each rank's memory through them from random tensors, cuts the
same parameters out of the tensors with numpy by the frameworks' own formulas, and compares names, shapes and bytes.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

ITEM = 2  # bf16


def ceil_chunk(a, axis, parts, part):
    size = -(-a.shape[axis] // parts)
    lo, hi = min(part * size, a.shape[axis]), min((part + 1) * size, a.shape[axis])
    return a[lo:hi] if axis == 0 else a[:, lo:hi]


def even(a, axis, parts, part):
    assert a.shape[axis] % parts == 0
    return np.split(a, parts, axis=axis)[part]


def padded(a, multiple):
    rows = -(-a.shape[0] // multiple) * multiple
    return np.concatenate([a, np.zeros((rows - a.shape[0],) + a.shape[1:], a.dtype)])


def is_moe(c, layer):
    return "num_experts" in c and layer not in c.get("mlp_only_layers", []) and (layer + 1) % c.get("decoder_sparse_step", 1) == 0


def vllm(c, t, rank, tp=1, dp=1, ep=1):
    tp_rank, wide, wide_rank = rank % tp, tp * dp, rank % (tp * dp)
    kv, hd = c["num_key_value_heads"], c["head_dim"]

    def kv_rows(a):
        if tp < kv:
            return even(a, 0, tp, tp_rank)
        head = tp_rank // (tp // kv)
        return a[head * hd:(head + 1) * hd]

    out = {"model.embed_tokens.weight": even(padded(t["model.embed_tokens.weight"], 64), 0, tp, tp_rank), "model.norm.weight": t["model.norm.weight"]}
    if not c.get("tie_word_embeddings"):
        out["lm_head.weight"] = even(padded(t["lm_head.weight"], 64), 0, tp, tp_rank)
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}."
        for kind in ("weight", "bias"):
            if p + f"self_attn.q_proj.{kind}" in t:
                out[p + f"self_attn.qkv_proj.{kind}"] = np.concatenate([even(t[p + f"self_attn.q_proj.{kind}"], 0, tp, tp_rank), kv_rows(t[p + f"self_attn.k_proj.{kind}"]), kv_rows(t[p + f"self_attn.v_proj.{kind}"])])
        out[p + "self_attn.o_proj.weight"] = even(t[p + "self_attn.o_proj.weight"], 1, tp, tp_rank)
        for name in ("input_layernorm", "post_attention_layernorm", "self_attn.q_norm", "self_attn.k_norm", "mlp.gate"):
            if p + name + ".weight" in t:
                out[p + name + ".weight"] = t[p + name + ".weight"]
        if not is_moe(c, i):
            out[p + "mlp.gate_up_proj.weight"] = np.concatenate([even(t[p + f"mlp.{x}_proj.weight"], 0, tp, tp_rank) for x in ("gate", "up")])
            out[p + "mlp.down_proj.weight"] = even(t[p + "mlp.down_proj.weight"], 1, tp, tp_rank)
            continue
        count = c["num_experts"]
        expert = lambda e, x: t[p + f"mlp.experts.{e}.{x}_proj.weight"]
        if ep > 1:
            base, rest = divmod(count, wide)
            first = wide_rank * base + min(wide_rank, rest)
            mine = range(first, first + base + (wide_rank < rest))
            cut = lambda a, axis: a
        else:
            mine = range(count)
            cut = lambda a, axis: even(a, axis, wide, wide_rank)
        out[p + "mlp.experts.routed_experts.w13_weight"] = np.stack([np.concatenate([cut(expert(e, "gate"), 0), cut(expert(e, "up"), 0)]) for e in mine])
        out[p + "mlp.experts.routed_experts.w2_weight"] = np.stack([cut(expert(e, "down"), 1) for e in mine])
    return out


def stage_of(layers, pp, vpp, first):
    """(stage, chunk, local number) of each layer; `first`: layers of the first stage."""
    each = [(layers - first) // (pp - 1)] * pp if first else [layers // pp] * pp
    if first:
        each[0] = first
    return [(p, v, i) for v in range(vpp) for p in range(pp) for i in range(each[p] // vpp)]


def megatron(c, t, rank, tp=1, pp=1, vpp=1, ep=1, etp=1, dp=None, first=0, vocab_multiple=128, spec="te"):
    h, kv, hd = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
    group, layers = h // kv, c["num_hidden_layers"]
    dp = dp or next(d for d in range(1, 65) if tp * d % (ep * etp) == 0)
    stage, inside = divmod(rank, tp * dp)
    t_rank, e_width, e_rank = inside % tp, inside % etp, inside // etp % ep
    local = spec == "local"
    chunk = lambda v: f"chunk{v}." if vpp > 1 else ""
    vocabulary = lambda name: even(padded(t[name], vocab_multiple * tp), 0, tp, t_rank)
    out = {}
    if stage == 0:
        out[chunk(0) + "embedding.word_embeddings.weight"] = vocabulary("model.embed_tokens.weight")
    if stage == pp - 1:
        out[chunk(vpp - 1) + "decoder.final_layernorm.weight"] = t["model.norm.weight"]
        if not c.get("tie_word_embeddings"):
            out[chunk(vpp - 1) + "output_layer.weight"] = vocabulary("lm_head.weight")
        elif pp > 1:
            out[chunk(vpp - 1) + "output_layer.weight"] = vocabulary("model.embed_tokens.weight")
    for i, (p_stage, v, at_layer) in enumerate(stage_of(layers, pp, vpp, first)):
        if p_stage != stage:
            continue
        p, m = f"model.layers.{i}.", chunk(v) + f"decoder.layers.{at_layer}."
        for kind in ("weight", "bias"):
            if p + f"self_attn.q_proj.{kind}" not in t:
                continue
            q, k, v_ = (t[p + f"self_attn.{x}_proj.{kind}"] for x in "qkv")
            rows = np.empty(((h + 2 * kv) * hd,) + q.shape[1:], q.dtype)
            for g in range(kv):
                for slot in range(group + 2):
                    source, head = (q, g * group + slot) if slot < group else (k, g) if slot == group else (v_, g)
                    at = g * (group + 2) * hd + slot * hd
                    rows[at:at + hd] = source[head * hd:(head + 1) * hd]
            out[m + f"self_attention.linear_qkv.{kind}"] = even(rows, 0, tp, t_rank)
        out[m + ("input_layernorm.weight" if local else "self_attention.linear_qkv.layer_norm_weight")] = t[p + "input_layernorm.weight"]
        out[m + "self_attention.linear_proj.weight"] = even(t[p + "self_attn.o_proj.weight"], 1, tp, t_rank)
        for x in "qk":
            if p + f"self_attn.{x}_norm.weight" in t:
                out[m + f"self_attention.{x}_layernorm.weight"] = t[p + f"self_attn.{x}_norm.weight"]
        moe = is_moe(c, i)
        out[m + ("pre_mlp_layernorm.weight" if moe or local else "mlp.linear_fc1.layer_norm_weight")] = t[p + "post_attention_layernorm.weight"]
        if not moe:
            out[m + "mlp.linear_fc1.weight"] = np.concatenate([even(t[p + f"mlp.{x}_proj.weight"], 0, tp, t_rank) for x in ("gate", "up")])
            out[m + "mlp.linear_fc2.weight"] = even(t[p + "mlp.down_proj.weight"], 1, tp, t_rank)
            continue
        out[m + "mlp.router.weight"] = t[p + "mlp.gate.weight"]
        each = c["num_experts"] // ep
        for j in range(each):
            e = p + f"mlp.experts.{e_rank * each + j}."
            name = (lambda fc: m + f"mlp.experts.local_experts.{j}.{fc}.weight") if local else (lambda fc: m + f"mlp.experts.{fc}.weight{j}")
            out[name("linear_fc1")] = np.concatenate([even(t[e + f"{x}_proj.weight"], 0, etp, e_width) for x in ("gate", "up")])
            out[name("linear_fc2")] = even(t[e + "down_proj.weight"], 1, etp, e_width)
    return out


def sglang(c, t, rank, tp=1, dp=1, ep=1):
    """As vllm, but dense MLPs and experts use the whole server, and experts may be cut both ways."""
    width = tp * dp
    out = {}
    for name, a in vllm(c, t, rank, tp, dp).items():
        out[name.replace(".routed_experts", "")] = a
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}.mlp."
        if not is_moe(c, i):
            out[p + "gate_up_proj.weight"] = np.concatenate([even(t[p + f"{x}_proj.weight"], 0, width, rank % width) for x in ("gate", "up")])
            out[p + "down_proj.weight"] = even(t[p + "down_proj.weight"], 1, width, rank % width)
            continue
        moe_tp, each = width // ep, c["num_experts"] // ep
        w, e_rank = rank % moe_tp, rank % width // moe_tp
        mine = range(e_rank * each, (e_rank + 1) * each)
        out[p + "experts.w13_weight"] = np.stack([np.concatenate([even(t[p + f"experts.{e}.{x}_proj.weight"], 0, moe_tp, w) for x in ("gate", "up")]) for e in mine])
        out[p + "experts.w2_weight"] = np.stack([even(t[p + f"experts.{e}.down_proj.weight"], 1, moe_tp, w) for e in mine])
    return out


def jax(c, t, rank, axes=()):
    place, left = {}, rank
    for name, size in reversed(axes):
        place[name], left = left % size, left // size
    sizes = dict(axes)
    tp, t_rank, ep, e_rank = sizes.get("tp", 1), place.get("tp", 0), sizes.get("ep", 1), place.get("ep", 0)
    out = {}
    for name, a in t.items():
        stem = name.removesuffix(".weight")
        if ".experts." in name:
            continue
        if name == "model.embed_tokens.weight":
            out[stem + ".embedding"] = a
        elif stem.endswith("norm"):
            out[stem + ".scale"] = a
        elif name.endswith(".bias"):
            out[name] = a if "o_proj" in name else even(a, 0, tp, t_rank)
        elif stem.endswith("mlp.gate"):
            out[stem.replace("mlp.gate", "mlp.router.gate") + ".kernel"] = a.T
        else:
            out[stem + ".kernel"] = even(a.T, 0 if stem.endswith(("o_proj", "down_proj")) else 1, tp, t_rank)
    for i in range(c["num_hidden_layers"]):
        if not is_moe(c, i):
            continue
        p = f"model.layers.{i}.mlp.experts."
        each = c["num_experts"] // ep
        mine = range(e_rank * each, (e_rank + 1) * each)
        for leaf, part, axis in (("w1_EFD", "gate", 0), ("w3_EFD", "up", 0), ("w2_EDF", "down", 1)):
            out[p + leaf] = np.stack([even(t[f"{p}{e}.{part}_proj.weight"], axis, tp, t_rank) for e in mine])
    return out


def stacked(c, t):
    """The tensors as a module with fused experts holds them."""
    out = {n: a for n, a in t.items() if ".experts." not in n}
    for i in range(c["num_hidden_layers"]):
        if not is_moe(c, i):
            continue
        p = f"model.layers.{i}.mlp.experts."
        e = range(c["num_experts"])
        out[p + "gate_up_proj"] = np.stack([np.concatenate([t[f"{p}{j}.gate_proj.weight"], t[f"{p}{j}.up_proj.weight"]]) for j in e])
        out[p + "down_proj"] = np.stack([t[f"{p}{j}.down_proj.weight"] for j in e])
    return out


def sharded(c, t, rank, axes, naming="per-expert"):
    place, left = {}, rank
    for name, size in reversed(axes):
        place[name], left = left % size, left // size
    sizes = dict(axes)
    tp, fsdp = sizes.get("tp", 1), sizes.get("fsdp", 1)
    out = {}
    for name, a in (stacked(c, t) if naming == "fused" else t).items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            a = ceil_chunk(a, 1, tp, place.get("tp", 0))
        elif not name.endswith(("norm.weight", "mlp.gate.weight")):
            a = ceil_chunk(a, 0, tp, place.get("tp", 0))
        out[name] = ceil_chunk(a, 0, fsdp, place.get("fsdp", 0))
    return out


def memory(dump, rank, tensors):
    """A rank's bytes, filled through its holdings."""
    out = np.zeros(dump["ranks"][rank]["bytes"] // ITEM, np.uint16)
    for h in dump["ranks"][rank]["holdings"]:
        source = tensors[h["tensor"]].reshape([r for axis in h["view"] for r in axis])
        part = source[tuple(slice(lo, hi) for lo, hi in h["box"])]
        view = np.lib.stride_tricks.as_strided(out[h["offset"] // ITEM:], part.shape, h["strides"])
        view[...] = part
    return out


def check(dump_layout, config, text, formula, **keys):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "config.json"
        path.write_text(json.dumps(config))
        done = subprocess.run([dump_layout, path, text], capture_output=True, text=True)
    assert done.returncode == 0, f"{text}: {done.stderr}"
    dump = json.loads(done.stdout)
    random = np.random.default_rng(1)
    tensors = {n: random.integers(1, 1 << 16, shape, np.uint16) for n, shape in dump["tensors"].items()}
    for rank in range(len(dump["ranks"])):
        want = formula(config, tensors, rank, **keys)
        parameters = dump["ranks"][rank]["parameters"]
        assert want.keys() == parameters.keys(), f"{text} rank {rank}: names differ: {sorted(want.keys() ^ parameters.keys())}"
        held = memory(dump, rank, tensors)
        for name, p in parameters.items():
            assert list(want[name].shape) == p["shape"], f"{text} rank {rank} {name}: {p['shape']}, expected {list(want[name].shape)}"
            at = p["offset"] // ITEM
            assert np.array_equal(held[at:at + want[name].size], want[name].ravel()), f"{text} rank {rank} {name}: bytes differ"


def main():
    dump_layout = sys.argv[1]
    dense = {"hidden_size": 12, "num_hidden_layers": 2, "head_dim": 6, "intermediate_size": 40, "vocab_size": 131, "num_attention_heads": 8, "num_key_value_heads": 2}
    models = [dict(dense, model_type="llama", tie_word_embeddings=True), dict(dense, model_type="qwen2"), dict(dense, model_type="qwen3", num_attention_heads=16, num_key_value_heads=4)]
    moe = dict(dense, model_type="qwen3_moe", num_hidden_layers=3, num_experts=10, moe_intermediate_size=16, mlp_only_layers=[1])
    checks = 0
    for config in models + [moe]:
        engines = [dict(tp=1), dict(tp=2), dict(tp=4), dict(tp=8), dict(tp=2, dp=2)] + ([dict(tp=2, dp=2, ep=4), dict(tp=8, ep=8)] if config is moe else [])
        for keys in engines:
            check(dump_layout, config, "vllm:" + ",".join(f"{k}={v}" for k, v in keys.items()), vllm, **keys)
        for axes in ([("fsdp", 1)], [("fsdp", 5)], [("tp", 3)], [("fsdp", 2), ("tp", 2)], [("tp", 2), ("fsdp", 3)]):
            check(dump_layout, config, ",".join(f"{k}={v}" for k, v in axes), sharded, axes=axes)
        checks += len(engines) + 5
    label = lambda side, keys: side + ":" + ",".join(f"{k}={v}" for k, v in keys.items())
    deep = dict(moe, num_hidden_layers=8, mlp_only_layers=[1, 6], num_experts=8)
    for config in models + [dict(models[0], num_hidden_layers=8), deep]:
        several = [dict(tp=2, pp=2), dict(tp=2, pp=2, vpp=2), dict(pp=3, first=2), dict(tp=4, pp=2, spec="local")] if config["num_hidden_layers"] == 8 else []
        if config is deep:
            several += [dict(ep=2), dict(tp=2, ep=4), dict(tp=2, pp=2, ep=2, etp=2), dict(tp=2, ep=2, dp=3), dict(ep=4, etp=2, spec="local")]
        for keys in [dict(tp=1), dict(tp=2), dict(tp=4), dict(tp=8, vocab_multiple=16)] + several:
            check(dump_layout, config, label("megatron", keys), megatron, **keys)
            checks += 1
    for config in models + [deep]:
        for keys in [dict(tp=1), dict(tp=2), dict(tp=8), dict(tp=2, dp=2)] + ([dict(tp=4, ep=2), dict(tp=2, dp=4, ep=8)] if config is deep else []):
            check(dump_layout, config, label("sglang", keys), sglang, **keys)
            checks += 1
    for config in [dict(m, vocab_size=132) for m in models + [deep]]:
        for axes in [[("tp", 1)], [("tp", 2)], [("dp", 2), ("tp", 4)]] + ([[("tp", 2), ("ep", 4)], [("ep", 2), ("tp", 2)]] if "num_experts" in config else []):
            check(dump_layout, config, label("jax", dict(axes)), jax, axes=axes)
            checks += 1
    for axes in ([("fsdp", 3)], [("fsdp", 16)]):
        check(dump_layout, moe, ",".join(f"{k}={v}" for k, v in axes) + ",naming=fused", sharded, axes=axes, naming="fused")
        checks += 1
    check(dump_layout, moe, "hf:naming=fused", sharded, axes=[("fsdp", 1)], naming="fused")
    print(f"{checks + 1} layouts agree with the formulas")


if __name__ == "__main__":
    main()
