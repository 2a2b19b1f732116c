"""SGLang as a rollout engine of Refit.

Installed, not patched. Either the server's own workers receive: name Refit's loader when the server starts, ::

    python -m sglang.launch_server --model-path MODEL --custom-weight-loader refit.sglang.load

and no weight travels through HTTP or a pickle; or a stock server takes what a receiver beside the driver got, through its
own endpoints for tensors, for a process group or for a directory.

On the driver's side, ``SGLangWeightSynchronizer`` runs the rounds and steers the engines: over HTTP (``HttpEngine``) or in
process (``LocalEngine``).
"""

from __future__ import annotations

from typing import Any

from .server import LOADER, Engine, EngineError, HttpEngine, LocalEngine, SGLangWeightSynchronizer

__all__ = ["LOADER", "Engine", "EngineError", "HttpEngine", "LocalEngine", "SGLangWeightSynchronizer", "load"]


def load(model: Any, named_tensors: Any) -> None:
    """Called by SGLang in each of its workers (``load_format="refit.sglang.load"``). What comes is no weight but an order of
    the driver; see ``refit.sglang.loader``."""
    from . import loader

    loader.obey(model, named_tensors)
