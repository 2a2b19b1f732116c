#!/usr/bin/env python3
"""Converts the GGUF form of a Llama model to a Hugging Face directory: config.json and model.safetensors in bf16.

usage: smollm2.py GGUF OUT_DIR        (needs gguf and numpy; demo_model.py provides both)
"""
import json
import pathlib
import sys

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize

LAYER = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}
MODEL = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
ALIGNMENT = 64


def hf_name(gguf_name):
    """The Hugging Face name of a GGUF tensor, and its short kind."""
    stem = gguf_name.removesuffix(".weight")
    if stem.startswith("blk."):
        _, layer, kind = stem.split(".", 2)
        return f"model.layers.{int(layer)}.{LAYER[kind]}.weight", kind
    return f"{MODEL[stem]}.weight", stem


def half_split(rows, heads):
    """GGUF keeps the rotary pairs of a head next to each other (r0 i0 r1 i1 …); Hugging Face keeps halves (r0 r1 … i0 i1 …)."""
    pairs = rows.reshape(heads, -1, 2, *rows.shape[1:])
    return np.concatenate([pairs[:, :, 0], pairs[:, :, 1]], axis=1).reshape(rows.shape)


def bf16(values):
    """float32 to bfloat16 bits, to nearest, ties to even. The weights are finite."""
    bits = np.ascontiguousarray(values, dtype="<f4").view("<u4")
    if not np.isfinite(values).all():
        raise ValueError("a weight is not finite")
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


def read(path):
    reader = GGUFReader(path)
    field = lambda key: reader.fields[key].contents()
    if field("general.architecture") != "llama":
        raise ValueError(f"architecture is {field('general.architecture')}, expected llama")
    heads, kv_heads = field("llama.attention.head_count"), field("llama.attention.head_count_kv")
    tensors = {}
    for tensor in reader.tensors:
        name, kind = hf_name(tensor.name)
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if kind in ("attn_q", "attn_k"):
            values = half_split(values, heads if kind == "attn_q" else kv_heads)
        tensors[name] = bf16(values)
    tied = "lm_head.weight" not in tensors
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16",
        "hidden_size": field("llama.embedding_length"), "num_hidden_layers": field("llama.block_count"),
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": field("llama.embedding_length") // heads,
        "intermediate_size": field("llama.feed_forward_length"), "vocab_size": tensors["model.embed_tokens.weight"].shape[0],
        "max_position_embeddings": field("llama.context_length"), "rope_theta": float(field("llama.rope.freq_base")),
        "rms_norm_eps": float(field("llama.attention.layer_norm_rms_epsilon")), "hidden_act": "silu",
        "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": tied,
        "bos_token_id": field("tokenizer.ggml.bos_token_id"), "eos_token_id": field("tokenizer.ggml.eos_token_id"),
    }
    return config, tensors


def write_safetensors(path, tensors):
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name in sorted(tensors):
        header[name] = {"dtype": "BF16", "shape": list(tensors[name].shape), "data_offsets": [end, end + tensors[name].nbytes]}
        end += tensors[name].nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    with path.open("wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for name in sorted(tensors):
            f.write(tensors[name].tobytes())


def main():
    source, out = sys.argv[1], pathlib.Path(sys.argv[2])
    config, tensors = read(source)
    out.mkdir(parents=True)
    write_safetensors(out / "model.safetensors", tensors)
    (out / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    count = sum(t.size for t in tensors.values())
    print(f"{len(tensors)} tensors, {count:,} parameters, {config['num_attention_heads']} query and {config['num_key_value_heads']} KV heads, "
          f"{'tied' if config['tie_word_embeddings'] else 'untied'}")


if __name__ == "__main__":
    main()
