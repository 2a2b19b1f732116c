"""create_weight_synchronizer: what each configuration becomes, and the lifecycle of each preset round real rounds. Policies and
generations are stand-ins with the methods that NeMo-RL publishes (docs/choose-a-transport.md, "Order of a sync")."""

import asyncio
import concurrent.futures
import contextlib
import gc
import os
import pathlib
import tempfile
import threading
import time
import unittest
import weakref
from unittest import mock

import numpy as np
import refit
import refit.trainers.megatron
import refit.trainers.torch
from refit import synchronizers, trainers
from refit.checkpoint_engine import RefitCheckpointEngine
from refit.driver import EngineWeightSynchronizer
from test_vllm_server import Steered

CASES = pathlib.Path(__file__).parents[2] / "cases/config"
OPTIONS = {"stall_timeout_s": 2, "gate_timeout_s": 1, "total_timeout_s": 10, "join_timeout_s": 10}
# Row -> preset and mover, for weights in host memory and engines of vLLM or SGLang. Every other row waits.
RUNS = {
    "ipc": ("IPCWeightSynchronizer", "shm"),
    "http": ("HTTPWeightSynchronizer", "shm"),
    "collective": ("CollectiveWeightSynchronizer", "tcp"),
    "collective-reload": ("CollectiveWeightSynchronizer", "tcp"),
    "sglang-group": ("SGLangCollectiveWeightSynchronizer", "tcp"),
    "zmq-sparse": ("SparseWeightSynchronizer", "zmq_sparse"),
}


class Sides:
    """A policy and a generation in one: what is called, in order. `answers` maps a call to what it returns or raises."""

    world_size = 1

    def __init__(self, log):
        self.log, self.answers = log, {}

    def _said(self, call):
        self.log.append(call)
        answer = self.answers.get(call)
        if isinstance(answer, BaseException):
            raise answer
        return answer() if callable(answer) else answer

    def offload_before_refit(self):
        return self._said("offload_before")

    def offload_after_refit(self):
        return self._said("offload_after")

    def prepare_for_generation(self, tags=None):
        return self._said("prepare " + ",".join(tags))

    def invalidate_kv_cache(self):
        return self._said("invalidate")


class Generation(Sides):
    def __init__(self, log, engines):
        super().__init__(log)
        self.refit_engines = engines


def yaml(colocated, backend="vllm", selector=None, refit_keys=None, **policy):
    return {"policy": {"generation": {"backend": backend, "colocated": {"enabled": colocated}, "refit_transport": selector} | policy.pop("generation", {})} | policy, "refit": refit_keys or {}}


class Choice(unittest.TestCase):
    def test_every_configuration_of_the_menu(self):
        for path in sorted(CASES.glob("*.yaml")):
            with self.subTest(path.name):
                decision = refit.Decision(path)
                facts = decision.facts
                if facts["row"] in RUNS and facts["backend"] != "megatron":
                    decision.check()
                    self.assertEqual((facts["synchronizer"], facts["mover"]), RUNS[facts["row"]])
                else:
                    with self.assertRaises(refit.UnsupportedError) as caught:
                        decision.check()
                    self.assertIn("waiting: ", str(caught.exception))

    def made(self, config, engines=1, **named):
        log = []
        made = refit.create_weight_synchronizer(config, Sides(log), Generation(log, [Steered() for _ in range(engines)]), coordinator_options=OPTIONS, **named)
        self.addCleanup(made.shutdown)
        return made

    def test_both_forms_of_the_call(self):
        self.assertIsInstance(self.made(yaml(True)), synchronizers.IPCWeightSynchronizer)
        self.assertIsInstance(self.made(yaml(False), train_cluster=2, inference_world_size=1), synchronizers.CollectiveWeightSynchronizer)
        sparse = yaml(False, selector="vllm_zmq_sparse", megatron_cfg={"enabled": True})
        self.assertIsInstance(self.made(sparse, train_cluster=1, inference_cluster=1), synchronizers.SparseWeightSynchronizer)
        log = []
        by_words = refit.create_weight_synchronizer(Sides(log), Generation(log, [Steered()]), "vllm", True, refit_buffer_size_gb=0.5, coordinator_options=OPTIONS)
        self.addCleanup(by_words.shutdown)
        self.assertIsInstance(by_words, synchronizers.IPCWeightSynchronizer)

    def test_nixl_between_host_memories(self):
        config = yaml(False, selector="nixl")
        config["policy"]["generation"]["refit_cfg"] = {"nixl": {"device": "cpu", "backend_init_params": {"num_workers": "1"}}}
        made = self.made(config, train_cluster=1, inference_world_size=1)
        self.assertIsInstance(made, synchronizers.CheckpointEngineWeightSynchronizer)
        self.assertEqual(made.decision.facts["memory"], "host")
        self.assertEqual(made.decision.facts["options"]["nixl_params"], [["num_workers", "1"]])

    def test_nixl_takes_its_share_of_memory_and_no_more(self):
        options = {"staging_bytes": 256 << 20, "bucket_bytes": 32 << 20}
        synchronizers._fit_nixl(options, 0.05, 64 << 30)
        self.assertEqual(options, {"staging_bytes": 256 << 20, "bucket_bytes": 32 << 20})
        synchronizers._fit_nixl(options, 0.05, 1 << 30)
        self.assertEqual(options, {"staging_bytes": int(0.05 * (1 << 30)), "bucket_bytes": int(0.05 * (1 << 30)) // 2})
        with self.assertRaises(refit.InvalidError) as caught:
            synchronizers._fit_nixl(options, 0.001, 1 << 30)
        self.assertIn("update_weights_bucket_memory_ratio", str(caught.exception))

    def refused(self, kind, part, config, **named):
        with self.assertRaises(kind) as caught:
            self.made(config, **named)
        self.assertIn(part, str(caught.exception))

    def test_refusals_say_why(self):
        self.refused(refit.InvalidError, "selector.colocated", yaml(True, selector="nixl"))
        self.refused(refit.InvalidError, "ppo.colocated", yaml(False), train_cluster=1, inference_world_size=1, algorithm="ppo")
        self.refused(refit.UnsupportedError, "device: cpu is", yaml(False, selector="nixl"), train_cluster=1, inference_world_size=1)
        self.refused(refit.UnsupportedError, "waiting: the engine adapter of Megatron", yaml(False, backend="megatron"), train_cluster=1, inference_world_size=1)
        self.refused(refit.UnsupportedError, "refit.serve_lagging", yaml(True, refit_keys={"serve_lagging": True}))
        self.refused(refit.InvalidError, "refit.staging_bytes", yaml(True, refit_keys={"stagin_bytes": "1GiB"}))
        self.refused(refit.InvalidError, "needs train_cluster", yaml(False), inference_world_size=1)
        self.refused(refit.InvalidError, "needs train_cluster", yaml(False), train_cluster=1)
        self.refused(refit.InvalidError, "share evenly", yaml(False), train_cluster=1, inference_world_size=1, engines=2)
        self.refused(refit.UnsupportedError, "compare_only", yaml(True, refit_keys={"compare_only": True}))

    def test_an_encoding_that_does_not_exist(self):
        with self.assertRaises(refit.InvalidError) as caught:
            refit.Coordinator(1, encoding="zip")
        self.assertIn("'zip'", str(caught.exception))

    def test_phases_that_nobody_offers(self):
        with self.assertRaises(refit.InvalidError) as caught:
            refit.create_weight_synchronizer(yaml(True), object(), [Steered()], train_cluster=1)
        self.assertIn("policy.offload_before_refit() for offload_before", str(caught.exception))
        with self.assertRaises(refit.InvalidError) as caught:
            refit.create_weight_synchronizer(yaml(True), Sides([]), object())
        self.assertIn("offers no engines", str(caught.exception))


class Lifecycle(unittest.TestCase):
    def job(self, config, **named):
        self.engine = Steered()
        self.log = self.engine.log = self.engine.hooks.log = []
        self.policy, self.generation = Sides(self.log), Generation(self.log, [self.engine])
        sync = refit.create_weight_synchronizer(config, self.policy, self.generation, coordinator_options=OPTIONS, **named)
        self.addCleanup(sync.shutdown)
        self.weights = np.arange(8, dtype=np.float32)
        joined = threading.Thread(target=sync.init_communicator)
        joined.start()
        self.publisher = refit.Publisher.from_arrays(sync.coordinator.address, {"w": self.weights})
        self.addCleanup(self.publisher.close)
        joined.join(20)
        self.addCleanup(lambda: self.engine.receiver.close())
        self.publisher.publish(1)
        return sync

    TRANSFER = ["pause wait", "reset", "start", "update", "finish", "installed", "label", "resume"]

    def calls(self):
        """The log without version numbers, emptied."""
        found = [c.split()[0] if c.split()[0] in ("installed", "label") else c for c in self.log]
        self.log.clear()
        return found

    def test_colocated(self):
        sync = self.job(yaml(True))
        metrics = sync.sync_weights()
        self.assertEqual(self.calls(), ["offload_before", "prepare weights", *self.TRANSFER, "invalidate", "offload_after", "prepare kv_cache"])
        self.assertEqual((metrics["outcome"], metrics["kv_scales_ignored"]), ("committed", 0))
        self.assertEqual(list(metrics["phases"]), ["judge_kv_scales", "offload_before", "prepare_weights", "transfer", "check_workers", "invalidate_caches", "offload_after", "prepare_kv_cache"])
        self.assertFalse(sync.is_stale)
        self.assertFalse(sync.is_stale())
        sync.mark_stale()
        self.assertTrue(sync.is_stale)

        # Whatever fails: the clean-up half runs, the first error is the one that is raised, the sync stays stale, and the
        # next one repairs.
        for step, (call, answer, before) in enumerate([
            ("offload_before", RuntimeError("no room"), ["offload_before"]),
            ("offload_before", [None, False], ["offload_before"]),
            ("prepare weights", lambda: [failed_future("worker 1 died"), None], ["offload_before", "prepare weights"]),
            ("invalidate", False, ["offload_before", "prepare weights", *self.TRANSFER, "invalidate"]),
            ("prepare kv_cache", RuntimeError("still asleep"), ["offload_before", "prepare weights", *self.TRANSFER, "invalidate"]),
        ], 2):
            # Weights that slept may be gone: the cache comes back to an engine that is paused, unless it has this version.
            held = [] if "installed" in before else ["pause wait"]
            with self.subTest(call=call, answer=answer):
                self.publisher.publish(step)
                self.policy.answers[call] = self.generation.answers[call] = answer
                with self.assertRaises((RuntimeError, refit.Error)) as caught:
                    sync.sync_weights()
                if isinstance(answer, RuntimeError):
                    self.assertIs(caught.exception, answer)
                self.assertEqual(self.calls(), [*before, "offload_after", *held, "prepare kv_cache"])
                self.assertTrue(sync.is_stale)
                self.policy.answers.clear()
                self.generation.answers.clear()
                self.publisher.publish(step)
                sync.sync_weights()
                self.assertEqual("pause wait" in self.calls(), not held, "one that was held is not paused again")
                self.assertFalse(sync.is_stale)
        self.generation.answers["prepare weights"] = first = RuntimeError("first")
        self.generation.answers["prepare kv_cache"] = RuntimeError("second")
        with self.assertRaises(RuntimeError) as caught:
            sync.sync_weights()
        self.assertIs(caught.exception, first)
        self.generation.answers.clear()
        self.publisher.publish(20)
        sync.sync_weights()
        self.assertFalse(sync.is_stale)

    def test_kv_scales_are_judged_before_anything_changes(self):
        sync = self.job(yaml(True))
        with self.assertRaises(refit.UnsupportedError) as caught:
            sync.sync_weights(kv_scales={"model.layers.0.self_attn.k_scale": 1.0})
        self.assertIn("kv_scales", str(caught.exception))
        self.assertEqual(self.calls(), [])
        sync.sync_weights(kv_scales={})
        self.assertIn("installed", self.calls())

    def test_kv_scales_that_may_be_ignored_are_counted(self):
        sync = self.job(yaml(True, refit_keys={"kv_scales_unsupported": "ignore"}))
        self.assertEqual(sync.sync_weights(kv_scales={"a": 1, "b": 2})["kv_scales_ignored"], 2)

    def test_comparing_only_changes_no_phase_of_anybody(self):
        sync = self.job(yaml(True, backend="sglang", refit_keys={"compare_only": True}))
        sync.sync_weights()
        self.assertEqual(self.calls(), ["pause in_place", "start", "update", "finish", "installed", "resume"])
        self.engine.fail = "update"
        with self.assertRaises(refit.Error):
            sync.sync_weights()
        self.assertEqual(self.calls()[-1], "resume", "another synchronizer's engine must generate on")

    def test_comparing_opens_no_gate_that_another_synchronizer_shut(self):
        sync = self.job(yaml(True, backend="sglang", refit_keys={"compare_only": True}))
        with refit.Coordinator(1, **OPTIONS) as other:
            owner = EngineWeightSynchronizer(other, [self.engine])
            self.engine.fail = "pause wait"
            with self.assertRaises(refit.Error):
                owner.hold(0)
            self.engine.fail = None
            self.log.clear()
            sync.sync_weights()
            self.assertEqual(self.calls(), ["start", "update", "finish", "installed"])
            self.assertTrue(owner.is_stale())
            owner._opened(0)
            sync.sync_weights()
            self.assertEqual(self.calls()[-1], "resume")

    def test_own_devices_no_phase_of_anybody_changes(self):
        sync = self.job(yaml(False), train_cluster=1, inference_world_size=1)
        sync.sync_weights()
        self.assertEqual(self.calls(), [*self.TRANSFER, "invalidate"])

    def test_own_devices_with_offloading(self):
        sync = self.job(yaml(False, offload_policy_before_refit=True, megatron_cfg={"enabled": True}), train_cluster=1, inference_world_size=1)
        self.engine.fail = "update"
        with self.assertRaises(refit.Error):
            sync.sync_weights()
        self.assertEqual(self.calls(), ["offload_before", "pause wait", "reset", "start", "update", "offload_after"])

    def test_a_phase_that_hangs_meets_its_deadline(self):
        sync = self.job(yaml(True))
        sync.phase_timeout_s = 0.2
        self.policy.answers["offload_before"] = lambda: time.sleep(2)
        began = time.monotonic()
        with self.assertRaises(refit.DeadlineError) as caught:
            sync.sync_weights()
        self.assertLess(time.monotonic() - began, 1.5)
        self.assertIn("policy.offload_before_refit", str(caught.exception))
        self.policy.answers["offload_before"] = lambda: [concurrent.futures.Future()]
        with self.assertRaises(refit.DeadlineError) as caught:
            sync.sync_weights()
        self.assertEqual(caught.exception.peer, "worker 0")

    def test_a_timer_is_entered_for_each_phase(self):
        class Timer:
            names = []

            @contextlib.contextmanager
            def time(self, name):
                self.names.append(name)
                yield

        sync = self.job(yaml(True))
        asyncio.run(sync.sync_weights_async(timer=Timer(), step=1))
        self.assertIn("refit/transfer", Timer.names)

    def sglang(self, saver, fail=None, **answers):
        """Colocated SGLang with engines that take memory back, and a generation object without phases of its own."""
        log = []
        server = Steered()
        server.log = server.hooks.log = log
        server.fail = fail
        server.resume_memory = lambda tags, timeout_s: log.append(f"resume {tags}")
        config = yaml(True, backend="sglang", generation={"sglang_cfg": {"enable_memory_saver": saver}})
        policy = Sides(log)
        policy.answers = answers
        made = refit.create_weight_synchronizer(config, policy, [server], coordinator_options=OPTIONS | {"join_timeout_s": 0.3, "total_timeout_s": 1})
        self.addCleanup(made.shutdown)
        self.assertIsInstance(made, synchronizers.HTTPWeightSynchronizer)
        with self.assertRaises((refit.Error, RuntimeError)):
            made.sync_weights()  # nobody joined: the transfer fails, what stands round it is the same
        return log

    def test_the_memory_saver_wakes_in_two_phases(self):
        self.assertEqual(self.sglang(False), ["offload_before", "offload_after"])
        # Paused before its weights come back, which are empty: the cache, which comes back whatever happens, opens no gate.
        self.assertEqual(self.sglang(True), ["offload_before", "pause abort", "resume ['weights']", "offload_after", "resume ['kv_cache']"])
        self.assertEqual(self.sglang(True, offload_before=RuntimeError("no room")), ["offload_before", "offload_after", "pause abort", "resume ['kv_cache']"])
        self.assertEqual(self.sglang(True, fail="pause abort"), ["offload_before", "pause abort", "offload_after", "pause abort"], "it stays asleep")

    def test_a_policy_that_joins_is_told_where(self):
        engine = Steered()
        log = engine.log
        policy, arrays = Sides(log), {"w": np.arange(8, dtype=np.float32)}

        def join(address):
            self.publisher = refit.Publisher.from_arrays(address, arrays)

        policy.join_refit = join
        sync = refit.create_weight_synchronizer(yaml(True), policy, Generation(log, [engine]), coordinator_options=OPTIONS)
        self.addCleanup(sync.shutdown)
        sync.init_communicator()
        self.addCleanup(self.publisher.close)
        self.addCleanup(lambda: engine.receiver.close())
        self.publisher.publish(1)
        sync.sync_weights()
        np.testing.assert_array_equal(engine.memory, arrays["w"])


def failed_future(why):
    future = concurrent.futures.Future()
    future.set_exception(RuntimeError(why))
    return future


class Seam(unittest.TestCase):
    def serve(self, shard):
        calls = []

        class Mine(refit.Instance):
            def pause(self, timeout_s):
                calls.append("pause")

            def resume(self):
                calls.append("resume")

            def invalidate(self, policy):
                calls.append(policy)

        mine = Mine()
        given = np.arange(4, dtype=np.float32)
        with refit.Coordinator(1, 1, 1, **OPTIONS) as coordinator:
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                joined = pool.submit(refit.serve, coordinator.address, mine, shard)
                publisher = refit.Publisher.from_arrays(coordinator.address, {"w": given})
                receiver = joined.result(20)
            with publisher, receiver:
                receiver.start()
                publisher.publish(1)
                coordinator.init_communicator()
                report = coordinator.sync_weights()
        gone = weakref.ref(receiver)
        del receiver, joined
        gc.collect()
        self.assertIsNone(gone(), "its hooks hold it")
        self.assertEqual(mine.version.number, report.version.number)
        self.assertEqual([c for c in calls if c != "reset"], ["pause", "resume"])
        self.assertIn("reset", calls)
        return given

    def test_memory_of_ones_own_or_a_loader(self):
        class InPlace(refit.Shard):
            layout = refit.Layout.from_arrays({"w": np.zeros(4, np.float32)})
            memory = np.zeros(4, np.float32)

            def regions(self):
                return {"w": self.memory}

        class Loads(refit.Shard):
            layout = InPlace.layout
            memory = None

            def load(self, tensors, version):
                self.memory = tensors[0].numpy().copy()

        for kind in (InPlace, Loads):
            shard = kind()
            np.testing.assert_array_equal(self.serve(shard), shard.memory)

    def test_what_must_be_there(self):
        with self.assertRaises(TypeError):
            refit.Instance()
        with self.assertRaises(TypeError):
            refit.Shard()


class Ranks(unittest.TestCase):
    """Trainer ranks agree collectively: one that breaks, however it does, says so where the others wait for it."""

    def told(self, module, agree, *broken):
        """What the ranks were told, call by call, until a function broke on this one."""
        said = []

        def gathered(mine, group):
            said.append(mine[0])
            return [mine]

        with contextlib.ExitStack() as stack:
            for where, name, value in [(trainers.torch, "gathered", gathered), (trainers.torch, "own_rank", lambda group: 3), *((module, *b) for b in broken)]:
                stack.enter_context(mock.patch.object(where, name, value))
            with self.assertRaises(refit.Error) as caught:
                agree()
        self.assertIn("rank 3", caught.exception.peer)
        self.assertIsInstance(caught.exception.__cause__, AttributeError)
        self.assertIn("AttributeError: no such field", said[-1])
        return said

    def test_any_exception_is_told(self):
        broken = mock.Mock(side_effect=AttributeError("no such field"))
        torch, megatron = trainers.torch, trainers.megatron
        self.assertEqual(len(self.told(torch, lambda: torch.agree({}, None), ("describe", broken))), 1)
        agree = lambda: megatron.agree([], "{}", None)  # noqa: E731
        self.assertEqual(len(self.told(megatron, agree, ("place", broken))), 1)
        here = megatron.Place(1, 1, 1, 1, 1, 1, 1, 0, 8, 1, False, {})
        self.assertEqual(len(self.told(megatron, agree, ("place", lambda model: here), ("compare", broken))), 2)

    def test_another_rank_that_broke(self):
        with self.assertRaises(refit.MismatchError) as caught:
            trainers.rules.together([("", None), ("internal: AttributeError", None)], None)
        self.assertEqual(caught.exception.peer, "source rank 1")


class CheckpointEngines(unittest.TestCase):
    """The interfaces that NeMo-RL and verl publish, driven as their managers do."""

    def ends(self, trainers=2, rollouts=2):
        made = [RefitCheckpointEngine(64, array="numpy", timeout_s=20, coordinator_options={"stall_timeout_s": 2, "gate_timeout_s": 1}) for _ in range(trainers + rollouts)]
        for end in made:
            self.addCleanup(end.close)
        return made[:trainers], made[trainers:]

    def step(self, trainers, rollouts, value, receive, names=("a", "b", "c")):
        drained = []

        def weights(rank):
            for name in names:
                yield name, np.full((2, 5), value, np.float32)
            drained.append(rank)

        async def all_of_it():
            sends = [t.send_weights(weights(r)) for r, t in enumerate(trainers)]
            return (await asyncio.gather(*sends, *[receive(r) for r in rollouts]))[len(trainers):]

        got = asyncio.run(all_of_it())
        self.assertEqual(sorted(drained), list(range(len(trainers))))
        for end in trainers + rollouts:
            end.finalize()
        for tensors in got:
            self.assertEqual(set(tensors), {"a", "b", "c"})
            self.assertTrue(all((t == value).all() for t in tensors.values()))

    def test_nemo_rl(self):
        trainers, rollouts = self.ends()
        metadata = [end.prepare() for end in trainers + rollouts]
        sizes = dict(train_world_size=2, rollout_world_size=2, metadata=metadata)
        for r, end in enumerate(trainers):
            end.init_policy_process_group(worker_rank=r, **sizes)
        for r, end in enumerate(rollouts):
            end.init_rollout_process_group(rollout_rank=r, **sizes)

        async def receive(end):
            batches = [[(n, t.copy()) for n, t in batch] async for batch in end.receive_weight_batches()]
            self.assertEqual([len(b) for b in batches], [1, 1, 1])  # 40 bytes each, 64 a batch
            return dict(pair for batch in batches for pair in batch)

        self.step(trainers, rollouts, 1, receive)
        self.step(trainers, rollouts, 2, receive)
        with self.assertRaises(refit.InvalidError) as caught:
            asyncio.run(trainers[0].send_weights(iter([("other", np.zeros(3, np.float32))])))
        self.assertEqual(caught.exception.tensor, "other")

    def test_verl(self):
        trainers, rollouts = self.ends(1, 2)

        async def receive(end):
            return {n: t.copy() async for n, t in end.receive_weights()}

        for value in (3, 4):  # verl makes its groups anew for each update
            metadata = [end.prepare() for end in trainers + rollouts]
            for group, arguments in zip((trainers, rollouts), RefitCheckpointEngine.build_topology(1, 2, metadata)):
                for r, end in enumerate(group):
                    end.init_process_group(**{k: v[r] for k, v in arguments.items()})
            self.step(trainers, rollouts, value, receive)

    def test_nothing_is_installed_under_a_reader(self):
        trainers, rollouts = self.ends(1, 1)
        metadata = [trainers[0].prepare()]
        trainers[0].init_policy_process_group(worker_rank=0, train_world_size=1, rollout_world_size=1, metadata=metadata)
        rollouts[0].init_rollout_process_group(rollout_rank=0, train_world_size=1, rollout_world_size=1, metadata=metadata)

        def weights(value):
            return iter([(name, np.full((2, 5), value, np.float32)) for name in "abc"])

        async def both():
            reading = rollouts[0].receive_weights()
            sent, (_, first) = await asyncio.gather(trainers[0].send_weights(weights(1)), anext(reading))
            with self.assertRaises(refit.Error):
                await trainers[0].send_weights(weights(2))
            rest = [t async for _, t in reading]
            self.assertTrue(all((t == 1).all() for t in [first, *rest]))
            await trainers[0].send_weights(weights(3))
            self.assertTrue(all([(t == 3).all() async for _, t in rollouts[0].receive_weights()]))

        asyncio.run(both())
        rollouts[0]._receiver.check()  # what send_weights told of is told

    def test_misuse(self):
        (trainer,), (rollout,) = self.ends(1, 1)
        with self.assertRaises(refit.InvalidError):
            asyncio.run(trainer.send_weights(iter(())))
        with self.assertRaises(refit.InvalidError):
            rollout.init_rollout_process_group(rollout_rank=0, train_world_size=1, rollout_world_size=1, metadata=["?"])
        rollout.init_rollout_process_group(rollout_rank=0, train_world_size=1, rollout_world_size=1, metadata=[trainer.prepare()])
        rollout._timeout_s = 0.1

        async def first():
            async for _ in rollout.receive_weights():
                pass

        with self.assertRaises(refit.DeadlineError):
            asyncio.run(first())

    def pair(self):
        (trainer,), (rollout,) = self.ends(1, 1)
        base = tempfile.TemporaryDirectory()
        self.addCleanup(base.cleanup)
        self.base = pathlib.Path(base.name)
        trainer._own = str(self.base / "refit" / "checkpoint")
        metadata = [trainer.prepare()]
        trainer.init_policy_process_group(worker_rank=0, train_world_size=1, rollout_world_size=1, metadata=metadata)
        rollout.init_rollout_process_group(rollout_rank=0, train_world_size=1, rollout_world_size=1, metadata=metadata)
        return trainer, rollout

    def weights(self, value, dtype=np.float32):
        return iter([(name, np.full((2, 5), value, dtype)) for name in "abc"])

    async def refit(self, trainer, rollout, value):
        async def receive():
            return [t.copy() async for _, t in rollout.receive_weights()]

        _, got = await asyncio.gather(trainer.send_weights(self.weights(value)), receive())
        self.assertTrue(all((t == value).all() for t in got))

    def test_a_reading_that_broke_is_not_taken_for_the_next_version(self):
        trainer, rollout = self.pair()
        asyncio.run(self.refit(trainer, rollout, 1))

        async def breaks():
            async def receive():
                async for _ in rollout.receive_weights():
                    raise KeyError("no such parameter")

            await asyncio.gather(trainer.send_weights(self.weights(2)), receive(), return_exceptions=True)

        asyncio.run(breaks())
        asyncio.run(self.refit(trainer, rollout, 3))

    def test_steps_are_the_loops(self):
        """verl names its step on both ends; weights may come from an asynchronous generator."""
        trainer, rollout = self.pair()

        async def each(value):
            for pair in self.weights(value):
                yield pair

        async def refit_at(step):
            async def receive():
                return [t.copy() async for _, t in rollout.receive_weights(global_steps=step)]

            _, got = await asyncio.gather(trainer.send_weights(each(step), global_steps=step), receive())
            self.assertTrue(all((t == step).all() for t in got))
            return rollout._receiver.version.step

        self.assertEqual([asyncio.run(refit_at(step)) for step in (0, 1, 8, 20)], [0, 1, 8, 20])

    def test_where_they_meet_is_private(self):
        trainer, rollout = self.pair()
        rollout._timeout_s = 5
        former = os.umask(0o022)
        try:
            asyncio.run(self.refit(trainer, rollout, 1))
        finally:
            os.umask(former)
        self.assertEqual((self.base / "refit").stat().st_mode & 0o777, 0o700)
        for folder in (self.base / "refit", self.base / "refit" / "checkpoint"):
            other = RefitCheckpointEngine(array="numpy", timeout_s=1)
            self.addCleanup(other.close)
            other.init_rollout_process_group(rollout_rank=0, train_world_size=1, rollout_world_size=1, metadata=[trainer.prepare()])
            folder.chmod(0o750)
            with self.assertRaises(refit.InvalidError) as caught:
                other._joined()
            self.assertEqual(caught.exception.peer, str(folder))
            folder.chmod(0o700)

    def test_another_dtype_is_refused(self):
        trainer, rollout = self.pair()
        asyncio.run(self.refit(trainer, rollout, 1))
        with self.assertRaises(refit.InvalidError) as caught:
            asyncio.run(trainer.send_weights(self.weights(2, np.float64)))
        self.assertEqual(caught.exception.tensor, "a")

    def test_a_first_send_that_failed_begins_anew(self):
        trainer, rollout = self.pair()
        trainer._timeout_s = 0.3
        with self.assertRaises(refit.Error):
            asyncio.run(trainer.send_weights(self.weights(1)))  # nobody receives
        self.assertFalse(pathlib.Path(trainer._own, "card.json").exists())
        self.assertIsNone(trainer._coordinator)
        trainer._timeout_s = 20
        asyncio.run(self.refit(trainer, rollout, 2))

    def test_a_reader_that_is_cancelled_holds_nothing(self):
        trainer, rollout = self.pair()
        asyncio.run(self.refit(trainer, rollout, 1))

        async def cancelled():
            rollout._seen = 0  # as if it were not read yet
            rollout._reading.free.acquire()  # an installation
            reading = asyncio.ensure_future(anext(rollout.receive_weights()))
            await asyncio.sleep(0.1)
            reading.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await reading
            rollout._reading.free.release()
            rollout._seen = 1

        asyncio.run(cancelled())
        asyncio.run(self.refit(trainer, rollout, 2))

    def test_what_was_read_is_what_counts_as_seen(self):
        trainer, rollout = self.pair()
        asyncio.run(self.refit(trainer, rollout, 1))

        async def overtaken():
            await trainer.send_weights(self.weights(2))
            rollout._receiver.wait_version(2, 5)
            wait, newer = rollout._receiver.wait_version, self.weights(3)

            def slow(*arguments, **named):  # between waiting and reading a newer version comes
                found = wait(*arguments, **named)
                asyncio.run(trainer.send_weights(newer))
                return found

            rollout._receiver.wait_version = slow
            self.assertTrue(all([(t == 3).all() async for _, t in rollout.receive_weights()]))

        asyncio.run(overtaken())
        self.assertEqual(rollout._seen, rollout._receiver.version.number)


if __name__ == "__main__":
    unittest.main()
