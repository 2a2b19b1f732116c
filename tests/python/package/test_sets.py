"""One version for a policy and its draft model; what did not change does not travel."""

import unittest

import numpy as np
import refit
from test_layouts import CONFIG

FAST = {"stall_timeout_s": 5, "total_timeout_s": 20, "join_timeout_s": 8}
DRAFT = {**CONFIG, "num_hidden_layers": 1, "hidden_size": 48, "num_attention_heads": 3, "num_key_value_heads": 3}


def pair(spec):
    return refit.Layout.together({"": refit.Layout.from_config(CONFIG, spec), "draft": refit.Layout.from_config(DRAFT, spec)})


class Sets(unittest.TestCase):
    def test_names_and_refusals(self):
        both, policy, draft = pair("vllm:tp=3"), refit.Layout.from_config(CONFIG, "vllm:tp=3"), refit.Layout.from_config(DRAFT, "vllm:tp=3")
        self.assertEqual(both.world, 3)
        self.assertEqual(both.tensors, policy.tensors | {"draft." + n: t for n, t in draft.tensors.items()})
        for r in range(3):
            self.assertEqual(sum(both.buffers(r).values()), sum(policy.buffers(r).values()) + sum(draft.buffers(r).values()))
            self.assertEqual(len(both.holdings(r)), len(policy.holdings(r)) + len(draft.holdings(r)))
        self.assertEqual(refit.Plan(pair("tp=2"), both).coverage, 1.0)
        with self.assertRaisesRegex(refit.MismatchError, "different numbers of ranks"):
            refit.Layout.together({"a": policy, "b": refit.Layout.from_config(CONFIG, "tp=2")})
        with self.assertRaisesRegex(refit.UnsupportedError, "replicas"):
            refit.Layout.together({"a": refit.Layout.from_config(CONFIG, "vllm:tp=3,replicas=2")})
        with self.assertRaises(refit.InvalidError):
            refit.Layout.together({})

    def job(self, source, target, **options):
        c = refit.Coordinator.of(source, target, bucket_bytes=16384, **FAST, **options)
        self.addCleanup(c.shutdown)
        ends = [refit.Publisher(c.address, source, r) for r in range(source.world)] + [refit.Receiver(c.address, target, r) for r in range(target.world)]
        for e in ends:
            self.addCleanup(e.close)
        sources, targets = ends[: source.world], ends[source.world :]
        for t in targets:
            t.start()
        c.init_communicator()
        return c, sources, targets

    def write(self, c, sources, step, *, only=lambda name: True):
        for p in sources:
            with p.writing(step):
                for t in p.tensors:
                    if only(t.name):
                        t.numpy()[...] = hash_of(t.name, step)
        c.mark_stale()

    def check(self, targets, version, want):
        seen = set()
        for r in targets:
            r.wait_version(version, 10)
            for t in r.tensors:
                self.assertTrue((t.numpy() == want(t.name)).all(), t.name)
                seen.add(t.name)
        return seen

    def test_both_or_none(self):
        c, sources, targets = self.job(pair("tp=2"), pair("vllm:tp=3"))
        for step in (1, 2):
            self.write(c, sources, step)
            report = c.sync_weights()
            seen = self.check(targets, report.version.number, lambda n: hash_of(n, step))
            self.assertEqual({n.startswith("draft.") for n in seen}, {True, False})
        targets[1].close()  # one rank gone: neither model moves on on the others
        self.write(c, sources, 3)
        with self.assertRaises(refit.Error):
            c.sync_weights()
        self.check([targets[0], targets[2]], report.version.number, lambda n: hash_of(n, 2))

    def test_what_is_frozen_does_not_travel(self):
        """Over a mover that sends, with deltas: buckets whose digest is the one that the target has are left out."""
        c, sources, targets = self.job(pair("tp=2"), pair("vllm:tp=3"), transport="tcp", encoding="xor")

        def sent(count):
            return sum(getattr(p.report(), count) for p in sources)

        self.write(c, sources, 1)
        c.sync_weights()
        whole = sent("bytes_wire")
        self.assertEqual((sent("buckets_unchanged"), sent("buckets_delta")), (0, 0))
        self.assertGreater(whole, 100_000)
        self.write(c, sources, 2, only=lambda n: n.startswith("draft."))  # the policy is frozen
        report = c.sync_weights()
        self.check(targets, report.version.number, lambda n: hash_of(n, 2 if n.startswith("draft.") else 1))
        self.assertGreater(sent("buckets_unchanged"), 0)
        self.assertGreater(sent("buckets_delta") + sent("buckets_raw"), 0)
        self.assertLess(sent("bytes_wire"), whole / 2)
        self.write(c, sources, 3, only=lambda n: False)  # all of it is
        report = c.sync_weights()
        self.check(targets, report.version.number, lambda n: hash_of(n, 2 if n.startswith("draft.") else 1))
        self.assertEqual((sent("buckets_delta"), sent("buckets_raw")), (0, 0))
        self.assertLess(sent("bytes_wire"), whole / 20)


def hash_of(name, step):
    """A value that tells tensors and steps apart, in 16 bits."""
    return (sum(name.encode()) * 31 + step * 977) % 60000


if __name__ == "__main__":
    unittest.main()
