"""The driver's side of SGLang without SGLang: the stand-in server with its rules of state, wrong answers to every call, and
whole refits through Refit's own loader with workers of this process. The real server: `make test-sglang`."""

import importlib.util
import json
import pathlib
import tempfile
import threading
import time
import unittest
from unittest import mock

import numpy as np
import refit
import refit.sglang
from refit._gate import Gate
from refit._whole import whole_layout
from refit.sglang import orders
from sglang_stand_in import SglangStandIn
from stand_in import wrong_answers

SMALL = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 2, "vocab_size": 32, "rms_norm_eps": 1e-5, "torch_dtype": "float32",
}  # fmt: skip
EngineError = refit.sglang.EngineError


class Worker:
    """The loader's part of one SGLang worker, with NumPy in place of a model: `weights` are what it serves."""

    def __init__(self):
        self.receiver, self.weights, self.fail, self.joins = None, {}, None, 0

    def __call__(self, named_tensors):
        order = orders.decode(named_tensors)
        failed = None
        try:
            if self.fail == order["do"]:
                raise refit.MismatchError(f"{order['do']} broke", tensor="w")
            getattr(self, order["do"])(order)
        except Exception as e:
            failed = e
        if self.fail != "silent":
            orders.answer(order, failed)

    def join(self, order):
        self.close()
        self.joins += 1
        self.gate = Gate(self.load)
        layout = whole_layout(order["model"], order["ranks"], order["replicas"])
        self.receiver = refit.Receiver(order["address"], layout, order["replica"] * order["ranks"] + order["rank"], engine=self.gate)
        self.receiver.start()

    def load(self, version):
        if self.fail == "load":
            raise RuntimeError("the model's loader broke")
        self.weights = {t.name: t.numpy().copy() for t in self.receiver.tensors}

    def update(self, order):
        until = time.monotonic() + order["timeout_s"]
        self.gate.await_round(until - time.monotonic())
        self.gate.hold(until - time.monotonic())

    def close(self):
        if self.receiver:
            self.gate.close()
            self.receiver.close()


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.model = pathlib.Path(folder.name) / "config.json"
        self.model.write_text(json.dumps(SMALL))

    def server(self, ranks=1, **options):
        self.workers = [Worker() for _ in range(ranks)]
        server = SglangStandIn(self.model, ranks, lambda rank, tensors: self.workers[rank](tensors), **options)
        self.addCleanup(server.close)
        return server

    def paths(self, server):
        return [path.split("?")[0] for _, path, *_ in server.calls]


class Calls(Case):
    def setUp(self):
        super().setUp()
        self.stand_in = self.server()
        self.engine = refit.sglang.HttpEngine(self.stand_in.url, admin_key="secret")

    def refused(self, path, call, answer, part, kind=EngineError, timeout_s=5):
        self.stand_in.answers[path] = answer
        with self.assertRaises(kind) as caught:
            call(timeout_s)
        self.assertIn(part, str(caught.exception))
        self.assertEqual((caught.exception.peer, caught.exception.stage), (self.engine.name, path))
        self.assertNotIn("secret", str(caught.exception))

    def test_wrong_answers_to_every_call(self):
        calls = {
            "/begin_weight_update": lambda t: self.engine.begin(t),
            "/pause_generation": lambda t: self.engine.pause("abort", t),
            "/continue_generation": lambda t: self.engine.resume(t),
            "/update_weight_version": lambda t: self.engine.label("7", t),
            "/resume_memory_occupation": lambda t: self.engine.resume_memory(["weights"], t),
            "/update_weights_from_ipc": lambda t: self.engine.update_from_ipc({}, t),
        }
        wrong = wrong_answers(EngineError, refit.DeadlineError)
        for path, call in calls.items():
            # Answers that take their time are tried on one call: the client is the same.
            for answer, part, kind, timeout_s in wrong if path == "/pause_generation" else wrong[:-2]:
                with self.subTest(path=path, part=part):
                    self.refused(path, call, answer, part, kind, timeout_s)
        self.refused("/pause_generation", calls["/pause_generation"], (200, "[]"), "not the one of a server that did it")
        self.refused("/update_weight_version", calls["/update_weight_version"], (200, '{"success": true, "new_version": "6"}'), "not 7")
        self.refused("/server_info", lambda t: self.engine.init({}, t), (200, '{"model": 1}'), "does not describe a server")

    def test_a_session_is_probed_and_one_left_open_taken_over(self):
        self.engine.begin(1)
        self.engine.begin(1)
        self.engine.end(1)
        with self.assertRaises(EngineError):
            self.engine.end(1)
        older = self.server(sessions=False)
        engine = refit.sglang.HttpEngine(older.url)
        engine.begin(1)
        engine.end(1)
        engine.begin(1)
        self.assertEqual(self.paths(older), ["/begin_weight_update"])

    def test_a_flush_is_asked_for_until_it_is_done_or_its_time_is_up(self):
        self.stand_in.running = 3
        self.engine.reset_caches(2)
        self.assertEqual((self.stand_in.running, self.stand_in.flushes), (0, 1))
        self.stand_in.running = 10**6
        began = time.monotonic()
        with self.assertRaises(EngineError) as caught:
            self.engine.reset_caches(0.4)
        self.assertLess(time.monotonic() - began, 2)
        self.assertIn("not flushed within 0.4 s", str(caught.exception))
        keeping = refit.sglang.HttpEngine(self.stand_in.url, caches="keep")
        keeping.reset_caches(0.1)

    def test_a_label_aborts_nothing(self):
        self.stand_in.running = 5
        self.engine.label("v7", 1)
        self.assertEqual((self.stand_in.label, self.stand_in.running), ("v7", 5))

    def test_memory_in_two_phases(self):
        self.engine.release_memory(["weights", "kv_cache"], 1)
        self.engine.resume_memory(["weights"], 1)
        self.assertEqual(self.stand_in.asleep, {"kv_cache"})
        with self.assertRaises(EngineError):
            self.engine.resume_memory(["weights"], 1)
        self.engine.resume_memory(["kv_cache"], 1)
        self.stand_in.running = 1
        with self.assertRaises(EngineError) as caught:
            self.engine.release_memory(["weights"], 1)
        self.assertIn("idle", str(caught.exception))

    def test_the_admin_key_goes_with_every_call(self):
        guarded = self.server(admin_key="secret")
        refit.sglang.HttpEngine(guarded.url, admin_key="secret").begin(1)
        with self.assertRaises(EngineError) as caught:
            refit.sglang.HttpEngine(guarded.url, admin_key="wrong").begin(1)
        self.assertIn("HTTP 401", str(caught.exception))
        self.assertNotIn("wrong", str(caught.exception))

    def test_an_engine_that_is_not_as_declared(self):
        info = {"address": "ipc:///nowhere/control", "replica": 0, "replicas": 1}
        for facts, more, part, kind in [
            ({"version": "0.4.9"}, {}, "was not tried", refit.UnsupportedError),
            ({"pp_size": 2}, {}, "pp_size is 2", refit.UnsupportedError),
            ({"dp_size": 2}, {}, "dp_size is 2", refit.UnsupportedError),
            ({"tp_size": 4}, {"ranks": 2}, "the engine has 4 ranks", refit.MismatchError),
            ({}, {"rank": 2}, "no key rank", refit.InvalidError),
        ]:
            self.stand_in.answers["/server_info"] = (200, json.dumps({"version": "0.5.23", "tp_size": 1, "pp_size": 1, "dp_size": 1, "model_path": str(self.model)} | facts))
            with self.subTest(part), self.assertRaises(kind) as caught:
                self.engine.init(info | more, 1)
            self.assertIn(part, str(caught.exception))

    def test_a_receiver_whose_weights_no_tensor_can_be_of_is_closed(self):
        engine = refit.sglang.HttpEngine("http://127.0.0.1:1", via="tensor")
        engine._facts = lambda timeout_s: {"version": "0.5.23", "model_path": "m", "tp_size": 1}
        receiver = mock.Mock(tensors=[mock.Mock(torch=mock.Mock(side_effect=refit.UnsupportedError("no such dtype")))])
        with mock.patch("refit.sglang.server.Receiver", return_value=receiver), mock.patch("refit.sglang.server.whole_layout"):
            with self.assertRaises(refit.UnsupportedError):
                engine.init({"address": "x", "replica": 0, "replicas": 1}, 5)
        receiver.close.assert_called_once_with()
        receiver.start.assert_not_called()

    def test_options(self):
        for options in ({"via": "pigeon"}, {"caches": "maybe"}, {"bucket_bytes": 0}):
            with self.assertRaises(refit.InvalidError):
                refit.sglang.HttpEngine(self.stand_in.url, **options)
        with refit.Coordinator(1) as coordinator:
            with self.assertRaises(refit.InvalidError):
                refit.sglang.SGLangWeightSynchronizer(coordinator, [self.engine], in_flight="wait")
            with self.assertRaises(refit.InvalidError):
                refit.sglang.SGLangWeightSynchronizer(coordinator, [self.engine], in_flight="in_place")


class Orders(unittest.TestCase):
    def order(self, folder):
        return {"do": "join", "address": f"ipc://{folder}/control", "replica": 0, "rank": 1, "number": 3}

    def test_every_kind_of_answer(self):
        with tempfile.TemporaryDirectory() as folder:
            order = self.order(folder)
            orders.answer(order, None)
            orders.read_answer(order, "engine")
            with self.assertRaises(refit.InternalError) as caught:  # it was taken away
                orders.read_answer(order, "engine")
            self.assertIn("--custom-weight-loader", str(caught.exception))
            orders.answer(order, refit.ExhaustedError("full", need=2, have=1))
            with self.assertRaises(refit.ExhaustedError) as caught:
                orders.read_answer(order, "engine")
            self.assertEqual((caught.exception.need, caught.exception.peer), (2, "engine rank 1"))
            orders.answer(order, RuntimeError("torch said no" * 100000))
            with self.assertRaises(refit.InternalError):
                orders.read_answer(order, "engine")
            for text in ("{", "[]", '{"ok": false, "code": "odd", "message": ""}', '{"ok": false}'):
                (pathlib.Path(folder) / "sglang-0.1.3.json").write_text(text)
                with self.assertRaises(refit.CorruptError):
                    orders.read_answer(order, "engine")

    def test_an_address_without_a_directory(self):
        with self.assertRaises(refit.UnsupportedError):
            orders.directory("tcp://127.0.0.1:1")


class Rounds(Case):
    """With real publishers and receivers; only the server and its model are stand-ins."""

    def write(self, step):
        with self.publisher.writing(step):
            for t in self.publisher.tensors:
                t.numpy()[...] = step

    def joined(self, sync):
        """The synchronizer, once its engines and a publisher have joined; step 1 is published."""
        self.addCleanup(sync.shutdown)
        joined = threading.Thread(target=sync.init_communicator)
        joined.start()
        self.publisher = refit.Publisher(sync.coordinator.address, refit.Layout.from_config(SMALL, "hf"))
        self.addCleanup(self.publisher.close)
        joined.join(20)
        self.write(1)
        return sync


class Refits(Rounds):
    def job(self, ranks=1, gate_timeout_s=10, **options):
        self.stand_in = self.server(ranks)
        engine = refit.sglang.HttpEngine(self.stand_in.url)
        coordinator = refit.Coordinator(1, 1, ranks, stall_timeout_s=1, gate_timeout_s=gate_timeout_s, total_timeout_s=10, join_timeout_s=10)
        sync = refit.sglang.SGLangWeightSynchronizer(coordinator, [engine], **options)
        sync.SETTLE_S = 0.2
        self.addCleanup(lambda: [w.close() for w in self.workers])
        return self.joined(sync)

    def serves(self, step):
        for worker in self.workers:
            self.assertEqual({float(v) for w in worker.weights.values() for v in np.unique(w)}, {float(step)})

    def test_order_of_a_refit_on_two_ranks(self):
        sync = self.job(ranks=2)
        self.stand_in.calls.clear()
        report = sync.sync_weights()
        self.assertEqual(report.outcome, "committed")
        self.serves(1)
        self.assertEqual(self.paths(self.stand_in), ["/pause_generation", "/flush_cache", "/begin_weight_update", "/update_weights_from_tensor", "/end_weight_update", "/update_weight_version", "/continue_generation"])
        self.assertEqual((self.stand_in.label, self.stand_in.paused, self.stand_in.session), (str(report.version.number), None, False))
        self.assertFalse(sync.is_stale())
        sent = [b for _, p, b, _ in self.stand_in.calls if p == "/update_weights_from_tensor"][0]
        self.assertEqual(len(sent["serialized_named_tensors"]), 2)
        self.assertLess(max(map(len, sent["serialized_named_tensors"])), 4000)  # orders, no weights

    def repaired(self, sync, step):
        self.write(step)
        sync.sync_weights()
        self.serves(step)
        self.assertEqual((self.stand_in.paused, self.stand_in.session), (None, False))
        self.assertFalse(sync.is_stale())

    def test_failures_are_told_and_the_next_sync_repairs(self):
        sync = self.job(gate_timeout_s=2)
        sync.sync_weights()
        for step, (where, breaks) in enumerate({
            "a flush that is refused": lambda: setattr(self.stand_in, "running", 10**6) or self.stand_in.answers.update({"/pause_generation": (200, '{"status": "ok"}')}),
            "a rank reports a failure": lambda: setattr(self.workers[0], "fail", "update"),
            "a rank says nothing": lambda: setattr(self.workers[0], "fail", "silent"),
            "the model's loader breaks": lambda: setattr(self.workers[0], "fail", "load"),
            "end fails": lambda: self.stand_in.answers.update({"/end_weight_update": (500, "boom")}),
            "the label is lost": lambda: self.stand_in.answers.update({"/update_weight_version": (500, "boom")}),
        }.items(), 1):
            with self.subTest(where):
                breaks()
                self.write(10 * step)
                with self.assertRaises(refit.Error):
                    sync.sync_weights()
                self.assertTrue(sync.is_stale())
                self.assertNotIn("/continue_generation", self.paths(self.stand_in)[-1:], "an engine that failed was let loose")
                self.assertEqual(sync._paused, {0})
                self.stand_in.answers.clear()
                self.stand_in.running, self.workers[0].fail = 0, None
                self.repaired(sync, 10 * step + 1)

    def test_a_join_that_fails_says_why(self):
        self.stand_in = self.server()
        self.workers[0].fail = "join"
        with refit.Coordinator(1, 1, 1, join_timeout_s=5) as coordinator:
            sync = refit.sglang.SGLangWeightSynchronizer(coordinator, [refit.sglang.HttpEngine(self.stand_in.url)], timeout_s=5)
            with self.assertRaises(refit.MismatchError) as caught:
                sync.init_communicator()
            self.assertIn("join broke", str(caught.exception))
            self.assertFalse(self.stand_in.session)

    def test_compare_only_installs_nothing(self):
        sync = self.job(compare_only=True)
        self.workers[0].load = None  # whatever is compared, nothing is loaded
        self.workers[0].gate._load = lambda version: None
        self.stand_in.calls.clear()
        sync.sync_weights()
        self.assertEqual(self.paths(self.stand_in), ["/pause_generation", "/begin_weight_update", "/update_weights_from_tensor", "/end_weight_update", "/continue_generation"])
        self.assertEqual(self.stand_in.label, "default")

        def differs(version):
            raise refit.MismatchError("1 of 3 parameters differ", tensor="w")

        self.workers[0].gate._load = differs
        self.write(2)
        with self.assertRaises(refit.Error) as caught:
            sync.sync_weights()
        self.assertIn("1 of 3 parameters differ", str(caught.exception))
        self.assertEqual(self.stand_in.paused, None, "another synchronizer's engine must generate on")


@unittest.skipUnless(importlib.util.find_spec("torch") and importlib.util.find_spec("safetensors"), "needs torch and safetensors: make test-sglang has both")
class Ways(Rounds):
    """What the driver received goes through the stock endpoints of the stand-in."""

    def way(self, via):
        self.stand_in = self.server(2)
        self.stand_in.model = self.model.parent
        engine = refit.sglang.HttpEngine(self.stand_in.url, via=via, bucket_bytes=4096)
        coordinator = refit.Coordinator(1, 1, 1, stall_timeout_s=2, gate_timeout_s=5, total_timeout_s=20, join_timeout_s=20)
        return self.joined(refit.sglang.SGLangWeightSynchronizer(coordinator, [engine]))

    def sent(self, path):
        return [b for _, p, b, _ in self.stand_in.calls if p == path]

    def fails_and_is_repaired(self, sync, path, answer):
        self.stand_in.answers[path] = answer
        self.write(2)
        with self.assertRaises(refit.Error) as caught:
            sync.sync_weights()
        self.assertTrue(sync.is_stale())
        self.assertIsNotNone(self.stand_in.paused)
        self.stand_in.answers.clear()
        self.stand_in.calls.clear()
        self.write(3)
        sync.sync_weights()
        self.assertFalse(sync.is_stale())
        self.assertEqual((self.stand_in.paused, self.stand_in.session), (None, False))
        return str(caught.exception)

    def test_tensors(self):
        import base64
        import pickle

        sync = self.way("tensor")
        sync.sync_weights()
        told = self.fails_and_is_repaired(sync, "/update_weights_from_tensor", (400, '{"success": false, "message": "no room"}'))
        self.assertIn("no room", told)
        bodies = self.sent("/update_weights_from_tensor")
        self.assertGreater(len(bodies), 1)
        found = [dict(pickle.loads(base64.b64decode(b["serialized_named_tensors"][1]))) for b in bodies]
        self.assertEqual(sum(map(len, found)), len(self.publisher.tensors))
        self.assertEqual({float(v) for part in found for t in part.values() for v in t.unique()}, {3.0})
        for part in found:  # what a loader may join comes together
            layers = {n.rsplit(".", 2)[0] for n in part if "self_attn" in n}
            self.assertTrue(all(sum(n.startswith(layer + ".") for n in part) == 4 for layer in layers), part.keys())

    def test_a_directory(self):
        import safetensors.torch

        sync = self.way("disk")
        sync.sync_weights()
        told = self.fails_and_is_repaired(sync, "/update_weights_from_disk", (400, '{"success": false, "message": "no such file"}'))
        self.assertIn("no such file", told)
        self.assertNotIn("/begin_weight_update", self.paths(self.stand_in))
        folder = pathlib.Path(self.sent("/update_weights_from_disk")[-1]["model_path"])
        found = safetensors.torch.load_file(folder / "model.safetensors")
        self.assertEqual({float(v) for t in found.values() for v in t.unique()}, {3.0})
        self.assertTrue((folder / "config.json").exists())
        sync.shutdown()
        self.assertFalse(folder.exists())

    def test_a_group_that_is_refused_is_made_anew(self):
        sync = self.way("distributed")
        self.stand_in.answers["/init_weights_update_group"] = (400, '{"success": false, "message": "no group today"}')
        with self.assertRaises(refit.Error) as caught:
            sync.sync_weights()
        self.assertIn("no group today", str(caught.exception))
        self.assertTrue(sync.is_stale())


if __name__ == "__main__":
    unittest.main()
