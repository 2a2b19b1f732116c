"""Whole jobs over shared memory: threads for what is in this process, real processes for what dies."""

import asyncio
import gc
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
import unittest
import weakref

import ml_dtypes
import numpy as np
import refit
from test_layouts import CONFIG, rows

HERE = pathlib.Path(__file__).parent
FAST = {"stall_timeout_s": 5, "total_timeout_s": 20, "join_timeout_s": 8}  # a sync waits so long for who is missing


class Engine:
    """Records how it is steered."""

    def __init__(self):
        self.calls, self.broken = [], None

    def pause(self, timeout_s):
        if self.broken:
            raise self.broken
        self.calls.append("pause" if timeout_s > 0 else "late")

    def resume(self):
        self.calls.append("resume")

    def reset_caches(self):
        self.calls.append("reset_caches")

    def installed(self, version):
        self.calls.append(version.number)


class Whole(unittest.TestCase):
    """A tiny Llama in bf16: two trainer ranks to one replica of three, whose first rank installs into its own array."""

    def setUp(self):
        self.source, self.target = refit.Layout.from_config(CONFIG, "tp=2"), refit.Layout.from_config(CONFIG, "vllm:tp=3")
        self.coordinator = refit.Coordinator.of(self.source, self.target, bucket_bytes=16384, **FAST)
        self.addCleanup(self.coordinator.shutdown)
        address = self.coordinator.address
        self.trainers = [refit.Publisher(address, self.source, r) for r in range(2)]
        self.engine = Engine()
        (name, size), = self.target.buffers(0).items()
        self.own = np.zeros(size, np.uint8)
        self.engines = [refit.Receiver(address, self.target, 0, memory={name: self.own}, engine=self.engine)]
        self.engines += [refit.Receiver(address, self.target, r) for r in (1, 2)]
        for member in self.trainers + self.engines:
            self.addCleanup(member.close)
        for e in self.engines:
            e.start(0.02)
        self.sync = refit.WeightSynchronizer(self.coordinator)
        self.sync.init_communicator()

    def full(self, step):
        rng = np.random.default_rng(step)
        return {n: rng.standard_normal(s, np.float32).astype(ml_dtypes.bfloat16) for n, (s, _) in self.source.tensors.items()}

    def train(self, step):
        full = self.full(step)
        for p in self.trainers:
            with p.writing(step):
                for t in p.tensors:
                    t.assign(full[t.name][tuple(slice(lo, hi) for lo, hi in t.box)])
        self.sync.mark_stale()

    def check(self, step):
        full, compared = self.full(step), 0
        for e in self.engines:
            for t in e.tensors:
                if t.factors is None:
                    np.testing.assert_array_equal(t.numpy().view(ml_dtypes.bfloat16), full[t.name][tuple(slice(lo, hi) for lo, hi in t.box)])
                    compared += 1
        self.assertGreater(compared, 10)

    def test_versions(self):
        self.assertTrue(self.sync.is_stale())
        self.train(1)
        report = self.sync.sync_weights()
        self.assertEqual((report.outcome, report.version.step, report.proof), ("committed", 1, True))
        self.check(1)
        self.assertFalse(self.sync.is_stale())
        self.train(2)
        self.assertTrue(self.sync.is_stale())
        report = asyncio.run(self.sync.sync_weights_async(2))
        self.assertEqual(report.version.step, 2)
        self.check(2)
        self.assertEqual(self.engine.calls, ["pause", "reset_caches", 1, "resume", "pause", "reset_caches", report.version.number, "resume"])
        self.assertTrue(self.own.any())
        self.assertEqual({e.version.digest for e in self.engines}, {report.version.digest})
        self.assertEqual([t.report().snapshot_bytes for t in self.trainers], [0, 0])
        self.assertTrue(self.coordinator.verify()["ok"])
        self.assertEqual(self.coordinator.status()["version"]["number"], report.version.number)

    def test_an_engine_that_raises_is_named_and_repaired(self):
        self.train(1)
        self.sync.sync_weights()
        for number, (broken, kind) in enumerate(((TimeoutError("forward pass hangs"), TimeoutError), (KeyError("no such"), ValueError))):
            self.engine.broken = broken
            self.train(2 + number)
            with self.assertRaisesRegex(kind, "'pause' failed.*(forward pass hangs|no such)") as e:
                self.sync.sync_weights()
            self.assertEqual(e.exception.peer, "target:0.0")
            self.assertNotEqual(e.exception.report.outcome, "committed")
            self.assertTrue(self.sync.is_stale())
            self.engine.broken = None
        self.train(9)
        self.assertEqual(self.sync.sync_weights().version.step, 9)
        self.check(9)


class Parts(unittest.TestCase):
    """Small explicit layouts: six rows of four bytes."""

    def coordinator(self, *shape, **options):
        c = refit.Coordinator(*shape, **{**FAST, **options})
        self.addCleanup(c.shutdown)
        return c

    def test_waits_end_and_let_python_run(self):
        c = self.coordinator(2, join_timeout_s=0.6)
        p = refit.Publisher(c.address, refit.Layout.merge([rows(0, 3), rows(3, 6, 1)]), 0)
        self.addCleanup(p.close)
        turns, stop = [0], threading.Event()

        def turn():
            while not stop.is_set():
                turns[0] += 1
                time.sleep(0.002)

        other = threading.Thread(target=turn)
        other.start()
        began = time.monotonic()
        with self.assertRaisesRegex(TimeoutError, "source:0.1"):
            c.init_communicator()
        waited, counted = time.monotonic() - began, turns[0]
        stop.set()
        other.join()
        self.assertLess(waited, 5)
        self.assertGreater(counted, 20)  # a held GIL would have stopped the other thread

    def test_who_does_not_fit_is_told_in_its_own_process(self):
        c = self.coordinator(2)
        p = refit.Publisher(c.address, refit.Layout.merge([rows(0, 3), rows(3, 6, 1)]), 0)
        self.addCleanup(p.close)
        with self.assertRaises(refit.MismatchError):
            refit.Publisher(c.address, refit.Layout.merge([rows(0, 2), rows(2, 6, 1)]), 1)
        with self.assertRaises(refit.InvalidError):
            refit.Receiver(c.address, refit.Layout.merge([rows(0, 3), rows(3, 6, 1)]), 1)
        with self.assertRaises(refit.PeerLostError):
            refit.Receiver("ipc:///no/such/job/control", refit.Layout.merge([rows(0, 6)]))
        with self.assertRaises(refit.UnsupportedError):
            refit.Receiver("tcp://127.0.0.1:1", refit.Layout.merge([rows(0, 6)]))
        with self.assertRaises(refit.InvalidError) as e:
            refit.Receiver(c.address, refit.Layout.merge([rows(0, 6)]), memory={"b": np.zeros(3, np.uint8)})
        self.assertEqual((e.exception.need, e.exception.have), (24, 3))
        for bad in ({"commit": "sometimes"}, {"transport": "pigeon"}, {"proof_every": 0}):
            with self.assertRaises((refit.InvalidError, refit.UnsupportedError)):
                refit.Coordinator(1, **bad)

    def test_a_plan_with_a_hole_is_refused_by_name(self):
        c = self.coordinator(1)
        p = refit.Publisher(c.address, refit.Layout.merge([rows(0, 5)]))
        r = refit.Receiver(c.address, refit.Layout.merge([rows(0, 6)]))
        r.start()
        self.addCleanup(p.close)
        self.addCleanup(r.close)
        with self.assertRaisesRegex(refit.Error, "w") as e:
            c.init_communicator()
        self.assertEqual(e.exception.stage, "plan")

    def test_own_arrays_of_both_sides(self):
        c = self.coordinator(1)
        weights = {"a": np.arange(8, dtype=np.float32).reshape(2, 4), "b": np.arange(3).astype(ml_dtypes.bfloat16)}
        mine = {n: np.zeros_like(w) for n, w in weights.items()}
        with refit.Publisher.from_arrays(c.address, weights) as p, refit.Receiver.from_arrays(c.address, mine) as r:
            p.publish(1)
            r.start()
            c.init_communicator()
            c.sync_weights()
            for n, w in weights.items():
                np.testing.assert_array_equal(mine[n], w)
            # shm cannot read the trainer's own memory: it was copied, and that is told.
            self.assertEqual(p.report().snapshot_bytes, sum(w.nbytes for w in weights.values()))
            self.assertEqual(r.wait_version(1, 1).step, 1)
            with self.assertRaises(TimeoutError):
                r.wait_version(99, 0.05)
            with self.assertRaises(refit.InvalidError):
                r.run(0.1)  # a thread serves already

    def test_a_killed_process_is_named_and_replaced(self):
        source, target = refit.Layout.merge([rows(0, 6)]), refit.Layout.merge([rows(0, 4), rows(4, 6, 1)])
        c = refit.Coordinator.of(source, target, **FAST)
        self.addCleanup(c.shutdown)
        with refit.Publisher(c.address, source) as p:

            def train(step):
                with p.writing(step):
                    p.tensor("w").assign(np.full((6, 4), step, np.uint8))
                c.mark_stale()

            def start(rank):
                child = subprocess.Popen([sys.executable, HERE / "rank.py", c.address, target.to_json(), str(rank)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ)
                self.addCleanup(child.stdout.close)
                self.addCleanup(child.wait)
                self.addCleanup(child.stdin.close)
                self.assertEqual(child.stdout.readline(), "joined\n")
                return child

            children = [start(0), start(1)]
            train(1)
            c.init_communicator()
            self.assertEqual(c.sync_weights().version.number, 1)
            self.assertEqual([x.stdout.readline() for x in children], ["1 1 " + "01" * 16 + "\n", "1 1 " + "01" * 8 + "\n"])
            children[1].send_signal(signal.SIGKILL)
            children[1].wait()
            train(2)
            began = time.monotonic()
            with self.assertRaises(refit.Error) as e:
                c.sync_weights()
            self.assertEqual(e.exception.peer, "target:0.1")
            self.assertLess(time.monotonic() - began, 25)
            self.assertTrue(c.is_stale())
            children[1] = start(1)
            report = c.sync_weights()
            self.assertEqual((report.outcome, report.version.step), ("committed", 2))
            for x, size in zip(children, (16, 8)):
                self.assertEqual(x.stdout.readline().split()[1:], ["2", "02" * size])
            self.assertFalse(c.is_stale())

    def test_memory_lives_as_long_as_a_view_of_it(self):
        layout = refit.Layout.merge([rows(0, 6)])
        for make in (refit.Publisher, refit.Receiver):
            c = self.coordinator(1)
            mine = np.zeros(24, np.uint8)
            gone = weakref.ref(mine)
            member = make(c.address, layout, memory={"b": mine})
            native, seen, exported = member._native, member.tensor("w").numpy(), np.from_dlpack(member.tensor("w"))
            del member, mine
            gc.collect()
            self.assertIsNotNone(gone(), "the native member lost what was lent to it")
            del native
            gc.collect()
            self.assertIsNotNone(gone(), "a view lost what it looks at")
            seen[:] = 7
            self.assertTrue((exported == 7).all())
            del seen, exported
            gc.collect()
            self.assertIsNone(gone(), "something still holds the array")
            own = make(c.address, layout).tensor("w").numpy()  # the member is closed and collected, its memory is not
            gc.collect()
            own[:] = 3
            self.assertEqual(own.sum(), 72)

    def test_lent_arrays_are_replaced(self):
        layout = refit.Layout.merge([rows(0, 6)])
        for transport in ("shm", "tcp"):
            c = self.coordinator(1, transport=transport)
            arrays = [np.full(24, step, np.uint8) for step in range(4)]
            with refit.Publisher(c.address, layout, memory={"b": arrays[0]}) as p, refit.Receiver(c.address, layout) as r:
                r.start()
                p.publish(0)
                c.init_communicator()
                for step, array in enumerate(arrays):
                    if step:
                        p.rebind({"b": array})
                        arrays[step - 1][:] = 99  # nobody reads it any more
                        p.publish(step)
                        c.mark_stale()
                    self.assertEqual(c.sync_weights().version.step, step)
                    self.assertTrue((r.tensor("w").numpy() == step).all(), (transport, step))
                self.assertEqual(p.report().snapshot_bytes, 24 if transport == "shm" else 0)
                with self.assertRaises(refit.InvalidError) as e:
                    p.rebind({"b": np.zeros(3, np.uint8)})
                self.assertEqual((e.exception.need, e.exception.have), (24, 3))
        with refit.Publisher(self.coordinator(1).address, layout) as p, self.assertRaisesRegex(refit.InvalidError, "Refit's own"):
            p.rebind({"b": np.zeros(24, np.uint8)})

    def test_times_that_are_none_are_refused_by_name(self):
        layout = refit.Layout.merge([rows(0, 6)])
        c = self.coordinator(1)
        with refit.Publisher(c.address, layout) as p, refit.Receiver(c.address, layout) as r:
            calls = {
                "timeout_s": [p.guard, p.close, r.close, lambda s: r.wait_version(1, s), c.verify, lambda s: p.writing(1, timeout_s=s).__enter__()],
                "seconds": [r.run],
                "slice_s": [r.start],
                "join_timeout_s": [lambda s: refit.Publisher(c.address, layout, join_timeout_s=s), lambda s: refit.Receiver(c.address, layout, join_timeout_s=s)],
            }
            calls |= {name: [lambda s, name=name: refit.Coordinator(1, **{name: s})] for name in ("stall_timeout_s", "total_timeout_s", "gate_timeout_s")}
            for name, each in calls.items():
                for call in each:
                    for bad in (float("nan"), float("inf"), -1.0):
                        with self.assertRaisesRegex(refit.InvalidError, f"^invalid: {name} must be"):
                            call(bad)
            r.run(0)


class Threads(unittest.TestCase):
    """A receiver and more than one thread; a round whose hooks do what they should not."""

    def setUp(self):
        self.layout = refit.Layout.merge([rows(0, 6)])
        self.coordinator = refit.Coordinator(1, **FAST)
        self.addCleanup(self.coordinator.shutdown)
        self.publisher = refit.Publisher(self.coordinator.address, self.layout)
        self.addCleanup(self.publisher.close)
        self.engine = Engine()
        self.receiver = refit.Receiver(self.coordinator.address, self.layout, engine=self.engine)
        self.publisher.publish(1)

    def run_in_thread(self, call):
        """The thread, and what it raised."""
        raised = []

        def body():
            try:
                call()
            except BaseException as e:  # noqa: BLE001 - compared by the test
                raised.append(e)

        thread = threading.Thread(target=body)
        thread.start()
        self.addCleanup(thread.join, 30)
        return thread, raised

    def test_close_ends_a_run_of_another_thread(self):
        thread, raised = self.run_in_thread(lambda: self.receiver.run(60))
        time.sleep(0.2)
        with self.assertRaises(refit.BusyError):
            self.receiver.run(0.1)
        began = time.monotonic()
        self.receiver.close(10)
        thread.join(10)
        self.assertFalse(thread.is_alive())
        self.assertLess(time.monotonic() - began, 10)
        self.assertEqual(raised, [])
        with self.assertRaises(refit.CancelledError):
            self.receiver.run(0.1)
        self.receiver.close()
        for _ in range(5):
            receiver = refit.Receiver(self.coordinator.address, self.layout)
            receiver.start(0.001)
            receiver.close()
            receiver.check()

    def test_close_waits_for_a_hook_and_says_so(self):
        inside, leave, closed = threading.Event(), threading.Event(), []

        def pause(timeout_s):
            try:
                self.receiver.close()
            except refit.BusyError as e:
                closed.append(e)
            inside.set()
            leave.wait(20)

        self.engine.pause = pause
        # The hooks were taken when the receiver was made: another one.
        self.receiver.close()
        self.receiver = refit.Receiver(self.coordinator.address, self.layout, engine=self.engine)
        self.receiver.start()
        thread, _ = self.run_in_thread(lambda: (self.coordinator.init_communicator(), self.coordinator.sync_weights()))
        self.assertTrue(inside.wait(20))
        self.assertEqual(len(closed), 1)
        with self.assertRaisesRegex(TimeoutError, "hook"):
            self.receiver.close(0.2)
        leave.set()
        self.receiver.close(10)
        thread.join(30)

    def test_what_a_hook_raises_reaches_its_user(self):
        self.addCleanup(self.receiver.close)
        self.engine.broken = KeyError("no such layer")
        thread, raised = self.run_in_thread(lambda: (self.coordinator.init_communicator(), self.coordinator.sync_weights()))
        with self.assertRaises(KeyError) as e:
            self.receiver.run(20)
        self.assertIs(e.exception, self.engine.broken)
        serving, _ = self.run_in_thread(lambda: self.receiver.run(1))
        thread.join(30)
        self.assertEqual([type(x) for x in raised], [refit.InvalidError])
        self.assertRegex(str(raised[0]), "'pause' failed: KeyError.*no such layer")
        self.assertEqual(raised[0].peer, "target:0.0")
        serving.join(30)
        self.receiver.start()
        self.engine.broken = SystemExit(3)
        self.coordinator.mark_stale()
        with self.assertRaisesRegex(refit.Error, "SystemExit"):
            self.coordinator.sync_weights()
        with self.assertRaises(SystemExit):
            self.receiver.check()
        self.receiver.check()  # told once
        with self.assertRaisesRegex(refit.Error, "SystemExit"):
            self.coordinator.sync_weights()
        self.receiver.check(hooks=False)
        self.receiver.check()  # and not kept, once somebody says that it is told elsewhere
        self.engine.broken = None
        self.coordinator.sync_weights()
        self.assertEqual(self.receiver.wait_version(1, 5).step, 1)


if __name__ == "__main__":
    unittest.main()
