"""Writes a tiny but complete Hugging Face checkpoint (Llama, grouped-query attention, tied) without any package.

Odd sizes on purpose: 131 vocabulary rows (padded by the engine), 9 query heads in 3 groups, 200 MLP columns.
"""
import json
import pathlib
import random
import struct

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 144, "num_hidden_layers": 2,
    "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 16, "intermediate_size": 204, "vocab_size": 131,
    "max_position_embeddings": 64, "rope_theta": 10000.0, "rms_norm_eps": 1e-5, "hidden_act": "silu",
    "tie_word_embeddings": True, "torch_dtype": "bfloat16", "attention_bias": False, "mlp_bias": False,
}


def shapes(c):
    h, i, hd = c["hidden_size"], c["intermediate_size"], c["head_dim"]
    q, kv = c["num_attention_heads"] * hd, c["num_key_value_heads"] * hd
    out = {"model.embed_tokens.weight": [c["vocab_size"], h], "model.norm.weight": [h]}
    for n in range(c["num_hidden_layers"]):
        p = f"model.layers.{n}."
        out |= {p + "self_attn.q_proj.weight": [q, h], p + "self_attn.k_proj.weight": [kv, h], p + "self_attn.v_proj.weight": [kv, h],
                p + "self_attn.o_proj.weight": [h, q], p + "mlp.gate_proj.weight": [i, h], p + "mlp.up_proj.weight": [i, h],
                p + "mlp.down_proj.weight": [h, i], p + "input_layernorm.weight": [h], p + "post_attention_layernorm.weight": [h]}
    return out


def write(directory, seed=7, **sizes):
    """`sizes`: keys of CONFIG that are others."""
    config = CONFIG | sizes
    directory = pathlib.Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    rng = random.Random(seed)
    header, data = {}, bytearray()
    for name, shape in sorted(shapes(config).items()):
        count = 1
        for n in shape:
            count *= n
        # bf16 with exponents near 2^-6: finite, normal, both signs
        body = b"".join(struct.pack("<H", rng.getrandbits(1) << 15 | (120 + rng.getrandbits(2)) << 7 | rng.getrandbits(7)) for _ in range(count))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [len(data), len(data) + len(body)]}
        data += body
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (directory / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    (directory / "config.json").write_text(json.dumps(config))
    return directory


if __name__ == "__main__":
    import sys
    write(sys.argv[1])
