"""One adapter alone: the tensors, names and bytes that PEFT would save."""

import unittest

import models
import peft
import refit
import torch
from refit.trainers import lora
from test_merged import packed


class Alone(unittest.TestCase):
    def test_what_peft_saves(self):
        for options in ({}, {"use_rslora": True, "rank_pattern": {"k_proj": 2}}, {"target_modules": ["embed_tokens", "v_proj"]}):
            with self.subTest(**options):
                model = models.adapted(**options)
                held, packer = packed(model, adapter="default")
                for _ in range(2):
                    saved = peft.get_peft_model_state_dict(model, save_embedding_layers=False)
                    self.assertEqual(held.keys(), saved.keys())
                    for name, t in held.items():
                        self.assertTrue(torch.equal(t, saved[name]), name)
                    models.noisy(model, 8)
                    packer.pack()
                info = lora.adapter_info(model)
                self.assertEqual({n: tuple(s) for n, (s, _) in info["tensors"].items()}, {n: tuple(t.shape) for n, t in saved.items()})
                self.assertEqual((info["config"]["r"], info["config"]["lora_alpha"], info["config"]["use_rslora"]), (8, 24, bool(options.get("use_rslora"))))

    def test_the_one_that_is_named(self):
        model = models.adapted()
        model.add_adapter("second", peft.LoraConfig(r=2, lora_alpha=5, target_modules=["q_proj"]))
        held, _ = packed(model, adapter="second")
        self.assertEqual({(n.split(".")[-2], min(t.shape)) for n, t in held.items()}, {("lora_A", 2), ("lora_B", 2)})
        self.assertEqual(len(held), 4)

    def test_refusals(self):
        model = models.adapted()
        with self.assertRaisesRegex(refit.InvalidError, "no LoRA adapter 'other'"):
            refit.Layout.from_torch(model, adapter="other")
        with self.assertRaisesRegex(refit.InvalidError, "PEFT module"):
            refit.Layout.from_torch({"w": torch.zeros(2)}, adapter="default")
        held, packer = packed(model, adapter="default")
        before = {n: t.clone() for n, t in held.items()}
        models.noisy(model, 8)
        model.base_model.model.model.layers[1].mlp.up_proj.scale_layer(2)  # which no engine would hear of
        with self.assertRaisesRegex(refit.InvalidError, "scaling.*up_proj"):
            packer.pack()
        self.assertTrue(all(torch.equal(t, before[n]) for n, t in held.items()))
        with self.assertRaisesRegex(refit.UnsupportedError, "plain LoRA.*q_proj"):
            refit.Layout.from_torch(models.adapted(use_dora=True), adapter="default")
        with self.assertRaisesRegex(refit.InvalidError, "no LoRA adapter 'other'"):
            lora.adapter_info(model, "other")

    def test_what_engines_would_not_take_is_named(self):
        for options, what in (
            ({"modules_to_save": ["lm_head"]}, "ModulesToSave.*lm_head"),
            ({"trainable_token_indices": [1, 2]}, "TrainableTokens.*embed_tokens"),
            ({"bias": "all"}, "bias='all'"),
            ({"target_parameters": ["self_attn.q_proj.weight", "self_attn.k_proj.weight"], "target_modules": [], "lora_dropout": 0.0}, "no plain LoRA"),
        ):
            with self.subTest(**options), self.assertRaisesRegex(refit.UnsupportedError, what):
                refit.Layout.from_torch(models.adapted(**options), adapter="default")

    def test_an_adapter_called_as_a_layer(self):
        model = peft.get_peft_model(models.base(), peft.LoraConfig(r=2, target_modules=["q_proj"]), adapter_name="1")
        held, _ = packed(model, adapter="1")
        self.assertEqual(held.keys(), peft.get_peft_model_state_dict(model, adapter_name="1").keys())

    def test_the_wires_dtype(self):
        info = lora.adapter_info(models.adapted(), dtypes={"*": "bf16"})
        self.assertEqual({d for _, d in info["tensors"].values()}, {"bf16"})


if __name__ == "__main__":
    unittest.main()
