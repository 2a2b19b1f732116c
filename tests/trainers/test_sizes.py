"""Large mixtures of experts under FSDP2, in shapes alone: their layout fits a control message, however many layers and experts
they have."""

import json
import math
import unittest

import refit
import torch
import torch.distributed
from refit.trainers import rules
from refit.trainers import torch as trainer
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

TYPES = {"bf16": torch.bfloat16, "f32": torch.float32}
RANKS = 2
MESSAGE = 8 << 20  # bytes of a control message


def in_order(name):
    """As modules have them: layers by their numbers."""
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in name.split(".")]


def part(rank, config, parameters):
    """What one rank tells of parameters that FSDP2 cuts on their first axis."""
    torch.distributed.init_process_group("fake", rank=rank, world_size=RANKS, store=FakeStore())
    mesh = DeviceMesh("cpu", list(range(RANKS)))
    state = {}
    with FakeTensorMode():
        for p in sorted(parameters, key=lambda p: in_order(p.name)):
            first, last = (min(r * math.ceil(p.shape[0] / RANKS), p.shape[0]) for r in (rank, rank + 1))
            local = torch.empty([last - first, *p.shape[1:]], dtype=TYPES[p.dtype])
            state[p.name] = DTensor.from_local(local, mesh, [Shard(0)], run_check=False, shape=torch.Size(p.shape), stride=tuple(rules.row_major(p.shape)))
        told = trainer.describe(state, config=config).part(rank)
    torch.distributed.destroy_process_group()
    return told


class Sizes(unittest.TestCase):
    def fits(self, model, per_rank):
        whole = refit.Layout.from_model(model, "hf:naming=fused")
        config = json.loads(whole.to_json())["recipe"]["config"]
        layout = refit.Layout.merge(part(rank, config, whole._native.rank(0).parameters) for rank in range(RANKS))
        self.assertEqual(layout.tensors.keys(), whole.tensors.keys())
        text = layout.to_json()
        self.assertLess(len(text), RANKS * per_rank)
        self.assertLess(len(text) * 64, MESSAGE)
        self.assertEqual(refit.Layout.from_json(text).digest, layout.digest)

    def test_deepseek_v3(self):
        self.fits("deepseek-v3@layers=9", 20_000)

    def test_qwen3_moe(self):
        self.fits("qwen3-30b-a3b@layers=8", 5_000)


if __name__ == "__main__":
    unittest.main()
