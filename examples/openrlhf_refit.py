"""OpenRLHF over Refit, as a recipe: syntax checked and written against OpenRLHF 0.11.2, not run (it needs GPUs and DeepSpeed,
and this build moves host memory only).

Both ends of OpenRLHF's weight sync are replaced: `broadcast_to_vllm` of the trainer publishes, and the vLLM actors take versions
through the plugin. Import this module in the driver and call install() before OpenRLHF makes its actors.
"""

import ray
from openrlhf.trainer.ray import ppo_actor, vllm_engine

import refit
import refit.ray

ADDRESS = "refit-address"  # the name under which the driver puts the coordinator's address


class Rollout(vllm_engine.RolloutRayActor.__ray_metadata__.modified_class):
    """OpenRLHF's actor with the engine's side of refit.ray.ActorEngine; its engine is an AsyncLLM."""

    async def __init__(self, *args, **kwargs):
        kwargs["weight_transfer_config"] = {"backend": "refit"}
        await super().__init__(*args, **kwargs)

    async def refit_engine(self, method, *arguments):
        from vllm.distributed.weight_transfer.base import WeightTransferInitRequest, WeightTransferUpdateRequest

        llm = self.llm
        if method == "init":
            await llm.init_weight_transfer_engine(WeightTransferInitRequest(init_info=arguments[0]))
        elif method == "pause":
            await llm.pause_generation(mode=arguments[0])
        elif method == "reset_caches":
            if not await llm.reset_prefix_cache():
                raise refit.Error("the prefix cache was not reset", stage="reset_prefix_cache")
        elif method == "start":
            await llm.start_weight_update()
        elif method == "update":
            await llm.update_weights(WeightTransferUpdateRequest(update_info=arguments[0]))
        elif method == "finish":
            await llm.finish_weight_update()
        elif method == "label":
            await llm.update_weight_version(arguments[0])
        elif method == "resume":
            await llm.resume_generation()
        else:
            raise refit.InvalidError(f"'{method}' is no method of an engine")


def publish(trainer):
    """In place of broadcast_to_vllm(), on every trainer rank. ZeRO-1 and ZeRO-2 keep parameters whole; ZeRO-3 is not described
    by from_torch()."""
    if trainer.strategy.args.ds.zero_stage == 3:
        raise refit.UnsupportedError("ZeRO-3's flat partitions: use zero_stage 2 or less")
    publisher = getattr(trainer, "refit_publisher", None)
    if publisher is None:
        address = ray.get(ray.get_actor(ADDRESS).get.remote(), timeout=60)
        publisher = trainer.refit_publisher = refit.Publisher.from_torch(address, trainer.actor.model.module)
        trainer.refit_step = 0
    trainer.refit_step += 1
    publisher.publish(trainer.refit_step)


def install():
    vllm_engine.RolloutRayActor = ray.remote(Rollout)
    ppo_actor.ActorPPOTrainer._init_vllm_sync_group = lambda self, backend: None
    ppo_actor.ActorPPOTrainer.broadcast_to_vllm = publish


@ray.remote(num_cpus=0)
class Address:
    def __init__(self, address):
        self.address = address

    def get(self):
        return self.address


def synchronizer(trainer_ranks, engines, tensor_parallel_size):
    """In the driver, once the vLLM actors are there. After each broadcast_to_vllm(): mark_stale(), sync_weights()."""
    from refit.vllm import VllmWeightSynchronizer

    coordinator = refit.Coordinator(trainer_ranks, len(engines), tensor_parallel_size)
    keeper = Address.options(name=ADDRESS).remote(coordinator.address)
    sync = VllmWeightSynchronizer(coordinator, [refit.ray.ActorEngine(e, f"vLLM actor {i}") for i, e in enumerate(engines)])
    sync.keeper = keeper  # alive as long as the synchronizer
    return sync
