"""Tiny random checkpoints of every family, from what transformers' modules hold, written down without the rules.

FAMILIES maps a name to (config, tensors): tensors maps a name to (dtype, shape).
"""
import json
import pathlib
import struct

import numpy as np

# NumPy has no eight-bit floats: their codes are held as signed bytes.
DTYPES = {"BF16": np.uint16, "F32": np.float32, "U8": np.uint8, "F8_E4M3": np.int8}


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
    h, hd, width = c["hidden_size"], c["head_dim"], c["intermediate_size"]
    layers = [attention(f"model.layers.{i}.", h, 8, 4, hd, bias, kind in ("qwen3", "gemma3_text")) | mlp(f"model.layers.{i}.mlp.", h, width) | norms(f"model.layers.{i}.", h, four if kind == "gemma3_text" else four[:2]) for i in range(4)]
    return c, model(dict(c, tie_word_embeddings=True) if kind == "gemma3_text" else c, layers)


def qwen3_moe():
    c = dict(model_type="qwen3_moe", hidden_size=12, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=4, head_dim=6, intermediate_size=40, vocab_size=132, num_experts=8, moe_intermediate_size=16, mlp_only_layers=[1])
    layers = [attention(f"model.layers.{i}.", 12, 8, 4, 6, norms=True) | norms(f"model.layers.{i}.", 12) | (mlp(f"model.layers.{i}.mlp.", 12, 40) if i == 1 else experts(f"model.layers.{i}.", 12, 16, 8)) for i in range(4)]
    return c, model(c, layers)


def latent(kind, q_lora=20, drafts=0, width=40):
    c = dict(model_type=kind, hidden_size=12, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=8, q_lora_rank=q_lora, kv_lora_rank=14, qk_nope_head_dim=6, qk_rope_head_dim=2, v_head_dim=4, intermediate_size=width, n_routed_experts=8, moe_intermediate_size=16, n_shared_experts=2, first_k_dense_replace=1, vocab_size=132, num_nextn_predict_layers=drafts)

    def layer(i):
        p = f"model.layers.{i}."
        out = norms(p, 12) | {p + "self_attn.kv_a_proj_with_mqa.weight": [16, 12], p + "self_attn.kv_a_layernorm.weight": [14], p + "self_attn.kv_b_proj.weight": [8 * 10, 14], p + "self_attn.o_proj.weight": [12, 32]}
        if q_lora:
            out |= {p + "self_attn.q_a_proj.weight": [q_lora, 12], p + "self_attn.q_a_layernorm.weight": [q_lora], p + "self_attn.q_b_proj.weight": [64, q_lora]}
        else:
            out[p + "self_attn.q_proj.weight"] = [64, 12]
        if i == 0:
            return out | mlp(p + "mlp.", 12, width)
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


def gpt_oss_blocks():
    c, t = gpt_oss()
    c |= dict(hidden_size=32, intermediate_size=96, quantization_config={"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]})
    layers = []
    for i in range(4):
        p = f"model.layers.{i}."
        e = p + "mlp.experts."
        layers.append(attention(p, 32, 8, 4, 6, "qkvo") | norms(p, 32) | {p + "self_attn.sinks": [8], p + "mlp.router.weight": [8, 32], p + "mlp.router.bias": [8], e + "gate_up_proj_bias": [8, 192], e + "down_proj_bias": [8, 32]})
    out = model(c, layers)
    for i in range(4):
        e = f"model.layers.{i}.mlp.experts."
        out |= {e + "gate_up_proj_blocks": ("U8", [8, 192, 1, 16]), e + "gate_up_proj_scales": ("U8", [8, 192, 1]), e + "down_proj_blocks": ("U8", [8, 32, 3, 16]), e + "down_proj_scales": ("U8", [8, 32, 3])}
    return c, out


def in_blocks(made, rows, columns):
    """The FP8 form of a checkpoint: codes, and a scale for each block of a matrix."""
    c, tensors = made
    c = dict(c, quantization_config={"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [rows, columns]})
    out = {}
    for name, (dtype, shape) in tensors.items():
        coded = name.endswith("proj.weight") or name.endswith("_with_mqa.weight")
        if not coded or "eh_proj" in name:
            out[name] = (dtype, shape)
            continue
        out |= {name: ("F8_E4M3", shape), name + "_scale_inv": ("F32", [-(-shape[0] // rows), -(-shape[1] // columns)])}
    return c, out


def gemma4(moe):
    """Without experts: per-layer inputs, borrowed keys and a wide MLP; with them: neither, so that every side has it."""
    h, full_hd, full_kv, width = 12, 10, 2, 8
    c = dict(model_type="gemma4_text", hidden_size=h, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=4, head_dim=6, global_head_dim=full_hd, num_global_key_value_heads=full_kv, attention_k_eq_v=True, intermediate_size=40, vocab_size=132,
             vocab_size_per_layer_input=140, hidden_size_per_layer_input=0 if moe else width, layer_types=["sliding_attention", "full_attention"] * 2, tie_word_embeddings=not moe)
    c |= dict(enable_moe_block=True, num_experts=8, top_k_experts=2, moe_intermediate_size=16) if moe else dict(num_kv_shared_layers=1, use_double_wide_mlp=True)
    layers = []
    for i in range(4):
        p, full, borrows = f"model.layers.{i}.", i % 2 == 1, not moe and i == 3
        out = attention(p, h, 8, full_kv if full else 4, full_hd if full else 6, norms=True)
        for x in (["v_proj"] if full else []) + (["k_proj", "k_norm"] if borrows else []):
            del out[p + f"self_attn.{x}.weight"]
        out |= mlp(p + "mlp.", h, 80 if borrows else 40) | norms(p, h, ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")) | {p + "layer_scalar": [1]}
        if moe:
            out |= norms(p, h, ("pre_feedforward_layernorm_2", "post_feedforward_layernorm_1", "post_feedforward_layernorm_2"))
            out |= {p + "router.proj.weight": [8, h], p + "router.scale": [h], p + "router.per_expert_scale": [8], p + "experts.gate_up_proj": [8, 32, h], p + "experts.down_proj": [8, h, 16]}
        else:
            out |= {p + "per_layer_input_gate.weight": [width, h], p + "per_layer_projection.weight": [h, width], p + "post_per_layer_input_norm.weight": [h]}
        layers.append(out)
    if not moe:
        layers.append({"model.embed_tokens_per_layer.weight": [140, 4 * width], "model.per_layer_model_projection.weight": [4 * width, h], "model.per_layer_projection_norm.weight": [width]})
    return c, model(c, layers)


def nemotron(groups, latent_size=None):
    h, nh, ph, n, k = 12, 8, 5, 3, 4
    di, kinds = nh * ph, "M*-E"
    c = dict(model_type="nemotron_h", hidden_size=h, num_hidden_layers=4, hybrid_override_pattern=kinds, num_attention_heads=8, num_key_value_heads=4, head_dim=6, intermediate_size=40, vocab_size=132, mamba_num_heads=nh, mamba_head_dim=ph,
             ssm_state_size=n, n_groups=groups, conv_kernel=k, n_routed_experts=8, moe_intermediate_size=16, moe_shared_expert_intermediate_size=24, moe_latent_size=latent_size)
    out = {"backbone.embeddings.weight": [132, h], "backbone.norm_f.weight": [h], "lm_head.weight": [132, h]}
    for i, kind in enumerate(kinds):
        p = f"backbone.layers.{i}."
        m = p + "mixer."
        out[p + "norm.weight"] = [h]
        if kind == "M":
            channels = di + 2 * groups * n
            out |= {m + "in_proj.weight": [di + channels + nh, h], m + "conv1d.weight": [channels, 1, k], m + "conv1d.bias": [channels], m + "A_log": [nh], m + "D": [nh], m + "dt_bias": [nh], m + "norm.weight": [di], m + "out_proj.weight": [h, di]}
        elif kind == "*":
            out |= {n_.replace("self_attn.", "mixer."): s for n_, s in attention(p, h, 8, 4, 6).items()}
        elif kind == "-":
            out |= {m + "up_proj.weight": [40, h], m + "down_proj.weight": [h, 40]}
        else:
            inner = latent_size or h
            out |= {m + "gate.weight": [8, h], m + "gate.e_score_correction_bias": [8], m + "shared_experts.up_proj.weight": [24, h], m + "shared_experts.down_proj.weight": [h, 24]}
            if latent_size:
                out |= {m + "fc1_latent_proj.weight": [inner, h], m + "fc2_latent_proj.weight": [h, inner]}
            for j in range(8):
                out |= {m + f"experts.{j}.up_proj.weight": [16, inner], m + f"experts.{j}.down_proj.weight": [inner, 16]}
    return c, {name: ("F32" if name.endswith("e_score_correction_bias") else "BF16", s) for name, s in out.items()}


FAMILIES = {
    "llama": dense("llama"), "llama tied": (lambda c, t: (dict(c, tie_word_embeddings=True), {n: s for n, s in t.items() if n != "lm_head.weight"}))(*dense("llama")),
    "qwen2": dense("qwen2"), "qwen3": dense("qwen3"), "gemma3": dense("gemma3_text"), "qwen3_moe": qwen3_moe(),
    "deepseek_v3": latent("deepseek_v3", drafts=1), "kimi_k2": latent("kimi_k2"), "deepseek without q-LoRA": latent("deepseek_v3", q_lora=None),
    "glm4_moe": glm(), "qwen3_next": delta("qwen3_next", True, drafts=1), "qwen3_5": delta("qwen3_5_text", False), "qwen3_5_moe": delta("qwen3_5_moe_text", True), "gpt_oss": gpt_oss(),
    "gemma4": gemma4(False), "gemma4 moe": gemma4(True), "nemotron_h": nemotron(4, latent_size=10), "nemotron_h of one group": nemotron(1), "gpt_oss mxfp4": gpt_oss_blocks(),
    "qwen3 fp8": in_blocks(dense("qwen3", hidden_size=24, head_dim=8, intermediate_size=64), 4, 8), "deepseek fp8": in_blocks(latent("deepseek_v3", width=64), 2, 4),
}


def values(tensors, seed=11):
    """Random, finite, normal values of both signs; tied copies are equal."""
    rng = np.random.default_rng(seed)
    out = {}
    for name, (dtype, shape) in sorted(tensors.items()):
        sign, exponent = rng.integers(0, 2, shape, np.uint16), rng.integers(120, 124, shape, np.uint16)
        bf16 = (sign << 15 | exponent << 7 | rng.integers(0, 128, shape, np.uint16)).astype(np.uint16)
        out[name] = bf16 if dtype == "BF16" else rng.standard_normal(shape, np.float32) if dtype == "F32" else rng.integers(0, 256, shape, np.uint8).view(DTYPES[dtype])
    for name in out:
        if name.endswith("layers.4.embed_tokens.weight"):
            out[name] = out["model.embed_tokens.weight"]
        if name.endswith("shared_head.head.weight"):
            out[name] = out["lm_head.weight"]
    return out


def write_file(path, tensors):
    header, data = {}, bytearray()
    for name, a in sorted(tensors.items(), key=lambda x: (-x[1].itemsize, x[0])):
        header[name] = {"dtype": next(d for d, t in DTYPES.items() if a.dtype == t), "shape": list(a.shape), "data_offsets": [len(data), len(data) + a.nbytes]}
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
