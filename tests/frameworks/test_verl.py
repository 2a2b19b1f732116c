"""The real verl: its registry, base class, worker group, worker and manager drive Refit, on Ray actors of this machine's CPUs.
Played are the training engine (which gives tensors) and the rollout's server (which keeps what comes)."""

import inspect
import types
import unittest

import ray
import refit
import torch
import verl
from verl.checkpoint_engine import CheckpointEngine, CheckpointEngineManager, CheckpointEngineRegistry, CheckpointEngineWorker
from verl.single_controller.base import Worker
from verl.single_controller.base.decorator import Dispatch, register
from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
from verl.workers.config import CheckpointEngineConfig, RolloutConfig
from verl.workers.engine_workers import ActorRolloutRefWorker

VERSION = "0.9.1"
NAMES = {"model.embed_tokens.weight": (40, 16), "model.layers.0.mlp.up_proj.weight": (24, 16), "model.norm.weight": (16,)}


def config():
    return CheckpointEngineConfig(
        backend="refit", custom_backend_module="refit.verl", update_weights_bucket_megabytes=1,
        engine_kwargs={"refit": {"timeout_s": 60, "coordinator_options": {"stall_timeout_s": 5, "gate_timeout_s": 5, "total_timeout_s": 30}}},
    )  # fmt: skip


def weights(step):
    generator = torch.Generator().manual_seed(step)
    return {n: torch.randn(s, generator=generator).to(torch.bfloat16) for n, s in NAMES.items()}


class Trainer(ActorRolloutRefWorker):
    """verl's own trainer worker, without a model: its update_weights and execute_checkpoint_engine run as they are."""

    def __init__(self):
        Worker.__init__(self)
        self.config = types.SimpleNamespace(rollout=types.SimpleNamespace(checkpoint_engine=config()))
        self.actor = types.SimpleNamespace(engine=self)
        from verl.utils.import_utils import import_external_libs

        import_external_libs("refit.verl")
        chosen = config()
        self.checkpoint_engine = CheckpointEngineRegistry.new(chosen.backend, is_master=self.rank == 0, bucket_size=chosen.update_weights_bucket_megabytes << 20, **chosen.engine_kwargs["refit"])
        self.step, self.drained = 0, 0

    def get_per_tensor_param(self):
        def each():
            for pair in weights(self.step).items():
                yield pair
            self.drained += 1

        return each(), None

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def train(self, step):
        self.step = step
        return self.drained


class Kept:
    """The rollout's server."""

    replica_rank, is_leader_rank = 0, True

    def __init__(self):
        self.held, self.broken = {}, False

    async def update_weights(self, received, global_steps=None, wire_format="", **_):
        assert wire_format == "named_tensors"
        self.held = {}
        async for name, tensor in received:
            if self.broken:
                raise RuntimeError("the server broke")
            self.held[name] = tensor.clone()
        self.global_steps = global_steps


class Rollout(CheckpointEngineWorker):
    def __init__(self):
        super().__init__(RolloutConfig(name="vllm", checkpoint_engine=config()), None, Kept())

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def holds(self):
        return self.server_adapter.held, self.server_adapter.global_steps

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def set_broken(self, broken):
        self.server_adapter.broken = broken


class Replica:
    """What the manager asks of a rollout replica."""

    def __init__(self, workers):
        self.workers, self.calls = workers, []

    def __getattr__(self, call):
        async def asked(**_):
            self.calls.append(call)

        return asked


def group(kind, count):
    pool = RayResourcePool(process_on_nodes=[count], use_gpu=False, max_colocate_count=1)
    return RayWorkerGroup(resource_pool=pool, ray_cls_with_init=RayClassWithInitArgs(cls=ray.remote(kind)), device_name="cpu")


class Verl(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        ray.init(num_cpus=8, include_dashboard=False, log_to_driver=False, logging_level="error")

    @classmethod
    def tearDownClass(cls):
        ray.shutdown()

    def test_the_interface(self):
        import refit.verl

        self.assertEqual(verl.__version__, VERSION)
        found = CheckpointEngineRegistry.get("refit")
        self.assertIs(found, refit.verl.VerlCheckpointEngine)
        self.assertTrue(issubclass(found, CheckpointEngine))
        self.assertEqual(found.__abstractmethods__, frozenset())
        for method in ("send_weights", "receive_weights"):
            self.assertIn("global_steps", inspect.signature(getattr(found, method)).parameters)

    def test_managers_refits(self):
        trainers, rollouts = group(Trainer, 2), group(Rollout, 2)
        replicas = [Replica([w]) for w in rollouts.workers]
        manager = CheckpointEngineManager(config(), trainers, replicas)
        for step in (3, 4, 9):
            trainers.train(step)
            self.assertEqual(manager.update_weights(global_steps=step), {})
            for held, at in rollouts.holds():
                self.assertEqual(at, step)
                self.assertEqual(held.keys(), NAMES.keys())
                for name, want in weights(step).items():
                    self.assertTrue(torch.equal(held[name], want), (name, step))
        self.assertEqual(trainers.train(10), [3, 3])  # both drained their generators, which may be collective
        self.assertEqual(replicas[0].calls[:4], ["abort_all_requests", "release_kv_cache", "resume_kv_cache", "resume_generation"])
        rollouts.set_broken(True)
        with self.assertRaises(ray.exceptions.RayTaskError):
            manager.update_weights(global_steps=10)
        rollouts.set_broken(False)
        trainers.train(11)
        manager.update_weights(global_steps=11)
        for held, at in rollouts.holds():
            self.assertEqual(at, 11)
            self.assertTrue(all(torch.equal(held[n], want) for n, want in weights(11).items()))


if __name__ == "__main__":
    unittest.main()
