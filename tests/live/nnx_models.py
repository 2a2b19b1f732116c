#!/usr/bin/env python3
"""Flax NNX models in the documented trees: names and shapes of the live tree = what `refit convert --to jax` writes; loaded,
its float32 logits equal transformers' within 1e-4 (also where every kernel is square, so that no shape tells a transpose);
its state goes back to the checkpoint bit for bit; sharded over two devices, each jax.Array shard = the rank's file.

usage: nnx_models.py [--refit BINARY] [--only FAMILY] [--rows FILE]
"""
import os
import shutil

import support

os.environ.update(JAX_PLATFORMS="cpu", XLA_FLAGS="--xla_force_host_platform_device_count=2", OMP_NUM_THREADS="1")
support.need("torch", "transformers", "safetensors", "jax", "flax.nnx")
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from flax import nnx  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec  # noqa: E402
from safetensors.flax import load_file, save_file  # noqa: E402

import models  # noqa: E402
import nnx_gemma4  # noqa: E402
import nnx_trees  # noqa: E402

torch.set_num_threads(1)
SQUARE = dict(hidden_size=64, num_attention_heads=8, num_key_value_heads=8, head_dim=8, intermediate_size=64, vocab_size=64)
# Label -> (family of models.py, changes).
CASES = {n: (n, {}) for n in ("llama", "llama, tied", "llama, biases", "qwen2", "qwen3", "gemma3", "qwen3_moe", "qwen3_next")}
CASES |= {"qwen3, square": ("qwen3", SQUARE), "gemma3, square": ("gemma3", SQUARE), "qwen3_moe, square": ("qwen3_moe", SQUARE | dict(moe_intermediate_size=64, num_experts=64))}
PLAIN_ROPE = dict(rope_parameters={k: {"rope_type": "default", "rope_theta": t} for k, t in (("sliding_attention", 1e4), ("full_attention", 1e6))})
CASES |= {n: (n, PLAIN_ROPE) for n in ("gemma4", "gemma4, experts, k = v")}


def tree_of(config, dtype):
    return (nnx_gemma4 if config.model_type == "gemma4_text" else nnx_trees).CausalLM(config, dtype)


def flat(model):
    """{dotted name: nnx variable}"""
    return {".".join(map(str, path)): leaf for path, leaf in nnx.to_flat_state(nnx.state(model, nnx.Param))}


def fill(model, arrays):
    variables = flat(model)
    assert variables.keys() == arrays.keys(), f"names differ: {sorted(variables.keys() ^ arrays.keys())[:8]}"
    for name, v in variables.items():
        assert v.shape == arrays[name].shape and v.dtype == arrays[name].dtype, f"{name}: tree {v.dtype} {v.shape}, file {arrays[name].dtype} {arrays[name].shape}"
    state = nnx.state(model, nnx.Param)
    nnx.update(model, nnx.from_flat_state([(path, leaf.replace(arrays[".".join(map(str, path))])) for path, leaf in nnx.to_flat_state(state)]))
    return len(arrays)


def partition(name, uncut):
    """How the documented mesh (ep, tp) cuts a leaf."""
    if name.endswith(("w1_EFD", "w3_EFD")):
        return PartitionSpec("ep", "tp", None)
    if name.endswith("w2_EDF"):
        return PartitionSpec("ep", None, "tp")
    owner = name.split(".")[-2]
    gemma4 = {"per_layer_model_projection": PartitionSpec(None, "tp"), "per_layer_input_gate": PartitionSpec(None, "tp"), "per_layer_projection": PartitionSpec("tp", None)}
    if owner in gemma4 and name.endswith("kernel"):
        return gemma4[owner]
    if name.endswith("router.proj.kernel"):  # Gemma 4's
        return PartitionSpec(None, "tp")
    if uncut or "router" in name or "shared_expert_gate" in name:
        return PartitionSpec()
    if owner in ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "lm_head"):
        return PartitionSpec(None, "tp") if name.endswith("kernel") else PartitionSpec("tp")
    if owner in ("o_proj", "down_proj") and name.endswith("kernel"):
        return PartitionSpec("tp", None)
    return PartitionSpec()


def same(a, b):
    a, b = np.asarray(a), np.asarray(b)
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def trip(desk, label, name, changes):
    source, there, back = desk.base / "hf", desk.base / "there", desk.base / "back"
    changes = dict(changes, **({} if "vocab_size" in changes else dict(vocab_size=132)))
    model = models.build(name, **changes)
    models.save(model, source)
    if not desk.knows(source, label):
        shutil.rmtree(source)
        return False
    saved = support.tensors(source, "model")
    with desk.row(label, "names, shapes, dtypes of the live tree = files; its state → HF exactly", "jax") as row:
        desk.convert(source, "jax", there)
        tree = tree_of(model.config, jnp.bfloat16)
        row["checked"] = fill(tree, load_file(there / "rank0.safetensors"))
        save_file({n: v[...] for n, v in flat(tree).items()}, there / "rank0.safetensors")
        desk.convert(there, "hf", back, source="jax")
        support.equal(support.tensors(back, "model"), saved, label)
    whole = {n: np.asarray(v[...]) for n, v in flat(tree).items()}
    for spec, sizes in (("jax:tp=2", (1, 2)), ("jax:ep=2,tp=1", (2, 1))):
        if sizes[0] > 1 and not models.has_experts(name):
            continue
        with desk.row(label, "shards of jax.Arrays on two devices = the ranks' files", spec) as row:
            desk.convert(source, spec, there)
            mesh = Mesh(np.array(jax.devices()[:2]).reshape(sizes), ("ep", "tp"))
            files = [load_file(there / f"rank{r}.safetensors") for r in range(2)]
            for n, a in whole.items():
                placed = jax.device_put(a, NamedSharding(mesh, partition(n, name == "qwen3_next")))
                for shard in placed.addressable_shards:
                    rank = jax.devices().index(shard.device)
                    assert same(shard.data, files[rank][n]), f"{n} on rank {rank}: shard {shard.data.shape} and file {files[rank][n].shape} differ"
                    row["checked"] += 1
    shutil.rmtree(source)
    return True


def forward(desk, label, name, changes):
    source, there = desk.base / "hf", desk.base / "there"
    model = models.build(name, dtype="float32", **changes)
    models.save(model, source)
    tokens = torch.randint(3, model.config.vocab_size, (2, 11), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        want = model(tokens).logits.numpy()
    with desk.row(label, "forward pass in float32: logits equal transformers' within 1e-4", "jax") as row:
        desk.convert(source, "jax", there)
        tree = tree_of(model.config, jnp.float32)
        fill(tree, load_file(there / "rank0.safetensors"))
        got = np.asarray(tree(jnp.asarray(tokens.numpy())))
        far = np.abs(got - want).max()
        assert far < 1e-4 and want.std() > 0.01, f"logits differ by {far} (of {np.abs(want).max()})"
        row["checked"] = got.size
    shutil.rmtree(source)


def main():
    jax.config.update("jax_default_matmul_precision", "highest")
    desk = support.Desk("flax", ["flax", "jax", "transformers", "torch"])
    for label in desk.wanted(CASES):
        name, changes = CASES[label]
        if trip(desk, label, name, changes):
            forward(desk, label, name, changes)
    desk.finish()


if __name__ == "__main__":
    main()
