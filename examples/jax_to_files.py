"""A JAX trainer whose weights become Hugging Face checkpoints, one a step, without ever stopping to save them.

The trainer lends its arrays as they lie: kernels are (in, out), as JAX has them. A receiver in another process holds the model as
checkpoints do, [out, in], and writes what it received whenever a version is whole: DIR/step-1, DIR/step-2 …

Run it with the package and jax installed: python examples/jax_to_files.py DIR
"""

import json
import multiprocessing
import pathlib
import struct
import sys
import time

import numpy as np

import refit

CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100, "rms_norm_eps": 1e-5, "torch_dtype": "bfloat16",
}  # fmt: skip
STEPS = 3


def jax_name(name):
    """How Flax names a tensor of the checkpoint, and whether it is turned there."""
    kind = "embedding" if "embed_tokens" in name else "scale" if "norm" in name else "kernel"
    return name.removesuffix("weight") + kind, kind == "kernel"


def train(address, begin, published):
    """All arrays shrink at each step; a real trainer has its optimizer here."""
    import jax
    import jax.numpy as jnp

    weights, key = {}, jax.random.key(0)
    for name, (shape, _) in refit.Layout.from_config(CONFIG, "hf").tensors.items():
        path, turned = jax_name(name)
        key, draw = jax.random.split(key)
        weights[path] = jax.random.normal(draw, shape[::-1] if turned else shape, jnp.bfloat16)
    halved = jax.jit(lambda tree: jax.tree.map(lambda w: w * jnp.bfloat16(0.5), tree))
    with refit.Publisher.from_jax(address, weights, config=CONFIG) as publisher:
        for step in iter(begin.get, None):
            weights = halved(weights)
            publisher.publish(step, model=weights)
            published.put({name: np.asarray(w).view(np.uint16) for name, w in weights.items()})


def write(folder, receiver):
    """A checkpoint, complete or not there at all."""
    header, offset, parts = {}, 0, []
    for tensor in receiver.tensors:
        values = np.ascontiguousarray(tensor.numpy())
        header[tensor.name] = {"dtype": "BF16", "shape": list(values.shape), "data_offsets": [offset, offset + values.nbytes]}
        offset += values.nbytes
        parts.append(values.tobytes())
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    unfinished = folder.with_name(folder.name + ".part")
    unfinished.mkdir(parents=True)
    (unfinished / "config.json").write_text(json.dumps(CONFIG))
    (unfinished / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"".join(parts))
    unfinished.rename(folder)


def save(address, out, stop):
    """One rank that holds the whole model in the checkpoint's own layout."""
    with refit.Receiver(address, refit.Layout.from_config(CONFIG, "hf"), 0) as receiver:
        written = -1
        while written < STEPS and not stop.is_set():
            receiver.run(0.05)
            if receiver.complete and receiver.version.step > written:
                written = receiver.version.step
                write(out / f"step-{written}", receiver)
                print(f"written: {out}/step-{written}, version {receiver.version.number}", flush=True)


def same(folder, weights):
    """Are the files the trainer's arrays, bit for bit, kernels turned?"""
    data = (folder / "model.safetensors").read_bytes()
    size = 8 + struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:size])
    for name, entry in header.items():
        path, turned = jax_name(name)
        values = np.frombuffer(data[size:][slice(*entry["data_offsets"])], np.uint16).reshape(entry["shape"])
        if not np.array_equal(values.T if turned else values, weights.pop(path)):
            return False
    return not weights


def wait_for(folder, timeout_s=60):
    end = time.monotonic() + timeout_s
    while not folder.exists():
        if time.monotonic() > end:
            sys.exit(f"{folder} was not written within {timeout_s} s")
        time.sleep(0.01)


def main():
    out = pathlib.Path(sys.argv[1])
    context = multiprocessing.get_context("spawn")
    begin, published, stop = context.Queue(), context.Queue(), context.Event()
    with refit.Coordinator(source_ranks=1, targets=1, target_ranks=1) as coordinator:
        members = [context.Process(target=train, args=(coordinator.address, begin, published)), context.Process(target=save, args=(coordinator.address, out, stop))]
        for member in members:
            member.start()
        with refit.WeightSynchronizer(coordinator) as synchronizer:
            for step in range(1, STEPS + 1):
                begin.put(step)
                weights = published.get(timeout=120)
                if step == 1:
                    synchronizer.init_communicator()
                synchronizer.mark_stale()
                report = synchronizer.sync_weights()
                print(f"step {step}: {report.outcome}, version {report.version.number}", flush=True)
                wait_for(out / f"step-{step}")  # without this, a version that a newer one overtakes is not written
            begin.put(None)
            for member in members:
                member.join(60)
            stop.set()
    if any(member.exitcode for member in members) or not same(out / f"step-{STEPS}", weights):
        return 1
    print(f"{out}/step-{STEPS} holds the trainer's arrays")
    return 0


if __name__ == "__main__":
    sys.exit(main())
