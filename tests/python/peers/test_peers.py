"""bench/peers without its peers: the work's pieces, the codecs written after others' descriptions, processes that hang or die, the page."""

import json
import os
import pathlib
import sys
import tempfile
import unittest
import xml.etree.ElementTree
import zlib

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2] / "bench/peers"))

import children  # noqa: E402
import delta_codecs  # noqa: E402
import group  # noqa: E402
import page  # noqa: E402
from model import Model, Rollout, Trainer, values  # noqa: E402


class Zlib:
    """In place of zstd, which this environment lacks."""

    pack, unpack = staticmethod(lambda data: zlib.compress(bytes(data), 1)), staticmethod(zlib.decompress)


class Work(unittest.TestCase):
    def test_the_model_is_the_one_of_the_figures(self):
        model = Model.of_bytes(2_430_000_000)
        self.assertEqual((model.layers, model.vocabulary), (24, 32000))
        self.assertEqual(model.useful_bytes(), 2_426_806_272)

    def test_pieces_bring_every_rollout_rank_its_bytes(self):
        model = Model(1, 64)
        trainers = [Trainer(model, i) for i in range(model.trainers)]
        for t in trainers:
            t.step()
        for r in range(model.rollouts):
            rollout = Rollout(model, r)
            moved = 0
            for t in trainers:
                for i, tensor in enumerate(rollout.tensors):
                    if box := model.piece(tensor, t.rank, r):
                        rollout.place(i, box)[...] = t.part(i, box)
                        moved += (box[1] - box[0]) * (box[3] - box[2])
            self.assertEqual(moved, sum(p.size for p in rollout.parameters.values()))
            self.assertEqual(rollout.wrong(1), 0)
            self.assertEqual(rollout.wrong(0), len(rollout.tensors))
            rollout.parameters["0.qkv"][-1, -1] += 1
            self.assertEqual(rollout.wrong(1), 1)

    def test_values_differ_by_place_and_version(self):
        one = values(3, (10, 12, 5, 7), 2)
        np.testing.assert_array_equal(one, values(3, (0, 20, 0, 20), 2)[10:12, 5:7])
        for other in (values(4, (10, 12, 5, 7), 2), values(3, (11, 13, 5, 7), 2), values(3, (10, 12, 6, 8), 2), values(3, (10, 12, 5, 7), 3)):
            self.assertFalse(np.any(one == other))


class Codecs(unittest.TestCase):
    def test_round_trips(self):
        for density in (0.0, 0.001, 0.05, 1.0):
            pairs = delta_codecs.tensors(400_000, density, seed=7, elements=130_000)
            self.assertEqual([old.size for old, _ in pairs], [130_000, 70_000])
            share = np.mean(np.concatenate([old != new for old, new in pairs]))
            self.assertAlmostEqual(share, density, delta=0.1 * density)
            for name, make in delta_codecs.CODECS.items():
                with self.subTest(codec=name, density=density):
                    codec = make(Zlib)
                    for old, new in pairs:
                        live = old.copy()
                        codec.apply(codec.encode(old, new), live)
                        np.testing.assert_array_equal(live, new)

    def test_gaps_beyond_16_bits(self):
        old = np.zeros(200_000, np.uint16)
        new = old.copy()
        new[[0, 199_999]] = 5
        message = delta_codecs.Nemo(Zlib).encode(old, new)
        self.assertEqual(message[0], 4)
        delta_codecs.Nemo(Zlib).apply(message, old)
        np.testing.assert_array_equal(old, new)

    def test_the_bound(self):
        old = np.zeros(1 << 16, np.uint16)
        new = old.copy()
        new[::2] = 1  # half of all, always +1: one bit an element for places, none for values
        self.assertAlmostEqual(delta_codecs.bound_bytes([(old, new)]), (1 << 16) / 8)
        pairs = delta_codecs.tensors(2_000_000, 0.01, seed=1)
        for name, make in delta_codecs.CODECS.items():
            self.assertGreater(sum(len(make(Zlib).encode(o, n)) for o, n in pairs), delta_codecs.bound_bytes(pairs), name)


class _Dies(group.Rank):
    def __init__(self, how):
        self.how = how

    def step(self):
        if self.how == "raise":
            raise RuntimeError("no link")
        os._exit(3)


class Processes(unittest.TestCase):
    def test_a_dead_and_a_failed_rank_are_named(self):
        for how, words in (("raise", "trainer0: RuntimeError: no link"), ("exit", "trainer0 died, exit code 3")):
            with self.assertRaisesRegex(group.Failure, words), group.Group([("trainer0", _Dies, (how,))], 60) as g:
                g.ask("step")
            self.assertFalse(g.processes[0].is_alive())

    def test_nothing_outlives_a_deadline(self):
        children.adopt()
        script = "import subprocess, time; subprocess.Popen(['sleep', '600'], start_new_session=True); time.sleep(600)"
        self.assertEqual(children.run([sys.executable, "-S", "-c", script], 0.5), {"error": "deadline of 0.5 s"})
        self.assertEqual(children._children(), [])

    def test_reasons(self):
        self.assertEqual(children.run([sys.executable, "-S", "-c", "print('x'); print('{\"a\": 1}')"], 60), {"a": 1})
        self.assertEqual(children.run([sys.executable, "-S", "-c", "raise SystemExit('no peer')"], 60), {"error": "exit code 1: no peer"})


class Pages(unittest.TestCase):
    """kept.json: a quick run on a busy machine. No figure of it means anything."""

    def setUp(self):
        self.document = json.loads((HERE / "kept.json").read_text())

    def written(self):
        with tempfile.TemporaryDirectory() as folder:
            page.write(self.document, folder)
            files = {p.name: p.read_text() for p in pathlib.Path(folder).iterdir()}
        self.assertEqual(json.loads(files.pop("peers.json")), self.document)
        text = files.pop("peers.md")
        for name, svg in files.items():
            self.assertIn(f"({name})", text)
            xml.etree.ElementTree.fromstring(svg)
        return text, files

    def test_all_rows_are_there(self):
        text, plots = self.written()
        for label in [label for label, _, _ in page.DENSE.values() if label != "torchstore"] + list(page.CODECS.values()) + [q[0] for q in page.QUANTISE.values()]:
            self.assertIn(label, text)
        self.assertEqual(len(plots), 2 + len(page.DENSITIES) + 2)
        self.assertIn("quick run", text)
        self.assertIn("`dense.torchstore` has no figure in 1 of 1 passes: its environment was not asked for", text)

    def test_a_loss_is_called_one(self):
        walls = [[p["walls_s"] for p in self.document["rows"][f"dense.{n}"]["passes"]] for n in ("refit_shm", "torch_shm")]
        walls[0][0][:], walls[1][0][:] = [3.0], [1.5]
        self.assertIn("| torch, shared memory | ", self.written()[0])
        self.assertIn("**0.5 ×: Refit loses**", self.written()[0])
        walls[0][0][:] = [0.5]
        self.assertIn("| 3 × |", self.written()[0])

    def test_missing_rows_cost_only_themselves(self):
        for row in list(self.document["rows"]):
            kept = self.document["rows"].pop(row)
            self.written()
            self.document["rows"][row] = {"passes": [{"error": "gone"}]}
            self.assertIn(f"`{row}` has no figure in 1 of 1 passes: gone", self.written()[0])
            self.document["rows"][row] = kept
        self.document["rows"] = {}
        self.written()


if __name__ == "__main__":
    unittest.main()
