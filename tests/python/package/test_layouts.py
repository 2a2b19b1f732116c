"""Layouts, plans, errors."""

import json
import unittest

import refit

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
