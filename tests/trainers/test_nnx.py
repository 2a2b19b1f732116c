"""Flax NNX modules over four CPU devices, their own memory lent to vLLM ranks: equal to the checkpoint bit for bit."""

import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import unittest

if "jax" not in sys.modules:  # nnx_rank.py has made its own devices
    os.environ.update(JAX_PLATFORMS="cpu", XLA_FLAGS="--xla_force_host_platform_device_count=4")
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import jobs  # noqa: E402

DEVICES = jax.devices()  # before nnx_models asks for two
import nnx_gemma4  # noqa: E402
import nnx_models  # noqa: E402
import nnx_trees  # noqa: E402
import numpy as np  # noqa: E402
import refit  # noqa: E402
import torch  # noqa: E402
from flax import nnx  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec  # noqa: E402
from refit.trainers import jax as trainer  # noqa: E402

SQUARE = nnx_models.SQUARE | dict(moe_intermediate_size=64, num_experts=64)


def of_torch(tensor):
    bits = tensor.contiguous().view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor
    array = bits.numpy()
    return array.view(jnp.bfloat16) if tensor.dtype == torch.bfloat16 else array


def tree(config, tensors):
    """An NNX module with a checkpoint's values, by the table of the documented trees: written here, not by Refit's rules."""
    model = (nnx_gemma4 if config.model_type == "gemma4_text" else nnx_trees).CausalLM(config, jnp.bfloat16)
    state, flat = nnx.state(model, nnx.Param), []
    for path, leaf in nnx.to_flat_state(state):
        name = ".".join(map(str, path)).replace("mlp.router.gate.", "mlp.gate.").replace("shared_experts.mlp.", "shared_expert.").replace("shared_experts.", "")
        stem, last = name.rsplit(".", 1)
        if last in ("w1_EFD", "w3_EFD", "w2_EDF"):
            part = {"w1_EFD": "gate", "w3_EFD": "up", "w2_EDF": "down"}[last]
            value = np.stack([of_torch(tensors[f"{stem}.{e}.{part}_proj.weight"]) for e in range(leaf.shape[0])])
        elif last == "kernel":
            value = of_torch(tensors[f"{stem}.weight"]).T
        elif last == "conv_weight":
            value = of_torch(tensors[f"{stem}.conv1d.weight"])[:, 0]
        else:
            value = of_torch(tensors[f"{stem}.weight" if last in ("embedding", "scale") else name])
        assert value.shape == leaf.shape, (name, value.shape, leaf.shape)
        flat.append((path, leaf.replace(jnp.asarray(value, jnp.bfloat16))))
    nnx.update(model, nnx.from_flat_state(flat))
    return model


def place(model, shape, uncut):
    """Every leaf over a mesh (ep, tp), as nnx_models cuts them."""
    mesh = Mesh(np.array(DEVICES).reshape(shape), ("ep", "tp"))
    flat = []
    for path, leaf in nnx.to_flat_state(nnx.state(model, nnx.Param)):
        spec = nnx_models.partition(".".join(map(str, path)), uncut)
        flat.append((path, leaf.replace(jax.device_put(leaf.get_value(), NamedSharding(mesh, spec)))))
    nnx.update(model, nnx.from_flat_state(flat))


def double(model):
    """A step: every array is a new one."""
    nnx.update(model, jax.tree.map(lambda a: a * 2, nnx.state(model, nnx.Param)))


class Nnx(unittest.TestCase):
    def job(self, family, target, transport="shm", sizes=(2, 2), **changes):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="refit-nnx-"))
        self.addCleanup(shutil.rmtree, folder)
        made, tensors = jobs.saved(family, folder, **changes)
        model = tree(made.config, tensors)
        place(model, sizes, made.config.model_type == "qwen3_next")
        layout = refit.Layout.from_model(str(folder), target)
        coordinator = refit.Coordinator(1, layout.instances, layout.world // layout.instances, transport=transport, **jobs.FAST)
        self.addCleanup(coordinator.shutdown)
        publisher = refit.Publisher.from_jax(coordinator.address, model, config=made.config)
        self.addCleanup(publisher.close)
        engines = jobs.Engines(self, coordinator.address, layout)
        return model, tensors, publisher, coordinator, engines

    def trip(self, family, target="vllm:tp=2", **options):
        model, tensors, publisher, coordinator, engines = self.job(family, target, **options)
        publisher.publish(1)
        coordinator.init_communicator()
        coordinator.sync_weights()
        engines.equal(tensors)
        former = trainer.leaves(model)
        copies = {n: np.array(a) for n, a in former.items()}
        double(model)
        publisher.publish(2)
        coordinator.mark_stale()
        self.assertEqual(coordinator.sync_weights().version.step, 2)
        engines.equal({n: (t * 2 if t.dtype == torch.bfloat16 else t) for n, t in tensors.items()})
        for n, a in former.items():  # never written
            np.testing.assert_array_equal(np.asarray(a).view(np.uint16), copies[n].view(np.uint16))
        return publisher

    def test_dense(self):
        publisher = self.trip("qwen3", vocab_size=132)
        self.assertGreater(publisher.report().snapshot_bytes, 0)

    def test_dense_square_without_a_copy(self):
        publisher = self.trip("qwen3", transport="tcp", **nnx_models.SQUARE)
        self.assertEqual(publisher.report().snapshot_bytes, 0)

    def test_experts_square(self):
        self.trip("qwen3_moe", "vllm:tp=2,ep=2", **SQUARE)

    def test_experts_over_every_device(self):
        self.trip("qwen3_moe", sizes=(4, 1), vocab_size=132)

    def test_delta_nets(self):
        self.trip("qwen3_next", vocab_size=132)

    def test_arrays_let_go(self):
        model, tensors, publisher, coordinator, engines = self.job("llama, tied", "vllm:tp=2", transport="tcp", vocab_size=132)
        publisher.publish(1)
        coordinator.init_communicator()
        coordinator.sync_weights()
        step = jax.jit(lambda s: jax.tree.map(lambda a: a * 2, s), donate_argnums=0)
        first = trainer.leaves(model)["model.norm.scale"]
        where = first.addressable_shards[0].data.unsafe_buffer_pointer()
        publisher.guard()  # else JAX copies what it would take over
        nnx.update(model, step(nnx.state(model, nnx.Param)))
        self.assertTrue(first.is_deleted())
        self.assertIn(where, [s.data.unsafe_buffer_pointer() for a in trainer.leaves(model).values() for s in a.addressable_shards])
        publisher.publish(2)
        coordinator.mark_stale()
        coordinator.sync_weights()
        engines.equal({n: t * 2 for n, t in tensors.items()})

    def test_two_processes(self):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="refit-nnx-"))
        self.addCleanup(shutil.rmtree, folder)
        _, tensors = jobs.saved("qwen3_moe", folder, vocab_size=132)
        layout = refit.Layout.from_model(str(folder), "vllm:tp=2")
        coordinator = refit.Coordinator(2, 1, 2, **jobs.FAST)
        self.addCleanup(coordinator.shutdown)
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        ranks = []
        for rank in range(2):
            script = [sys.executable, pathlib.Path(__file__).parent / "nnx_rank.py", str(port), str(rank), coordinator.address, folder]
            ranks.append(subprocess.Popen(script, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
            for end in (ranks[-1].wait, ranks[-1].kill, ranks[-1].stdout.close, ranks[-1].stdin.close):
                self.addCleanup(end)
        engines = jobs.Engines(self, coordinator.address, layout)

        def hear(rank):
            """The rank's next line; gloo prints there, too."""
            while not (line := rank.stdout.readline()).startswith(">"):
                self.assertTrue(line, "a rank ended")
            return [int(n) for n in line[1:].split()]

        # Experts lie on one process each, everything else on both.
        for r in ranks:
            devices, held = hear(r)
            self.assertEqual(devices, 4)
            self.assertLess(held, len(layout.tensors))
        for step in range(2):
            for r in ranks:
                r.stdin.write("\n")
                r.stdin.flush()
            self.assertEqual([hear(r) for r in ranks], [[step], [step]])
            coordinator.init_communicator() if step == 0 else coordinator.mark_stale()
            self.assertEqual(coordinator.sync_weights().version.step, step)
            engines.equal({n: t * (1 + step) for n, t in tensors.items()})

    def test_what_does_not_fit_is_named(self):
        model, _, publisher, coordinator, _ = self.job("llama, tied", "vllm:tp=2", vocab_size=132)
        config = publisher._described.rules.config
        norm = model.model.norm
        del model.model.norm
        with self.assertRaisesRegex(refit.InvalidError, "came or went.*model.norm.scale"):
            publisher.publish(1)
        with self.assertRaisesRegex(refit.InvalidError, "1 parameters.*missing.*model.norm.scale"):
            trainer.agree(model, config=config)
        model.model.norm = norm
        model.extra = nnx_trees.Norm(3, 1e-5, jnp.bfloat16)
        with self.assertRaisesRegex(refit.InvalidError, "1 names are no parameters.*extra.scale"):
            trainer.agree(model, config=config)
        described, layout, _ = trainer.agree(model, config=config, ignore=["extra.*"])
        self.assertEqual(layout, publisher.layout)
        self.assertEqual(refit.Layout.from_jax(model, config=config, ignore=["extra.*"]), layout)
        model.model.norm.scale.set_value(jnp.ones(71, jnp.bfloat16))
        with self.assertRaisesRegex(refit.MismatchError, r"\(71,\), by the configuration it has \(72,\)") as e:
            trainer.agree(model, config=config, ignore=["extra.*"])
        self.assertEqual(e.exception.tensor, "model.norm.scale")
        with self.assertRaises(refit.InvalidError) as e:
            described.memory(model)
        self.assertEqual(e.exception.tensor, "model.norm.scale")

    def test_trees_of_arrays_go_by_their_paths(self):
        arrays = {"a": {"w": jnp.arange(6.0).reshape(2, 3)}, "b": [jnp.ones(4, jnp.bfloat16)]}
        described, layout, _ = trainer.agree(arrays, dtypes={"a.*": "bf16"})
        self.assertEqual(layout.tensors, {"a.w": ((2, 3), "bf16"), "b.0": ((4,), "bf16")})
        with refit.Coordinator(1, **jobs.FAST) as c, refit.Publisher.from_jax(c.address, arrays, dtypes={"a.*": "bf16"}) as p, refit.Receiver(c.address, p.layout) as r:
            r.start()
            p.publish(1)
            c.init_communicator()
            c.sync_weights()
            arrays = jax.tree.map(lambda a: a + 1, arrays)
            p.publish(2, model=arrays)
            c.mark_stale()
            c.sync_weights()
            np.testing.assert_array_equal(r.tensor("a.w").numpy(), np.asarray(arrays["a"]["w"].astype(jnp.bfloat16)).view(np.uint16))
            np.testing.assert_array_equal(r.tensor("b.0").numpy(), np.asarray(arrays["b"][0]).view(np.uint16))


if __name__ == "__main__":
    unittest.main()
