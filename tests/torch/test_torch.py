"""torch without processes: names, placements, tensors of every dtype, what is refused."""

import itertools
import random
import unittest

import models
import refit
import torch
from refit import _arrays
from refit.trainers import torch as _torch
from torch import nn
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard


def place(lent):
    return lent.address, lent.bytes


class Names(unittest.TestCase):
    def test_wrappers_are_stripped(self):
        for own, plain in (
            ("module.model.norm.weight", "model.norm.weight"),
            ("_orig_mod.module.model.norm.weight", "model.norm.weight"),
            ("module._orig_mod._fsdp_wrapped_module.model.layers.0._orig_mod.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.weight"),
            ("model.layers.0.self_attn.q_proj.base_layer.weight", "model.layers.0.self_attn.q_proj.weight"),
            ("encoder.module.weight", "encoder.module.weight"),
            ("base_layer_norm.weight", "base_layer_norm.weight"),
        ):
            self.assertEqual(_torch.plain_name(own), plain)

    def test_leftovers_are_listed(self):
        t = torch.zeros(2)
        with self.assertRaisesRegex(refit.InvalidError, "2 names.*_checkpoint_wrapped_module.*lora_A"):
            _torch.describe({"q.base_layer.weight": t, "q.lora_A.default.weight": t.clone(), "l._checkpoint_wrapped_module.w": t.clone()})
        described = _torch.describe({"q.base_layer.weight": t, "q.lora_A.default.weight": t.clone()}, ignore=["*.lora_*"])
        self.assertEqual([e.name for e in described.entries], ["q.weight"])

    def test_collisions_are_named(self):
        with self.assertRaisesRegex(refit.InvalidError, "'module.w' and 'w'") as e:
            _torch.describe({"module.w": torch.zeros(2), "w": torch.ones(2)})
        self.assertEqual(e.exception.tensor, "w")


class Placements(unittest.TestCase):
    def held(self, shape, placements, mesh, at):
        """The flat indices that a rank holds, cut by torch's own code."""
        t = torch.arange(torch.Size(shape).numel()).reshape(shape)
        for placement, size, k in zip(placements, mesh, at):
            if not isinstance(placement, Replicate):
                t = placement._split_tensor(t, size, with_padding=False)[0][k]
        return t

    def test_equal_to_torchs_own_cuts(self):
        rng, compared = random.Random(5), 0
        for _ in range(400):
            mesh = [rng.randint(1, 4) for _ in range(rng.randint(1, 3))]
            shape = [rng.randint(0, 13) for _ in range(rng.randint(1, 3))]
            placements = [rng.choice([Replicate(), Shard(d := rng.randrange(len(shape))), _StridedShard(d, split_factor=rng.randint(1, 4))]) for _ in mesh]
            full = torch.arange(torch.Size(shape).numel()).reshape(shape)
            for at in itertools.product(*map(range, mesh)):
                want = self.held(shape, placements, mesh, at)
                runs = _torch.shard_runs(shape, placements, mesh, at)
                self.assertEqual(tuple(sum(hi - lo for lo, hi in axis) for axis in runs), tuple(want.shape))
                for box, first in _torch.boxes(runs):
                    mine = want[tuple(slice(i, i + hi - lo) for i, (lo, hi) in zip(first, box))]
                    self.assertTrue(torch.equal(mine, full[tuple(slice(lo, hi) for lo, hi in box)]), (shape, placements, mesh, at))
                    compared += mine.numel()
        self.assertGreater(compared, 10_000)

    def test_partial_is_no_value(self):
        with self.assertRaises(NotImplementedError):
            _torch.shard_runs([4], [Partial()], [2], [0])


class Tensors(unittest.TestCase):
    def views(self, **tensors):
        layout = refit.Layout.from_arrays(tensors)
        memory = [(n, memoryview(bytearray(b))) for n, b in layout.buffers(0).items()]
        return {t.name: t for t in _arrays.tensors(layout._native.rank(0), memory)}

    def test_every_dtype_comes_and_goes_without_a_copy(self):
        for name, dtype in ((n, getattr(torch, n)) for n in _arrays.NAMES):
            given = torch.arange(6).to(dtype).reshape(2, 3)
            self.assertEqual(place(_arrays.lend(given, writable=True)), (given.data_ptr(), given.numel() * given.element_size()))
            view = self.views(t=given)["t"]
            view.assign(given)
            again = view.torch()
            self.assertEqual((again.dtype, view.dtype), (dtype, _arrays.NAMES[name]))
            self.assertTrue(torch.equal(again.view(torch.uint8), given.view(torch.uint8)))
            again.view(torch.uint8)[0, 0] = 1
            self.assertTrue(torch.equal(view.torch().view(torch.uint8), again.view(torch.uint8)))  # one memory

    def test_parameters_and_refusals(self):
        parameter = nn.Parameter(torch.zeros(3))
        self.assertEqual(_arrays.lend(parameter, writable=True).address, parameter.data_ptr())
        with self.assertRaises(refit.InvalidError):
            _arrays.lend(torch.zeros(4, 4).t(), writable=True)
        with self.assertRaises(refit.UnsupportedError):
            _arrays.lend(torch.zeros(2, device="meta"), writable=True)


class Modules(unittest.TestCase):
    def test_a_plain_module(self):
        model = models.Llama()
        layout = refit.Layout.from_torch(model)
        self.assertEqual(layout.world, 1)
        self.assertEqual(layout.tensors.keys(), refit.Layout.from_config(models.CONFIG, "hf").tensors.keys() | {"lm_head.weight"})
        self.assertEqual(layout.tied, [("lm_head.weight", "model.embed_tokens.weight")])
        cast = refit.Layout.from_torch(model, dtypes={"*norm.weight": "f32", "*": "bf16"})
        self.assertEqual(cast.tensors["model.norm.weight"][1], "f32")
        self.assertEqual(refit.Plan(cast, refit.Layout.from_torch(model, dtypes={"*norm.weight": "f32", "*": "bf16"})).coverage, 1.0)
        with self.assertRaises(refit.InvalidError):
            refit.Layout.from_torch(model, dtypes={"*": "bf17"})
        with self.assertRaises(refit.InvalidError):
            refit.Layout.from_torch(nn.Identity())

    def test_packing_casts_as_torch_does(self):
        model = nn.Linear(5, 3)
        described = _torch.describe(model, dtypes={"weight": "bf16"})
        memory = {"weights": memoryview(bytearray(described.bytes))}
        packer = _torch.Packer(described, memory)
        packer.pack()
        layout = refit.Layout.merge([described.part(0)])
        held = {t.name: t.torch() for t in _arrays.tensors(layout._native.rank(0), list(memory.items()))}
        self.assertTrue(torch.equal(held["weight"], model.weight.to(torch.bfloat16)))
        self.assertTrue(torch.equal(held["bias"], model.bias))
        with torch.no_grad():
            model.bias.fill_(4)
        packer.pack()
        self.assertTrue(torch.equal(held["bias"], torch.full((3,), 4.0)))

    def packed(self, model, **options):
        described = _torch.describe(model, **options)
        memory = {"weights": memoryview(bytearray(described.bytes))}
        layout = refit.Layout.merge([described.part(0)])
        held = {t.name: t.torch() for t in _arrays.tensors(layout._native.rank(0), list(memory.items()))}
        return _torch.Packer(described, memory), held

    def test_several_modules_are_one_version(self):
        policy, draft = models.Llama(), nn.Linear(5, 3)
        layout = refit.Layout.from_torch({"": policy, "draft": draft})
        want = refit.Layout.from_torch(policy, config=False).tensors | {"draft." + n: t for n, t in refit.Layout.from_torch(draft).tensors.items()}
        self.assertEqual(layout.tensors, want)
        packer, held = self.packed({"": policy, "draft": draft})
        with torch.no_grad():
            draft.weight.fill_(2)
        packer.pack()
        self.assertTrue((held["draft.weight"] == 2).all())
        self.assertTrue(torch.equal(held["model.norm.weight"], policy.model.norm.weight))

    def test_replaced_parameters_are_followed(self):
        model = nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3))
        packer, held = self.packed(model)
        for number in range(3):
            model.load_state_dict({n: torch.full_like(t, number) for n, t in model.state_dict().items()}, assign=True)
            packer.pack()
            for name, t in held.items():
                self.assertTrue((t == number).all(), name)
        model[0].weight = nn.Parameter(torch.full((3, 5), 8.0))
        model[1].running_mean = torch.full((3,), 9.0)
        packer.pack()
        self.assertEqual((held["0.weight"][0, 0].item(), held["1.running_mean"][0].item()), (8, 9))
        tensors = {"w": torch.zeros(2)}
        packer, held = self.packed(tensors)
        tensors["w"] = torch.ones(2)
        packer.pack()
        self.assertTrue((held["w"] == 1).all())

    def test_what_the_layout_no_longer_describes_is_named(self):
        def shape(m):
            m[0].weight = nn.Parameter(torch.zeros(4, 5))

        def dtype(m):
            m[0].weight = nn.Parameter(torch.zeros(3, 5, dtype=torch.bfloat16))

        def device(m):
            m[0].weight = nn.Parameter(torch.zeros(3, 5, device="meta"))

        def gone(m):
            del m[0].weight

        def untied(m):
            m[2].weight = nn.Parameter(torch.zeros(3, 5))

        def new(m):
            m[1].extra = nn.Parameter(torch.zeros(1))

        for change, tensor, what in (
            (shape, "0.weight", "lies otherwise"),
            (dtype, "0.weight", "dtype was f32"),
            (device, "0.weight", "meta"),
            (gone, "0.weight", "no longer in the model"),
            (untied, "2.weight", "was tied with '0.weight'"),
            (new, "", "1 tensors are new.*1.extra"),
        ):
            model = nn.Sequential(nn.Linear(5, 3), nn.Linear(3, 2), nn.Linear(5, 3))
            model[2].weight = model[0].weight
            packer, held = self.packed(model)
            packer.pack()
            before = {n: t.clone() for n, t in held.items()}
            with torch.no_grad():
                for p in model.parameters():
                    p.add_(1)
            change(model)
            with self.assertRaisesRegex(refit.Error, what) as e:
                packer.pack()
            self.assertEqual(e.exception.tensor, tensor, change.__name__)
            for n, t in held.items():
                self.assertTrue(torch.equal(t, before[n]), f"{change.__name__}: {n} was written all the same")


if __name__ == "__main__":
    unittest.main()
