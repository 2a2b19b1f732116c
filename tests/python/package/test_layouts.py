"""Layouts, plans, errors."""

import json
import random
import unittest

import numpy as np
import refit
from refit.trainers import rules

CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 96, "intermediate_size": 120, "num_hidden_layers": 2,
    "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 16, "vocab_size": 131, "tie_word_embeddings": True,
    "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu", "torch_dtype": "bfloat16",
    "attention_bias": False, "mlp_bias": False,
}  # fmt: skip


def rows(lo, hi, rank=0, name="w", of=6):
    """The part of one rank that holds rows [lo, hi) of a matrix of `of` x 4 bytes."""
    return {
        "tensors": {name: {"shape": [of, 4], "dtype": "u8"}},
        "ranks": [
            {
                "rank": rank,
                "buffers": {"b": {"bytes": 4 * (hi - lo)}},
                "holdings": [{"tensor": name, "box": [[lo, hi], [0, 4]], "buffer": "b", "offset": 0, "strides": [4, 1]}],
            }
        ],
    }


MIXTURE = {**CONFIG, "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "num_experts": 4, "num_experts_per_tok": 2,
           "moe_intermediate_size": 40, "decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": True}  # fmt: skip


class OwnParameters(unittest.TestCase):
    """Boxes of a side's own parameters among the logical tensors: against a map of every element."""

    def read(self, own, box):
        """The logical elements' numbers that lie in a box of a parameter, by its holdings."""
        extents = [hi - lo for lo, hi in box]
        out = np.full(int(np.prod(extents)), -1)
        for h in rules.holdings(own, box, rules.row_major(extents), 0):
            values = self.numbers[h["tensor"]]
            values = values.reshape([n for axis in h.get("view", [[n] for n in values.shape]) for n in axis])
            values = values[tuple(slice(lo, hi) for lo, hi in h["box"])]
            at = np.full(values.shape, h["offset"])
            for axis, step in enumerate(h["strides"]):
                at = at + (np.arange(values.shape[axis]) * step).reshape([-1 if axis == k else 1 for k in range(values.ndim)])
            self.assertTrue((out[at] == -1).all(), "two holdings at one place")
            out[at] = values
        return out.reshape(extents)

    def test_every_box(self):
        rng, boxes = random.Random(3), 0
        for config, spec in ((CONFIG, "jax"), (MIXTURE, "jax"), (MIXTURE, "hf:naming=fused"), (MIXTURE, "megatron:vocab_multiple=131,experts=stacked"), (CONFIG, "megatron:vocab_multiple=131,spec=local")):
            found = rules.Rules(json.dumps(config), spec)
            total, self.numbers = 0, {}
            for name, (shape, _) in found.tensors.items():
                self.numbers[name] = np.arange(total, total + int(np.prod(shape))).reshape(shape)
                total += self.numbers[name].size
            seen = 0
            for name, own in found.parameters.items():
                whole = self.read(own, [(0, n) for n in own.shape])
                self.assertTrue((whole >= 0).all(), name)
                seen += whole.size
                for _ in range(3):
                    lows = [rng.randrange(n) for n in own.shape]
                    box = [(lo, rng.randint(lo + 1, n)) for lo, n in zip(lows, own.shape)]
                    np.testing.assert_array_equal(self.read(own, box), whole[tuple(slice(lo, hi) for lo, hi in box)], f"{spec} {name} {box}")
                    boxes += 1
            self.assertEqual(seen, total, spec)
        self.assertGreater(boxes, 100)

    def test_what_is_not_there(self):
        found = rules.Rules(json.dumps(MIXTURE), "hf:naming=fused")
        experts = "model.layers.1.mlp.experts.gate_up_proj"
        self.assertEqual(found.find(experts, (4, 80, 96)).shape, (4, 80, 96))
        with self.assertRaisesRegex(refit.MismatchError, r"\(4, 80, 95\)"):
            found.find(experts, (4, 80, 95))
        with self.assertRaisesRegex(refit.InvalidError, "2 names.*: other, rope"):
            rules.refuse_unknown(found, [experts, "lm_head.weight", "rope", "other"])
        with self.assertRaisesRegex(refit.InvalidError, r"parameters.*missing.*model\.embed_tokens\.weight"):
            rules.whole_or_refuse(found, found.parameters.keys() - {"model.embed_tokens.weight"})
        for bad in (3, "/no/such/config.json"):
            with self.assertRaises(refit.InvalidError):
                rules.config_text(bad)
        with self.assertRaises(refit.InvalidError):
            rules.Rules(json.dumps(MIXTURE), "tp=2")


class Layouts(unittest.TestCase):
    def test_rules(self):
        source, target = refit.Layout.from_config(CONFIG, "fsdp=2,tp=2"), refit.Layout.from_config(json.dumps(CONFIG), "vllm:tp=3,replicas=2")
        self.assertEqual((source.world, target.world, target.instances), (4, 6, 2))
        self.assertEqual(source.tensors, refit.Layout.from_config(CONFIG, "tp=2").tensors)
        self.assertEqual(source.tensors["model.embed_tokens.weight"], ((131, 96), "bf16"))
        again = refit.Layout.from_json(source.to_json())
        self.assertEqual((again, hash(again)), (source, hash(source)))
        self.assertNotEqual(source, target)
        plan = refit.Plan(source, target)
        self.assertEqual((plan.coverage, plan.bytes_moved), (1.0, plan.bytes_needed))
        self.assertEqual(sum(b for _, _, b in plan.links), plan.bytes_moved)
        self.assertIn("model.norm.weight", plan.explain("model.norm.weight"))

    def test_explicit(self):
        layout = refit.Layout.merge([rows(0, 4), rows(4, 6, 1)])
        self.assertEqual((layout.world, layout.buffers(1)), (2, {"b": 8}))
        self.assertEqual(layout.holdings(1)[0], ("w", [(4, 6), (0, 4)], "b", 0, [4, 1], "u8", None))
        with self.assertRaises(refit.MismatchError) as e:
            refit.Layout.merge([rows(0, 4), rows(4, 7, 1, of=7)])
        self.assertEqual(e.exception.tensor, "w")
        self.assertIn("rank 1", str(e.exception))
        with self.assertRaisesRegex(refit.InvalidError, "twice"):
            refit.Layout.merge([rows(0, 4), rows(4, 6)])

    def test_refusals(self):
        for bad in ("{}", "no json", json.dumps({**rows(0, 6), "more": 1}), json.dumps({"tensors": {}, "ranks": []})):
            with self.assertRaises(refit.InvalidError):
                refit.Layout.from_json(bad)
        with self.assertRaises(NotImplementedError):
            refit.Layout.from_config({**CONFIG, "model_type": "unheard", "architectures": ["Unheard"]}, "tp=2")
        with self.assertRaises(ValueError):
            refit.Layout.from_config(CONFIG, "vllm:tp=5")

    def test_holes_are_listed(self):
        source, target = refit.Layout.merge([rows(0, 4)]), refit.Layout.merge([rows(0, 6)])
        with self.assertRaises(refit.Error) as e:
            refit.Plan(source, target)
        self.assertIn("w", str(e.exception))
        with self.assertRaises(refit.InvalidError):
            refit.Plan(target, target, bucket_bytes=0)
        with self.assertRaises(refit.InvalidError):
            refit.Plan(target, target).explain("v")


class Errors(unittest.TestCase):
    def test_kinds(self):
        kinds = {"invalid": ValueError, "unsupported": NotImplementedError, "timeout": TimeoutError}
        for cls in refit.Error.__subclasses__():
            self.assertTrue(issubclass(cls, kinds.get(cls.code, RuntimeError)), cls)
            self.assertEqual(refit._errors.make(cls.code, "m", "line", {"peer": "target:0.1"}, None).peer, "target:0.1")
        self.assertEqual(len(refit.Error.__subclasses__()), 10)
        self.assertEqual(str(refit.PeerLostError("gone", peer="target:0.1", need=3)), "peer_lost: gone [peer=target:0.1 need=3]")
        self.assertTrue(refit.PeerLostError("").retryable)
        self.assertFalse(refit.InvalidError("").retryable)


if __name__ == "__main__":
    unittest.main()
