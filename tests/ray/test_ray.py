"""Real Ray on this machine, actors on its CPUs: a driver with the coordinator, trainer and engine ranks as actors, deaths."""

import os
import pathlib
import sys
import time
import unittest

import numpy as np
import ray
import refit
import refit.ray
from refit._gate import Gate
from refit.ray import ActorEngine, RayWeightSynchronizer, WorkerGroup

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python/package"))
from test_layouts import rows  # noqa: E402

FAST = {"stall_timeout_s": 4, "total_timeout_s": 20, "join_timeout_s": 20}
SOURCE, TARGET = [rows(0, 3), rows(3, 6, 1)], [rows(0, 6), rows(0, 6, 1)]


class Trainer(refit.ray.SourceWorker):
    def __init__(self, rank):
        self.rank, self.value = rank, 0

    def refit_publisher(self, address):
        return refit.Publisher(address, refit.Layout.merge(SOURCE), self.rank)

    def train(self, step):
        self.value = 10 * step + self.rank
        with self.publisher.writing(step):
            self.publisher.tensor("w").assign(np.full((3, 4), self.value, np.uint8))
        return True

    def offload_before_refit(self):
        return self.rank != 1 or not getattr(self, "broken", False)

    def offload_after_refit(self):
        return True

    def set_broken(self, broken):
        self.broken = broken

    def sleep(self, seconds):
        time.sleep(seconds)

    def die(self):
        os._exit(1)


class Rollout(refit.ray.TargetWorker):
    def __init__(self, rank):
        self.rank = rank

    def refit_receiver(self, address):
        return refit.Receiver(address, refit.Layout.merge(TARGET), self.rank)

    def held(self, version):
        self.receiver.wait_version(version, 10)
        return self.receiver.tensor("w").numpy()[:, 0].tolist()

    def pid(self):
        return os.getpid()

    def raises(self):
        raise refit.MismatchError("not this one", tensor="w")


class Steered:
    """An engine as the driver steers it, whose one rank is this process: it installs in finish(), as plugins do."""

    name = "steered"

    def __init__(self):
        self.calls, self.gate = [], Gate(lambda version: None)

    def init(self, info, timeout_s):
        self.receiver = refit.Receiver(info["address"], refit.Layout.merge([rows(0, 6)]), engine=self.gate)
        self.receiver.start()
        self.calls.append("init")

    def update(self, info, timeout_s):
        self.calls.append("update")
        self.gate.await_round(info["timeout_s"])

    def finish(self, timeout_s):
        self.calls.append("finish")
        self.gate.hold(timeout_s)

    def __getattr__(self, method):
        if method not in ("pause", "reset_caches", "start", "label", "resume"):
            raise AttributeError(method)
        return lambda *arguments: self.calls.append(method)


class Generation(refit.ray.EngineWorker):
    def __init__(self):
        self.engine = Steered()

    def seen(self, version):
        self.engine.receiver.wait_version(version, 10)
        return self.engine.calls, self.engine.receiver.tensor("w").numpy()[:, 0].tolist()


class Policy(WorkerGroup):
    """As NeMo-RL's policy: every phase is asked of all workers, futures come back."""

    def offload_before_refit(self):
        return self.start("offload_before_refit")

    def offload_after_refit(self):
        return self.start("offload_after_refit")


class Jobs(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        ray.init(num_cpus=8, include_dashboard=False, log_to_driver=False, logging_level="error")

    @classmethod
    def tearDownClass(cls):
        ray.shutdown()

    def actors(self, kind, count, **options):
        made = [ray.remote(num_cpus=0.1, **options)(kind).remote(r) for r in range(count)]
        for a in made:
            self.addCleanup(ray.kill, a)
        return made

    def job(self, **engine_options):
        coordinator = refit.Coordinator(2, 1, 2, **FAST)
        self.trainers = WorkerGroup(self.actors(Trainer, 2), "source", timeout_s=60)
        self.engines = WorkerGroup(self.actors(Rollout, 2, **engine_options), "target", timeout_s=60)
        sync = RayWeightSynchronizer(coordinator, self.trainers, self.engines, probe_timeout_s=5)
        self.addCleanup(sync.shutdown)
        sync.init_communicator()
        return sync

    def train(self, sync, step):
        self.assertEqual(self.trainers.call("train", step), [True, True])
        sync.mark_stale()

    def check(self, report, step):
        want = [10 * step] * 3 + [10 * step + 1] * 3
        self.assertEqual(self.engines.call("held", report.version.number), [want, want])

    def test_a_driver_and_its_actors(self):
        sync = self.job()
        for step in (1, 2):
            self.train(sync, step)
            report = sync.sync_weights(step)
            self.assertEqual((report.outcome, report.version.step), ("committed", step))
            self.check(report, step)
        self.assertFalse(sync.is_stale())

    def test_a_dead_engine_actor_is_named_and_a_new_one_repairs(self):
        sync = self.job()
        self.train(sync, 1)
        sync.sync_weights()
        ray.kill(self.engines.actors[1])
        self.train(sync, 2)
        with self.assertRaises(refit.PeerLostError) as e:
            sync.sync_weights()
        self.assertEqual(e.exception.peer, "target:0.1")
        self.assertRegex(str(e.exception), r"engine actor 1 \(target:0.1\): the actor is gone")
        self.assertTrue(sync.is_stale())
        with self.assertRaisesRegex(refit.PeerLostError, "engine actor 1"):  # still nobody in its place
            sync.sync_weights()
        self.engines.replace(1, self.actors(Rollout, 2)[1])
        report = sync.sync_weights()
        self.assertEqual(report.version.step, 2)
        self.check(report, 2)
        self.assertFalse(sync.is_stale())

    def test_an_actor_that_ray_restarts_joins_by_itself(self):
        sync = self.job(max_restarts=1, max_task_retries=0)
        self.train(sync, 1)
        sync.sync_weights()
        before = self.engines.call("pid")
        ray.kill(self.engines.actors[0], no_restart=False)
        self.train(sync, 2)
        try:
            report = sync.sync_weights()
            self.fail(f"a sync without one of its engines: {report.outcome}")
        except refit.Error as e:
            self.assertIn("target:0.0", str(e))
        deadline = time.monotonic() + 30
        while True:  # until Ray has it again
            try:
                report = sync.sync_weights()
                break
            except refit.PeerLostError as e:
                self.assertIn("engine actor 0", str(e))
                self.assertLess(time.monotonic(), deadline)
        self.assertNotEqual(self.engines.call("pid")[0], before[0])
        self.check(report, 2)

    def test_a_dead_trainer_actor_is_named(self):
        sync = self.job()
        self.train(sync, 1)
        sync.sync_weights()
        ray.kill(self.trainers.actors[0])
        sync.mark_stale()
        with self.assertRaisesRegex(refit.PeerLostError, r"trainer actor 0 \(source:0.0\)"):
            sync.sync_weights()
        self.trainers.replace(0, self.actors(Trainer, 1)[0])
        joined = self.trainers.joined(10)
        self.assertEqual((joined[0][0], joined[1]), ("", []))
        with self.assertRaises(refit.Error):  # it joins; nothing is published there yet
            sync.sync_weights()
        self.train(sync, 3)
        self.check(sync.sync_weights(), 3)

    def test_every_future_counts(self):
        group = WorkerGroup(self.actors(Rollout, 2), "target", replicas=2)
        with self.assertRaises(refit.MismatchError) as e:
            group.call("raises")
        self.assertEqual((e.exception.tensor, e.exception.peer), ("w", "engine actor 0 (target:0.0)"))
        ray.kill(group.actors[1])
        with self.assertRaisesRegex(refit.PeerLostError, r"actor 1 \(target:1.0\)"):
            group.call("pid")
        with self.assertRaisesRegex(refit.PeerLostError, "actor 1"):  # a death explains more than what else went wrong
            group.call("raises")
        slow = WorkerGroup(self.actors(Trainer, 2), "source")
        slow.call("set_broken", False)  # both are up
        began = time.monotonic()
        with self.assertRaisesRegex(refit.DeadlineError, r"trainer actor 1 \(source:0.1\)"):
            slow.each("sleep", [(0,), (60,)], timeout_s=8)
        self.assertLess(time.monotonic() - began, 40)
        with self.assertRaises(refit.InvalidError):
            WorkerGroup(group.actors, "target", replicas=3)

    def test_a_preset_over_worker_groups(self):
        """The way of a loop: a policy of Ray workers whose futures count, an engine that is an actor, a configuration."""
        policy = Policy(self.actors(Trainer, 2), "source")
        actor = ray.remote(num_cpus=0.1)(Generation).remote()
        self.addCleanup(ray.kill, actor)

        class Sides:
            refit_engines = [ActorEngine(actor, "generation actor 0")]

            def prepare_for_generation(self, tags=None):
                return True

        config = {"policy": {"generation": {"backend": "vllm", "colocated": {"enabled": True}, "refit_transport": None}}}
        sync = refit.create_weight_synchronizer(config, policy, Sides(), coordinator_options={**FAST, "gate_timeout_s": 10})
        self.addCleanup(sync.shutdown)
        sync.init_communicator()
        for r, a in enumerate(policy.actors):
            ray.get(a.train.remote(1))
        sync.mark_stale()
        metrics = sync.sync_weights()
        self.assertEqual(metrics["outcome"], "committed")
        calls, held = ray.get(actor.seen.remote(metrics["version"]))
        self.assertEqual(calls, ["init", "pause", "reset_caches", "start", "update", "finish", "label", "resume"])
        self.assertEqual(held, [10] * 3 + [11] * 3)
        ray.get(policy.actors[1].set_broken.remote(True))  # the last worker says False: the others do not hide it
        sync.mark_stale()
        with self.assertRaisesRegex(refit.PeerLostError, "worker 1"):
            sync.sync_weights()
        ray.get(policy.actors[1].set_broken.remote(False))
        policy.call("train", 2)
        self.assertEqual(sync.sync_weights()["outcome"], "committed")
        ray.kill(policy.actors[1])
        sync.mark_stale()
        with self.assertRaisesRegex(refit.PeerLostError, "worker 1.*|.*actor is gone"):
            sync.sync_weights()

    def test_places_in_ray(self):
        """A raylet's variables of Slurm and MPI are not an actor's own."""

        class Asks:
            def place(self):
                from refit import launch

                return launch.place()

        os_env = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "3"}
        for extra, want in (({}, ("alone", 0, 1)), ({"RANK": "3", "WORLD_SIZE": "4"}, ("env", 3, 4))):
            actor = ray.remote(num_cpus=0.1, runtime_env={"env_vars": {**os_env, **extra}})(Asks).remote()
            at = ray.get(actor.place.remote(), timeout=60)
            self.assertEqual((at.launcher, at.rank, at.world), want)
            self.assertEqual(bool(at.job), bool(extra))
            ray.kill(actor)


class Shares(unittest.TestCase):
    def config(self, colocated, selector=None):
        return {"policy": {"generation": {"backend": "vllm", "colocated": {"enabled": colocated}, "refit_transport": selector}}}

    def test_gpus_of_a_generation_worker(self):
        for groups, want in ((1, 0.2), (4, 0.2), (5, 0.2), (8, 0.125)):
            self.assertEqual(refit.ray.generation_resources(self.config(True), groups), want)
        self.assertEqual(refit.ray.generation_resources(self.config(False), 3), 1.0)
        with self.assertRaisesRegex(refit.InvalidError, "max_colocated_worker_groups"):
            refit.ray.generation_resources(self.config(True))


if __name__ == "__main__":
    unittest.main()
