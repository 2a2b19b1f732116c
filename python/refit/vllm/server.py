"""The driver's side: running vLLM engines, steered round each refit."""

from __future__ import annotations

import contextlib
from typing import Any, Iterator

from .._errors import UnsupportedError
from .._http import EngineError, HttpClient
from ..driver import Engine, EngineWeightSynchronizer

__all__ = ["Engine", "EngineError", "HttpEngine", "LocalEngine", "VllmWeightSynchronizer"]


@contextlib.contextmanager
def _open_already() -> Iterator[None]:
    """vLLM keeps a session when finish fails, or its answer was lost."""
    try:
        yield
    except EngineError as e:
        if "already active" not in e.message:
            raise


class HttpEngine(HttpClient):
    """A ``vllm serve`` process with its development endpoints (VLLM_SERVER_DEV_MODE=1), which no API key of vLLM guards:
    keep them on a private network. `headers` are sent with every call, to this origin alone; redirects are errors."""

    def init(self, info: dict[str, Any], timeout_s: float) -> None:
        self.call("POST", "/init_weight_transfer_engine", {"init_info": info}, timeout_s)

    def pause(self, in_flight: str, timeout_s: float) -> None:
        self.call("POST", "/pause", None, timeout_s, {"mode": in_flight, "clear_cache": "true"})
        state = self.call("GET", "/is_paused", None, timeout_s)
        if not isinstance(state, dict) or state.get("is_paused") is not True:
            raise EngineError(f"not paused after /pause: {state}", peer=self.name, stage="/is_paused")

    def reset_caches(self, timeout_s: float) -> None:
        state = self.call("POST", "/reset_prefix_cache", None, timeout_s)
        # Releases before the flag answer with nothing: there a status of 200 is all that can be known.
        if state is not None and not (isinstance(state, dict) and state.get("success") is True):
            raise EngineError(f"the prefix cache was not reset: {state}", peer=self.name, stage="/reset_prefix_cache")

    def start(self, timeout_s: float) -> None:
        with _open_already():
            self.call("POST", "/start_weight_update", {}, timeout_s)

    def update(self, info: dict[str, Any], timeout_s: float) -> None:
        self.call("POST", "/update_weights", {"update_info": info}, timeout_s)

    def finish(self, timeout_s: float) -> None:
        self.call("POST", "/finish_weight_update", {}, timeout_s)

    def label(self, version: str, timeout_s: float) -> None:
        self.call("POST", "/update_weight_version", {"new_version": version}, timeout_s)

    def resume(self, timeout_s: float) -> None:
        self.call("POST", "/resume", None, timeout_s)


class LocalEngine:
    """A vllm.LLM of this process. Its calls have no deadline of their own: a worker that hangs is told from a slow one by
    the deadlines of the round. Sync between calls of generate(), and do not generate after a sync that failed: nothing
    but the caller shuts this gate."""

    def __init__(self, llm: Any, name: str = "llm") -> None:
        self.llm, self.name = llm, name

    def _call(self, method: str, *arguments: Any) -> Any:
        try:
            return getattr(self.llm, method)(*arguments)
        except Exception as e:  # whatever a worker raised comes back as vLLM wraps it
            raise EngineError(f"{type(e).__name__}: {e}", peer=self.name, stage=method) from e

    def init(self, info: dict[str, Any], timeout_s: float) -> None:
        self._call("init_weight_transfer_engine", {"init_info": info})

    def pause(self, in_flight: str, timeout_s: float) -> None:
        """Nothing runs between calls of generate()."""

    def reset_caches(self, timeout_s: float) -> None:
        if not self._call("reset_prefix_cache"):
            raise EngineError("the prefix cache was not reset", peer=self.name, stage="reset_prefix_cache")

    def start(self, timeout_s: float) -> None:
        with _open_already():
            self._call("start_weight_update")

    def update(self, info: dict[str, Any], timeout_s: float) -> None:
        self._call("update_weights", {"update_info": info})

    def finish(self, timeout_s: float) -> None:
        self._call("finish_weight_update")

    def label(self, version: str, timeout_s: float) -> None:
        """vllm.LLM has no label."""

    def resume(self, timeout_s: float) -> None:
        """Nothing was held."""


class VllmWeightSynchronizer(EngineWeightSynchronizer):
    """EngineWeightSynchronizer over vLLM engines with the backend ``refit``. Requests in flight: ``wait`` for them,
    ``abort`` them, or ``keep`` them frozen."""

    IN_FLIGHT = ("wait", "abort", "keep")

    def __init__(self, *arguments: Any, compare_only: bool = False, **options: Any) -> None:
        if compare_only:
            raise UnsupportedError("refit.compare_only: vLLM keeps some weights in its kernels' own form only, which nothing here compares")
        super().__init__(*arguments, **options)
