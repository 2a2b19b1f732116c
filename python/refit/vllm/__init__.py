"""vLLM as a rollout engine of Refit.

Installed, not patched: the package's entry point (group ``vllm.general_plugins``) registers the weight-transfer backend
``refit`` in every process of the engine, which is then chosen by configuration::

    vllm serve MODEL --weight-transfer-config '{"backend": "refit"}'

A receiver in each worker stages the next version while generation goes on. Nothing of the model is touched before the
whole version is staged, verified and decided; it is loaded inside ``finish_weight_update``, while the engine is paused.

On the driver's side, ``VllmWeightSynchronizer`` runs the rounds and steers the engines: over HTTP (``HttpEngine``) or in
process (``LocalEngine``).
"""

from __future__ import annotations

from .server import Engine, EngineError, HttpEngine, LocalEngine, VllmWeightSynchronizer

__all__ = ["BACKEND", "Engine", "EngineError", "HttpEngine", "LocalEngine", "VllmWeightSynchronizer", "register"]

BACKEND = "refit"


def register() -> None:
    """Called by vLLM in each of its processes, sometimes twice in one."""
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    try:
        WeightTransferEngineFactory.register_engine(BACKEND, "refit.vllm.plugin", "RefitWeightTransferEngine")
    except ValueError as e:  # what the factory raises for a name that it has
        if "already registered" not in str(e):
            raise
