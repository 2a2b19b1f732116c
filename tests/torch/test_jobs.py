"""Real torch trainers on a 2 x 2 gloo mesh, engine ranks in processes of their own, weights over shared memory: what
arrives equals full_tensor() bit for bit."""

import pathlib
import tempfile
import unittest

import models
import refit
import torch
from processes import Child
from refit.trainers import torch as _torch


def cut(full, box, factors):
    """The values of a box, in the shape of its factors."""
    if factors:
        full = full.reshape([n for axis in factors for n in axis])
    return full[tuple(slice(lo, hi) for lo, hi in box)]


class Job(unittest.TestCase):
    def train(self, scenario, target_ranks):
        """A coordinator and four trainers on a mesh of 2 x 2."""
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.coordinator = refit.Coordinator(4, 1, target_ranks, bucket_bytes=65536, stall_timeout_s=20, total_timeout_s=60, join_timeout_s=15)
        self.addCleanup(self.coordinator.shutdown)
        self.trainers = [Child("trainer.py", self.coordinator.address, self.folder / "store", scenario, r) for r in range(4)]
        for t in self.trainers:
            self.addCleanup(t.close)

    def begin(self, scenario, target, target_ranks):
        """Trainers, and the engine ranks of a layout that `target` makes of the trainers' own."""
        self.train(scenario, target_ranks)
        self.source = refit.Layout.from_json([t.hear()["layout"] for t in self.trainers][0])
        self.target = target(self.source)
        (self.folder / "target.json").write_text(self.target.to_json())
        self.engines = [self.engine(r) for r in range(self.target.world)]
        for e in self.engines:
            e.hear()
        self.coordinator.init_communicator()

    def engine(self, rank):
        child = Child("engine.py", self.coordinator.address, self.folder / "target.json", rank)
        self.addCleanup(child.close)
        return child

    def all(self, children, verb, **arguments):
        for c in children:
            c.send(verb, **arguments)
        return [c.hear() for c in children]

    def step(self, number):
        self.all(self.trainers, "step", step=number)
        self.coordinator.mark_stale()

    def compare(self, version, step):
        """Every box of every engine rank with torch's own idea of the weights."""
        self.all(self.trainers, "full", path=str(self.folder / "full.pt"))
        full = {_torch.plain_name(n): t for n, t in torch.load(self.folder / "full.pt").items()}
        compared = set()
        for r, e in enumerate(self.engines):
            e.send("save", version=version, path=str(self.folder / f"{r}.pt"))
            self.assertEqual(e.hear()["step"], step)
            for name, box, factors, held in torch.load(self.folder / f"{r}.pt"):
                want = cut(full[name].to(held.dtype), box, factors)
                self.assertEqual(want.shape, held.shape, name)
                self.assertTrue(torch.equal(want.contiguous().reshape(-1).view(torch.uint8), held.contiguous().reshape(-1).view(torch.uint8)), f"{name} {box} on rank {r}")
                compared.add(name)
        self.assertGreaterEqual(len(compared), len(self.target.tensors) - len(self.target.tied))
        return full


class Fsdp2WithTensorParallel(Job):
    def test_versions_and_a_killed_engine(self):
        self.begin("sharded_llama", lambda _: refit.Layout.from_config(models.CONFIG, "vllm:tp=3"), 3)
        # Computes in bf16, keeps fp32: what travels is bf16.
        self.assertEqual({d for _, d in self.source.tensors.values()}, {"bf16"})
        self.assertEqual(self.source.tied, [("lm_head.weight", "model.embed_tokens.weight")])
        self.all(self.trainers, "publish", step=0)
        report = self.coordinator.sync_weights()
        self.assertTrue(report.proof)
        first = self.compare(report.version.number, 0)
        self.step(1)
        report = self.coordinator.sync_weights()
        second = self.compare(report.version.number, 1)
        changed = [n for n in first if not torch.equal(first[n], second[n])]
        self.assertGreater(len(changed), len(first) // 2)  # it did train

        self.engines[1].kill()
        self.step(2)
        with self.assertRaises(refit.Error) as e:
            self.coordinator.sync_weights()
        self.assertEqual(e.exception.peer, "target:0.1")
        self.assertTrue(self.coordinator.is_stale())
        self.engines[1] = self.engine(1)
        self.engines[1].hear()
        report = self.coordinator.sync_weights()
        self.assertEqual(report.outcome, "committed")
        self.compare(report.version.number, 2)
        self.assertFalse(self.coordinator.is_stale())


class OddSizes(Job):
    def halves(self, source):
        """Two ranks that cut every tensor at an odd place of its last axis."""
        parts = []
        for rank in range(2):
            part = {"tensors": {}, "ranks": [{"rank": rank, "buffers": {}, "holdings": []}]}
            for name, (shape, dtype) in source.tensors.items():
                part["tensors"][name] = {"shape": list(shape), "dtype": dtype}
                box = [[0, n] for n in shape]
                if shape:
                    at = (shape[-1] + 1) // 3
                    box[-1] = [[0, at], [at, shape[-1]]][rank]
                item = refit._arrays.SIZES[dtype]
                strides, step = [], item
                for lo, hi in reversed(box):
                    strides.insert(0, step)
                    step *= hi - lo
                part["ranks"][0]["buffers"][name] = {"bytes": step}
                part["ranks"][0]["holdings"].append({"tensor": name, "box": box, "buffer": name, "offset": 0, "strides": strides})
            parts.append(part)
        return refit.Layout.merge(parts)

    def test_every_placement(self):
        self.begin("odd_tensors", self.halves, 2)
        self.all(self.trainers, "publish", step=0)
        self.compare(self.coordinator.sync_weights().version.number, 0)
        self.step(3)
        self.compare(self.coordinator.sync_weights().version.number, 3)
        self.assertTrue(self.coordinator.verify()["ok"])


class Disagreement(Job):
    def test_every_rank_is_told_what_stops_one(self):
        self.train("one_rank_differs", 1)
        for rank, t in enumerate(self.trainers):
            with self.assertRaisesRegex(RuntimeError, "_checkpoint_wrapped_module.*" + ("" if rank == 3 else "source rank 3")):
                t.hear()


if __name__ == "__main__":
    unittest.main()
