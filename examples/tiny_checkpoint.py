"""Writes a tiny Llama checkpoint (bf16, random weights, 190 KB) to try things with. Needs nothing but Python.

python3 examples/tiny_checkpoint.py DIR [--steps N]: with --steps, N+1 checkpoints DIR/step-0 … DIR/step-N, each of which
differs from the one before in about one element of a hundred, as after a training step.
"""

import argparse
import array
import json
import pathlib
import random
import struct

H, I, V, LAYERS, HEADS, KV_HEADS = 64, 128, 100, 2, 4, 2
CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": H, "intermediate_size": I, "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "vocab_size": V, "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}  # fmt: skip


def shapes():
    yield "model.embed_tokens.weight", (V, H)
    for layer in range(LAYERS):
        base, kv = f"model.layers.{layer}.", H // HEADS * KV_HEADS
        yield from ((f"{base}self_attn.{p}_proj.weight", (rows, H)) for p, rows in (("q", H), ("k", kv), ("v", kv), ("o", H)))
        yield from ((f"{base}mlp.{p}_proj.weight", shape) for p, shape in (("gate", (I, H)), ("up", (I, H)), ("down", (H, I))))
        yield from ((f"{base}{p}_layernorm.weight", (H,)) for p in ("input", "post_attention"))
    yield "model.norm.weight", (H,)
    yield "lm_head.weight", (V, H)


def random_weights(seed):
    """The 16 bits of bf16 values round 0.02, per tensor."""
    draw = random.Random(seed)
    count = {name: shape[0] * (shape[1] if len(shape) > 1 else 1) for name, shape in shapes()}
    return {name: array.array("H", (struct.unpack("<I", struct.pack("<f", draw.gauss(0, 0.02)))[0] >> 16 for _ in range(n))) for name, n in count.items()}


def step(weights, seed):
    """About 1 % of all elements move by one unit in the last place."""
    draw = random.Random(seed)
    for values in weights.values():
        for _ in range(max(1, len(values) // 100)):
            values[draw.randrange(len(values))] ^= 1


def write(folder, weights):
    folder.mkdir(parents=True)
    header, offset = {}, 0
    for name, shape in shapes():
        size = 2 * len(weights[name])
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"".join(weights[name].tobytes() for name, _ in shapes()))
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=1) + "\n")


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("out", type=pathlib.Path, help="directory to make")
    options.add_argument("--steps", type=int, help="write OUT/step-0 to OUT/step-N")
    args = options.parse_args()
    weights = random_weights(1)
    if args.steps is None:
        return write(args.out, weights)
    for number in range(args.steps + 1):
        if number:
            step(weights, number)
        write(args.out / f"step-{number}", weights)


if __name__ == "__main__":
    main()
