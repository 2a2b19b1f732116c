#!/usr/bin/env python3
"""Tunix's own NNX models: names and shapes of the live tree = what `refit convert --to jax:preset=tunix` writes; loaded, its
float32 logits equal transformers' within 1e-4; its state goes back to the checkpoint bit for bit.

Tunix's package imports its trainers; the models alone need none of that, so the packages above them are left empty.

usage: tunix_models.py [--refit BINARY] [--only FAMILY] [--rows FILE]
"""
import dataclasses
import importlib
import os
import shutil
import sys
import types

import support

HOME = support.ROOT / ".cache/tunix"
os.environ.update(JAX_PLATFORMS="cpu", OMP_NUM_THREADS="1")
support.need("torch", "transformers", "safetensors", "jax", "flax.nnx")
if not (HOME / "tunix").exists():
    print("SKIPPED: scripts/tunix_env.sh was not run")
    sys.exit(support.SKIPPED)
sys.path.append(str(HOME))
for name in ("tunix", "tunix.models", "tunix.generate", "tunix.utils"):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [str(HOME / name.replace(".", "/"))]

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from flax import nnx  # noqa: E402
from safetensors.flax import load_file, save_file  # noqa: E402

import models  # noqa: E402

torch.set_num_threads(1)
# Label -> (family of models.py, Tunix's module and class, changes).
# What the rotations of its Llama and Qwen3 take, whatever the configuration says.
PLAIN = dict(rope_parameters={"rope_type": "default", "rope_theta": 1e6})
CASES = {"llama": ("llama", "llama3", "Llama3", PLAIN), "llama, tied": ("llama, tied", "llama3", "Llama3", PLAIN), "qwen2": ("qwen2", "qwen2", "Qwen2", PLAIN),
         "qwen3": ("qwen3", "qwen3", "Qwen3", PLAIN), "qwen3, square": ("qwen3", "qwen3", "Qwen3", PLAIN | dict(hidden_size=64, num_attention_heads=8, num_key_value_heads=8, head_dim=8, intermediate_size=64, vocab_size=64))}
SPEC = "jax:preset=tunix"


def tree_of(c, module, kind, dtype):
    lib = importlib.import_module(f"tunix.models.{module}.model")
    head = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
    config = lib.ModelConfig(num_layers=c.num_hidden_layers, vocab_size=c.vocab_size, embed_dim=c.hidden_size, hidden_dim=c.intermediate_size, num_heads=c.num_attention_heads, head_dim=head,
                             num_kv_heads=c.num_key_value_heads, rope_theta=int(c.rope_parameters["rope_theta"]), norm_eps=c.rms_norm_eps)
    more = dict(use_tied_embedding=c.tie_word_embeddings, weight_tying=c.tie_word_embeddings, dtype=dtype, param_dtype=dtype)
    config = dataclasses.replace(config, **{k: v for k, v in more.items() if hasattr(config, k)})
    return getattr(lib, kind)(config, rngs=nnx.Rngs(0))


def flat(model):
    return {".".join(map(str, path)): leaf for path, leaf in nnx.to_flat_state(nnx.state(model, nnx.Param))}


def fill(model, arrays):
    variables = flat(model)
    assert variables.keys() == arrays.keys(), f"names differ: {sorted(variables.keys() ^ arrays.keys())[:8]}"
    for n, v in variables.items():
        assert v.shape == arrays[n].shape, f"{n}: tree {v.shape}, file {arrays[n].shape}"
    state = nnx.state(model, nnx.Param)
    nnx.update(model, nnx.from_flat_state([(path, leaf.replace(arrays[".".join(map(str, path))])) for path, leaf in nnx.to_flat_state(state)]))
    return len(arrays)


def main():
    jax.config.update("jax_default_matmul_precision", "highest")
    desk = support.Desk("tunix", ["flax", "jax", "transformers", "torch"])
    source, there, back = desk.base / "hf", desk.base / "there", desk.base / "back"
    for label in desk.wanted(CASES):
        name, module, kind, changes = CASES[label]
        model = models.build(name, **changes)
        models.save(model, source)
        saved = support.tensors(source, "model")
        with desk.row(label, "names and shapes of the live tree = files; its state → HF exactly", SPEC) as row:
            desk.convert(source, SPEC, there)
            tree = tree_of(model.config, module, kind, jnp.bfloat16)
            row["checked"] = fill(tree, load_file(there / "rank0.safetensors"))
            save_file({n: v[...] for n, v in flat(tree).items()}, there / "rank0.safetensors")
            desk.convert(there, "hf", back, source=SPEC)
            support.equal(support.tensors(back, "model"), saved, label)
        shutil.rmtree(source)
        model = models.build(name, **dict(changes, dtype="float32"))
        models.save(model, source)
        tokens = torch.randint(3, model.config.vocab_size, (2, 11), generator=torch.Generator().manual_seed(5))
        with torch.no_grad():
            want = model(tokens).logits.numpy()
        with desk.row(label, "forward pass in float32: logits equal transformers' within 1e-4", SPEC) as row:
            desk.convert(source, SPEC, there)
            tree = tree_of(model.config, module, kind, jnp.float32)
            fill(tree, load_file(there / "rank0.safetensors"))
            positions = jnp.broadcast_to(jnp.arange(11), (2, 11))
            mask = jnp.broadcast_to(jnp.tril(jnp.ones((11, 11), bool)), (2, 11, 11))
            got = np.asarray(tree(jnp.asarray(tokens.numpy()), positions, None, mask)[0])
            far = np.abs(got - want).max()
            assert far < 1e-4 and want.std() > 0.01, f"logits differ by {far} (of {np.abs(want).max()})"
            row["checked"] = got.size
        shutil.rmtree(source)
    desk.finish()


if __name__ == "__main__":
    main()
