"""Real PEFT models: what is packed equals PEFT's own merge bit for bit, and the base is as it was."""

import copy
import unittest

import models
import peft
import refit
import torch
import transformers
from refit import _arrays
from refit.trainers import torch as _torch


def packed(model, **options):
    """What a publisher lends, by name, and its packer."""
    described = _torch.describe(model, **options)
    memory = {"weights": memoryview(bytearray(described.bytes))}
    part = described.part(0)
    layout = refit.Layout.merge([part])
    packer = _torch.Packer(described, memory)
    packer.pack()
    held = {t.name: t.torch() for t in _arrays.tensors(layout._native.rank(0), list(memory.items()))}
    return held, packer


def bytes_of(model):
    return {n: t.detach().clone() for n, t in model.state_dict().items()}


class Whole(unittest.TestCase):
    def same(self, held, want):
        want = {n: t for n, t in want.items() if n in held}
        self.assertEqual(held.keys(), want.keys())
        for name, t in held.items():
            self.assertEqual(t.dtype, want[name].dtype, name)
            self.assertTrue(torch.equal(t.contiguous().view(torch.uint8), want[name].detach().contiguous().view(torch.uint8)), name)

    def check(self, model, changed, **options):
        """Packs, and compares with what PEFT makes of a copy. changed: tensors that adapters change, at least."""
        before = bytes_of(model)
        held, packer = packed(model, **options)
        after = bytes_of(model)
        for name, t in before.items():
            self.assertTrue(torch.equal(t.view(torch.uint8) if t.ndim else t, after[name].view(torch.uint8) if t.ndim else after[name]), f"{name} was written")
        merged = copy.deepcopy(model).merge_and_unload().state_dict()
        self.same(held, merged)
        plain = {n: t for n, t in ((_torch.plain_name(n.removeprefix("base_model.model.")), t) for n, t in before.items())}
        self.assertGreaterEqual(sum(not torch.equal(held[n], plain[n]) for n in held if n in plain), changed)
        return held, packer

    def test_every_dtype_rank_and_scaling(self):
        for dtype in (torch.float32, torch.bfloat16):
            for options in ({}, {"r": 3, "lora_alpha": 7}, {"use_rslora": True}, {"rank_pattern": {"k_proj": 2}, "alpha_pattern": {"k_proj": 5}}):
                with self.subTest(dtype=dtype, **options):
                    held, _ = self.check(models.adapted(dtype, **options), 14)
                    self.assertEqual({t.dtype for t in held.values()}, {dtype})

    def test_adapters_in_the_bases_dtype(self):
        """autocast_adapter_dtype=False: PEFT multiplies bf16 in float32 on a CPU, and so do we."""
        config = peft.LoraConfig(r=4, lora_alpha=9, target_modules=models.ATTENTION)
        self.check(models.noisy(peft.get_peft_model(models.base(torch.bfloat16), config, autocast_adapter_dtype=False)), 8)

    def test_names_are_the_models_own(self):
        model = models.adapted()
        layout = refit.Layout.from_torch(model)
        self.assertEqual(layout.tensors, refit.Layout.from_torch(models.base()).tensors)
        self.assertEqual(layout.tensors.keys(), refit.Layout.from_config(model.config.to_json_string(), "hf").tensors.keys())

    def test_embeddings_biases_and_saved_modules(self):
        self.check(models.adapted(target_modules=["embed_tokens", "q_proj"]), 3)
        self.check(models.adapted(torch.bfloat16, target_modules=["embed_tokens", "q_proj"]), 3)
        model = models.adapted(modules_to_save=["lm_head"])
        held, _ = self.check(model, 14)
        self.assertFalse(torch.equal(held["lm_head.weight"], model.base_model.model.lm_head.original_module.weight))
        for bias in (False, True):
            torch.manual_seed(4)
            net = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3))
            self.check(models.noisy(peft.get_peft_model(net, peft.LoraConfig(r=2, lora_alpha=3, target_modules=["0", "2"], lora_bias=bias))), 4 if bias else 2, config=False)

    def test_turned_weights(self):
        """transformers' Conv1D keeps (in, out)."""
        torch.manual_seed(5)
        gpt = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=1, n_head=2, n_embd=16, n_inner=40, vocab_size=53, n_positions=16, tie_word_embeddings=False))
        model = models.noisy(peft.get_peft_model(gpt, peft.LoraConfig(r=3, lora_alpha=5, target_modules=["c_attn", "c_fc"], fan_in_fan_out=True)))
        self.check(model, 2, config=False)

    def test_several_adapters(self):
        model = models.adapted()
        model.add_adapter("second", peft.LoraConfig(r=2, lora_alpha=5, target_modules=["q_proj"]))
        models.noisy(model, 6)
        self.check(model, 14)  # one is active
        model.set_adapter("second")
        self.check(model, 2)
        model.base_model.set_adapter(["default", "second"])
        self.check(model, 14)

    def test_what_peft_merged_is_not_added_again(self):
        model = models.adapted()
        want = copy.deepcopy(model).merge_and_unload().state_dict()
        model.merge_adapter()
        self.same(packed(model)[0], want)

    def test_each_version_is_followed(self):
        model = models.adapted()
        first, packer = packed(model)
        first = {n: t.clone() for n, t in first.items()}
        models.noisy(model, 9)
        held, _ = packed(model)
        packer.pack()
        self.assertFalse(torch.equal(first["model.layers.0.mlp.up_proj.weight"], held["model.layers.0.mlp.up_proj.weight"]))
        for layer in model.modules():
            if isinstance(layer, peft.tuners.lora.LoraLayer):
                layer.scale_layer(0.5)
        self.check(model, 14)
        with model.disable_adapter():
            self.same(packed(model)[0], {n.removeprefix("base_model.model.").replace(".base_layer", ""): t for n, t in model.state_dict().items() if "lora_" not in n})
        model.add_adapter("later", peft.LoraConfig(r=2, lora_alpha=5, target_modules=["q_proj"]))
        model.set_adapter("later")
        models.noisy(model, 11)
        packer.pack()  # adapters come and go: the layout is that of the base

    def test_what_is_no_plain_lora_is_named(self):
        for config, what in (
            (peft.LoraConfig(r=2, target_modules=["q_proj"], use_dora=True), "Dora.*q_proj"),
            (peft.IA3Config(target_modules=["k_proj"], feedforward_modules=[]), "no LoRA.*k_proj"),
            (peft.LoraConfig(r=2, target_modules=["q_proj"], trainable_token_indices=[1, 2]), "TrainableTokens"),
        ):
            with self.assertRaisesRegex(refit.UnsupportedError, what):
                refit.Layout.from_torch(peft.get_peft_model(models.base(), config))

    def test_a_tied_tensor_is_refused(self):
        with self.assertRaisesRegex(refit.UnsupportedError, "tied with"):
            refit.Layout.from_torch(models.adapted(tied=True, target_modules=["embed_tokens"]))
        tied = refit.Layout.from_torch(models.adapted(tied=True))  # adapters elsewhere are no matter
        self.assertEqual(len(tied.tied), 1)

    def test_what_would_lose_an_update(self):
        model = models.adapted()
        with self.assertRaisesRegex(refit.UnsupportedError, "one of several modules"):
            refit.Layout.from_torch({"policy": model}, ignore=["*lora_*"])
        with self.assertRaisesRegex(refit.InvalidError, "not what it changes"):
            refit.Layout.from_torch(model, ignore=["*lora_A*"])
        tied = models.adapted(tied=True, target_modules=["embed_tokens"])
        with self.assertRaisesRegex(refit.UnsupportedError, "tied with"):
            refit.Layout.from_torch(tied, ignore=["lm_head.*"], config=False)
        model.merge_adapter()
        with model.disable_adapter(), self.assertRaisesRegex(refit.InvalidError, "unmerge_adapter"):
            refit.Layout.from_torch(model)

    def test_below_a_wrapper_the_wrappers_names_stay(self):
        outer = torch.nn.Module()
        outer.policy, outer.head = models.adapted(), torch.nn.Linear(2, 2)
        names = refit.Layout.from_torch(outer, config=False).tensors.keys()
        self.assertIn("policy.model.layers.0.self_attn.q_proj.weight", names)
        self.assertIn("head.weight", names)

    def test_other_dtypes_on_the_wire(self):
        model = models.adapted()
        want = copy.deepcopy(model).merge_and_unload().state_dict()
        held, _ = packed(model, dtypes={"*": "bf16"})
        self.same(held, {n: t.to(torch.bfloat16) for n, t in want.items()})  # merged in float32, then cast


if __name__ == "__main__":
    unittest.main()
