"""verl's checkpoint engine ``refit``. Importing this module registers it: in verl's configuration

    actor_rollout_ref.rollout.checkpoint_engine.backend: refit
    actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module: refit.verl

Run with verl 0.9.1. Options of RefitCheckpointEngine come from ``engine_kwargs.refit``.
"""

from __future__ import annotations

from typing import Any

from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry

from .checkpoint_engine import RefitCheckpointEngine


@CheckpointEngineRegistry.register("refit")
class VerlCheckpointEngine(RefitCheckpointEngine, CheckpointEngine):
    """is_master: verl's word for the first trainer worker; who sends follows from build_topology()."""

    def __init__(self, bucket_size: int, is_master: bool = False, **options: Any) -> None:
        super().__init__(bucket_size, **options)
