"""Tiny random checkpoints of every family, from what transformers' modules hold, written down without the rules.

FAMILIES maps a name to (config, tensors): tensors maps a name to (dtype, shape).
"""
import json
import pathlib
import struct

import numpy as np

DTYPES = {"BF16": np.uint16, "F32": np.float32}


def attention(p, h, q, kv, hd, bias=(), norms=False, gated=False):
    out = {p + "self_attn.q_proj.weight": [q * hd * (2 if gated else 1), h], p + "self_attn.k_proj.weight": [kv * hd, h], p + "self_attn.v_proj.weight": [kv * hd, h], p + "self_attn.o_proj.weight": [h, q * hd]}
    for x in bias:
        out[p + f"self_attn.{x}_proj.bias"] = [h if x == "o" else q * hd if x == "q" else kv * hd]
    if norms:
        out |= {p + "self_attn.q_norm.weight": [hd], p + "self_attn.k_norm.weight": [hd]}
    return out


def mlp(p, h, i):
    return {p + "gate_proj.weight": [i, h], p + "up_proj.weight": [i, h], p + "down_proj.weight": [h, i]}


def experts(p, h, im, e):
    out = {p + "mlp.gate.weight": [e, h]}
    for j in range(e):
        out |= mlp(p + f"mlp.experts.{j}.", h, im)
    return out


def norms(p, h, names=("input_layernorm", "post_attention_layernorm")):
    return {p + n + ".weight": [h] for n in names}


def model(c, layers):
    h, v = c["hidden_size"], c["vocab_size"]
    out = {"model.embed_tokens.weight": [v, h], "model.norm.weight": [h]}
    if not c.get("tie_word_embeddings"):
        out["lm_head.weight"] = [v, h]
    for part in layers:
        out |= part
    return {n: ("F32" if n.endswith("e_score_correction_bias") else "BF16", s) for n, s in out.items()}


def dense(kind, **more):
    c = dict(model_type=kind, hidden_size=12, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=4, head_dim=6, intermediate_size=40, vocab_size=132) | more
    bias = "qkv" if kind == "qwen2" else ""
    four = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")
    layers = [attention(f"model.layers.{i}.", 12, 8, 4, 6, bias, kind in ("qwen3", "gemma3_text")) | mlp(f"model.layers.{i}.mlp.", 12, 40) | norms(f"model.layers.{i}.", 12, four if kind == "gemma3_text" else four[:2]) for i in range(4)]
    return c, model(dict(c, tie_word_embeddings=True) if kind == "gemma3_text" else c, layers)


def qwen3_moe():
    c = dict(model_type="qwen3_moe", hidden_size=12, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=4, head_dim=6, intermediate_size=40, vocab_size=132, num_experts=8, moe_intermediate_size=16, mlp_only_layers=[1])
    layers = [attention(f"model.layers.{i}.", 12, 8, 4, 6, norms=True) | norms(f"model.layers.{i}.", 12) | (mlp(f"model.layers.{i}.mlp.", 12, 40) if i == 1 else experts(f"model.layers.{i}.", 12, 16, 8)) for i in range(4)]
    return c, model(c, layers)


def latent(kind, q_lora=20, drafts=0):
    c = dict(model_type=kind, hidden_size=12, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=8, q_lora_rank=q_lora, kv_lora_rank=14, qk_nope_head_dim=6, qk_rope_head_dim=2, v_head_dim=4, intermediate_size=40, n_routed_experts=8, moe_intermediate_size=16, n_shared_experts=2, first_k_dense_replace=1, vocab_size=132, num_nextn_predict_layers=drafts)

    def layer(i):
        p = f"model.layers.{i}."
        out = norms(p, 12) | {p + "self_attn.kv_a_proj_with_mqa.weight": [16, 12], p + "self_attn.kv_a_layernorm.weight": [14], p + "self_attn.kv_b_proj.weight": [8 * 10, 14], p + "self_attn.o_proj.weight": [12, 32]}
        if q_lora:
            out |= {p + "self_attn.q_a_proj.weight": [q_lora, 12], p + "self_attn.q_a_layernorm.weight": [q_lora], p + "self_attn.q_b_proj.weight": [64, q_lora]}
        else:
            out[p + "self_attn.q_proj.weight"] = [64, 12]
        if i == 0:
            return out | mlp(p + "mlp.", 12, 40)
        return out | experts(p, 12, 16, 8) | mlp(p + "mlp.shared_experts.", 12, 32) | {p + "mlp.gate.e_score_correction_bias": [8]}

    layers = [layer(i) for i in range(4)]
    for k in range(4, 4 + drafts):
        p = f"model.layers.{k}."
        layers.append(layer(k) | {p + "enorm.weight": [12], p + "hnorm.weight": [12], p + "eh_proj.weight": [12, 24], p + "shared_head.norm.weight": [12], p + "embed_tokens.weight": [132, 12], p + "shared_head.head.weight": [132, 12]})
    return c, model(c, layers)


def glm():
    c = dict(model_type="glm4_moe", hidden_size=12, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=4, head_dim=6, intermediate_size=40, n_routed_experts=8, moe_intermediate_size=16, n_shared_experts=1, first_k_dense_replace=1, vocab_size=132, attention_bias=True, use_qk_norm=True)
    layers = []
    for i in range(4):
        p = f"model.layers.{i}."
        layers.append(attention(p, 12, 8, 4, 6, "qkv", True) | norms(p, 12) | (mlp(p + "mlp.", 12, 40) if i == 0 else experts(p, 12, 16, 8) | mlp(p + "mlp.shared_experts.", 12, 16) | {p + "mlp.gate.e_score_correction_bias": [8]}))
    return c, model(c, layers)


def delta(kind, moe, drafts=0):
    hk_n, hv_n, hk, hv, k = 4, 8, 3, 5, 4
    c = dict(model_type=kind, hidden_size=12, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=4, head_dim=6, vocab_size=132, linear_num_key_heads=hk_n, linear_num_value_heads=hv_n, linear_key_head_dim=hk, linear_value_head_dim=hv, linear_conv_kernel_dim=k, full_attention_interval=2)
    if moe:
        c |= dict(num_experts=8, moe_intermediate_size=16, shared_expert_intermediate_size=24)
    if kind != "qwen3_5_moe_text":
        c["intermediate_size"] = 40
    kd, vd = hk_n * hk, hv_n * hv

    def rest(p):
        if not moe:
            return norms(p, 12) | mlp(p + "mlp.", 12, 40)
        return norms(p, 12) | experts(p, 12, 16, 8) | mlp(p + "mlp.shared_expert.", 12, 24) | {p + "mlp.shared_expert_gate.weight": [1, 12]}

    layers = []
    for i in range(4):
        p = f"model.layers.{i}."
        if i % 2 == 1:
            layers.append(attention(p, 12, 8, 4, 6, norms=True, gated=True) | rest(p))
            continue
        a = p + "linear_attn."
        inputs = {a + "in_proj_qkvz.weight": [2 * kd + 2 * vd, 12], a + "in_proj_ba.weight": [2 * hv_n, 12]} if kind == "qwen3_next" else {a + "in_proj_qkv.weight": [2 * kd + vd, 12], a + "in_proj_z.weight": [vd, 12], a + "in_proj_b.weight": [hv_n, 12], a + "in_proj_a.weight": [hv_n, 12]}
        layers.append(rest(p) | inputs | {a + "conv1d.weight": [2 * kd + vd, 1, k], a + "A_log": [hv_n], a + "dt_bias": [hv_n], a + "norm.weight": [hv], a + "out_proj.weight": [12, vd]})
    for j in range(drafts):
        p = f"mtp.layers.{j}."
        layers.append(attention(p, 12, 8, 4, 6, norms=True, gated=True) | rest(p) | {"mtp.pre_fc_norm_embedding.weight": [12], "mtp.pre_fc_norm_hidden.weight": [12], "mtp.norm.weight": [12], "mtp.fc.weight": [12, 24]})
    return c, model(c, layers)


def gpt_oss():
    c = dict(model_type="gpt_oss", hidden_size=12, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=4, head_dim=6, intermediate_size=16, num_local_experts=8, vocab_size=132)
    layers = []
    for i in range(4):
        p = f"model.layers.{i}."
        layers.append(attention(p, 12, 8, 4, 6, "qkvo") | norms(p, 12) | {p + "self_attn.sinks": [8], p + "mlp.router.weight": [8, 12], p + "mlp.router.bias": [8], p + "mlp.experts.gate_up_proj": [8, 12, 32], p + "mlp.experts.gate_up_proj_bias": [8, 32], p + "mlp.experts.down_proj": [8, 16, 12], p + "mlp.experts.down_proj_bias": [8, 12]})
    return c, model(c, layers)


FAMILIES = {
    "llama": dense("llama"), "llama tied": (lambda c, t: (dict(c, tie_word_embeddings=True), {n: s for n, s in t.items() if n != "lm_head.weight"}))(*dense("llama")),
    "qwen2": dense("qwen2"), "qwen3": dense("qwen3"), "gemma3": dense("gemma3_text"), "qwen3_moe": qwen3_moe(),
    "deepseek_v3": latent("deepseek_v3", drafts=1), "kimi_k2": latent("kimi_k2"), "deepseek without q-LoRA": latent("deepseek_v3", q_lora=None),
    "glm4_moe": glm(), "qwen3_next": delta("qwen3_next", True, drafts=1), "qwen3_5": delta("qwen3_5_text", False), "qwen3_5_moe": delta("qwen3_5_moe_text", True), "gpt_oss": gpt_oss(),
}


def values(tensors, seed=11):
    """Random, finite, normal values of both signs; tied copies are equal."""
    rng = np.random.default_rng(seed)
    out = {}
    for name, (dtype, shape) in sorted(tensors.items()):
        sign, exponent = rng.integers(0, 2, shape, np.uint16), rng.integers(120, 124, shape, np.uint16)
        bf16 = (sign << 15 | exponent << 7 | rng.integers(0, 128, shape, np.uint16)).astype(np.uint16)
        out[name] = bf16 if dtype == "BF16" else rng.standard_normal(shape, np.float32)
    for name in out:
        if name.endswith("layers.4.embed_tokens.weight"):
            out[name] = out["model.embed_tokens.weight"]
        if name.endswith("shared_head.head.weight"):
            out[name] = out["lm_head.weight"]
    return out


def write_file(path, tensors):
    header, data = {}, bytearray()
    for name, a in sorted(tensors.items(), key=lambda x: (-x[1].itemsize, x[0])):
        header[name] = {"dtype": {2: "BF16", 4: "F32"}[a.itemsize], "shape": list(a.shape), "data_offsets": [len(data), len(data) + a.nbytes]}
        data += a.tobytes()
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    pathlib.Path(path).write_bytes(struct.pack("<Q", len(text)) + text + data)


def read_file(path):
    raw = pathlib.Path(path).read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    out = {}
    for name, t in json.loads(raw[8:8 + size]).items():
        if name != "__metadata__":
            lo, hi = t["data_offsets"]
            out[name] = np.frombuffer(raw[8 + size + lo:8 + size + hi], DTYPES[t["dtype"]]).reshape(t["shape"])
    return out


def read_all(directory, stem):
    """Tensors of all files whose name starts with `stem` and a dot or dash."""
    out = {}
    for path in sorted(pathlib.Path(directory).glob(stem + "[.-]*safetensors")):
        out |= read_file(path)
    return out


def write(directory, name):
    directory = pathlib.Path(directory)
    directory.mkdir(parents=True)
    config, tensors = FAMILIES[name]
    a = values(tensors)
    (directory / "config.json").write_text(json.dumps(config))
    write_file(directory / "model.safetensors", a)
    return config, a
