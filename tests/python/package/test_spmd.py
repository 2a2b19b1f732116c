"""Jobs without a driver: every rank calls, rank 0 holds the coordinator. Ranks are threads here and, once, processes with a
launcher's variables; under torchrun in tests/torch."""

import concurrent.futures
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import unittest

import numpy as np
import refit
from refit import spmd
from refit.launch import Place
from test_layouts import rows

HERE = pathlib.Path(__file__).parent
FAST = {"stall_timeout_s": 5, "total_timeout_s": 20, "join_timeout_s": 8}
SOURCE = [rows(0, 3), rows(3, 6, 1)]


class Spmd(unittest.TestCase):
    WORLD = 2

    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory())) / "meet"

    def make(self):
        return refit.WeightSynchronizer(refit.Coordinator(self.WORLD, 1, 1, **FAST))

    def start(self, rank, make=None, timeout_s=10):
        return spmd.start(make or self.make, at=Place(rank, self.WORLD), folder=self.folder, timeout_s=timeout_s, call_timeout_s=30)

    def ranks(self, body):
        """body(rank) on a thread each; what they return or raise."""
        def run(rank):
            try:
                return body(rank)
            except refit.Error as e:
                return e

        with concurrent.futures.ThreadPoolExecutor(self.WORLD) as pool:
            return list(pool.map(run, range(self.WORLD)))

    def test_a_job(self):
        source, target = refit.Layout.merge(SOURCE), refit.Layout.merge([rows(0, 6)])

        def rank(r):
            seen = []
            with self.start(r) as sync, refit.Publisher(sync.address, source, r) as publisher:
                receiver = refit.Receiver(sync.address, target) if r == 1 else None
                if receiver:
                    receiver.start()
                sync.init_communicator()
                for step in (1, 2):
                    with publisher.writing(step):
                        publisher.tensor("w").assign(np.full((3, 4), 10 * step + r, np.uint8))
                    sync.mark_stale()
                    self.assertTrue(sync.is_stale())
                    report = sync.sync_weights(step)
                    seen.append((report["outcome"], report["step"], sync.is_stale()))
                held = receiver.tensor("w").numpy().copy() if receiver else None
                sync.is_stale()  # a call of all: rank 1 has looked at its weights
                if receiver:
                    receiver.close()
            sync.shutdown()
            return seen, held

        (first, _), (second, held) = self.ranks(rank)
        self.assertEqual(first, [("committed", 1, False), ("committed", 2, False)])
        self.assertEqual(second, first)
        np.testing.assert_array_equal(held[:, 0], [20, 20, 20, 21, 21, 21])
        self.assertFalse(self.folder.exists())

    def test_an_error_of_rank_0_reaches_all(self):
        errors = self.ranks(lambda r: self.start(r, lambda: refit.WeightSynchronizer(refit.Coordinator(1, transport="pigeon"))))
        self.assertEqual(len({type(e) for e in errors}), 1)
        self.assertIsInstance(errors[1], (refit.InvalidError, refit.UnsupportedError))
        self.assertIn("pigeon", str(errors[1]))

        self.folder = self.folder.parent / "second"

        def nobody_publishes(r):
            sync = self.start(r, lambda: refit.WeightSynchronizer(refit.Coordinator(2, 1, 1, **{**FAST, "join_timeout_s": 0.5})))
            try:
                sync.init_communicator()
            finally:
                sync.shutdown()

        mine, theirs = self.ranks(nobody_publishes)
        self.assertIsInstance(theirs, refit.DeadlineError)
        self.assertEqual((theirs.message, theirs.peer, theirs.stage), (mine.message, mine.peer, mine.stage))

    def test_a_rank_that_does_not_call_is_named(self):
        told = threading.Event()

        def rank(r):
            sync = self.start(r, timeout_s=0.5 if r == 0 else 10)
            try:
                if r == 0:
                    sync.init_communicator()
                told.wait(10)
            finally:
                told.set()
                sync.shutdown()

        error, _ = self.ranks(rank)
        self.assertIsInstance(error, refit.DeadlineError)
        self.assertEqual((error.peer, error.stage), ("rank 1", "init_communicator"))
        self.assertFalse(self.folder.exists())

    def test_ranks_that_call_different_things(self):
        def rank(r):
            sync = self.start(r)
            try:
                sync.sync_weights(7 + r)
            finally:
                sync.shutdown()

        for e in self.ranks(rank):
            self.assertIsInstance(e, refit.MismatchError)
            self.assertRegex(str(e), r"sync_weights\(7\), rank 1 calls sync_weights\(8\)")

    def test_what_another_run_left_is_not_believed(self):
        store = spmd.FolderStore(self.folder)
        store.put("1/outcome", '{"result": ["ipc:///old", "host"], "seen": {"1": "another"}}')
        with self.assertRaisesRegex(refit.MismatchError, "another run"):
            self.start(1)

    def test_another_users_folder_is_refused(self):
        self.folder.mkdir(mode=0o755)
        self.folder.chmod(0o755)
        with self.assertRaisesRegex(refit.InvalidError, "0700"):
            self.start(0)

    def test_where_ranks_meet(self):
        with self.assertRaisesRegex(refit.InvalidError, "tells this job from another"):
            spmd.find_store(Place(0, 2, launcher="pmi"))
        with self.assertRaisesRegex(refit.InvalidError, "1 of 2 ranks are on this host"):
            spmd.find_store(Place(0, 2, 0, 1, "71-0", "slurm"))
        a, b, c = (spmd.find_store(Place(0, 2, 0, 2, job, "slurm")).folder for job in ("71-0", "71-0", "71-1"))
        self.assertEqual((a == b, a == c), (True, False))
        for folder in (a, c):
            folder.rmdir()


class Processes(unittest.TestCase):
    def test_under_mpis_variables(self):
        """Two processes that know nothing but what mpirun would set."""
        job = f"test-{os.getpid()}"
        children = []
        for rank in range(2):
            env = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")} | {
                "OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": str(rank),
                "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "PMIX_NAMESPACE": job,
            }  # fmt: skip
            children.append(subprocess.Popen([sys.executable, HERE / "spmd_rank.py"], env=env, stdout=subprocess.PIPE, text=True))
        try:
            for rank, child in enumerate(children):
                out, _ = child.communicate(timeout=60)
                self.assertEqual((child.returncode, out.split()), (0, [str(rank), "committed", "3", "7"]))
        finally:
            for child in children:
                child.kill()


if __name__ == "__main__":
    unittest.main()
