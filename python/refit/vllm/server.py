"""The driver's side: running engines, steered round each refit."""

from __future__ import annotations

import concurrent.futures
import http.client
import json
import logging
import ssl
import threading
import time
import urllib.parse
from typing import Any, Protocol, Sequence

from .._errors import DeadlineError, Error, InvalidError, PeerLostError
from ..coordinator import Coordinator, SyncReport, WeightSynchronizer

log = logging.getLogger("refit.vllm")

MAX_ANSWER = 1 << 20
_IN_ROUND = ("Receiving", "Voted", "Applying")
_IN_FLIGHT = ("abort", "wait", "keep")


class EngineError(PeerLostError):
    """An engine refused a call, answered nonsense, or not at all. Fields: peer (its URL), stage (the call)."""


class Engine(Protocol):
    """One vLLM instance as the synchronizer steers it. Each call ends by timeout_s, or raises."""

    name: str

    def init(self, info: dict[str, Any], timeout_s: float) -> None: ...

    def pause(self, in_flight: str, timeout_s: float) -> None:
        """Shuts the gate: when it returns no request runs. in_flight: what becomes of running requests."""

    def reset_caches(self, timeout_s: float) -> None:
        """Prefix cache; raises when it did not take effect."""

    def start(self, timeout_s: float) -> None: ...

    def update(self, info: dict[str, Any], timeout_s: float) -> None: ...

    def finish(self, version: str, timeout_s: float) -> None: ...

    def resume(self, timeout_s: float) -> None: ...


class HttpEngine:
    """A ``vllm serve`` process with its development endpoints (VLLM_SERVER_DEV_MODE=1), which no API key of vLLM guards:
    keep them on a private network. `headers` are sent with every call, to this origin alone; redirects are errors."""

    def __init__(self, url: str, *, headers: dict[str, str] | None = None, context: ssl.SSLContext | None = None) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/") or parts.query or parts.username:
            raise InvalidError(f"an engine's URL is http(s)://HOST:PORT, not '{url}'")
        self.name = f"{parts.scheme}://{parts.hostname}:{parts.port or (443 if parts.scheme == 'https' else 80)}"
        self._parts, self._headers, self._context = parts, dict(headers or {}), context

    def __repr__(self) -> str:
        return f"HttpEngine({self.name!r})"

    def call(self, method: str, path: str, body: Any = None, timeout_s: float = 30, query: dict[str, str] | None = None) -> Any:
        """The JSON of a 200 answer (None when it is empty). EngineError otherwise; DeadlineError after timeout_s."""
        if self._parts.scheme == "https":
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(self._parts.hostname, self._parts.port, timeout=timeout_s, context=self._context)
        else:
            connection = http.client.HTTPConnection(self._parts.hostname, self._parts.port, timeout=timeout_s)
        target = path + ("?" + urllib.parse.urlencode(query) if query else "")
        headers = {"Content-Type": "application/json", **self._headers}
        try:
            connection.request(method, target, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            text = answer.read(MAX_ANSWER).decode("utf-8", "replace")
            if answer.length:  # bytes that were promised and did not come, or too many
                raise http.client.HTTPException(f"the answer broke off, {answer.length} bytes are missing" if len(text) < MAX_ANSWER else f"the answer is longer than {MAX_ANSWER} bytes")
        except TimeoutError:
            raise DeadlineError(f"no answer within {timeout_s:.1f} s", peer=self.name, stage=path) from None
        except (OSError, http.client.HTTPException) as e:
            raise EngineError(f"{type(e).__name__}: {e}", peer=self.name, stage=path) from None
        finally:
            connection.close()
        if answer.status != 200:
            raise EngineError(f"HTTP {answer.status}: {_reason(text)}", peer=self.name, stage=path)
        if not text:
            return None
        try:
            found = json.loads(text)
        except ValueError:
            raise EngineError(f"the answer is no JSON: {text[:200]!r}", peer=self.name, stage=path) from None
        if isinstance(found, dict) and found.get("success") is False:
            raise EngineError(f"success is false: {_reason(text)}", peer=self.name, stage=path)
        return found

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
        self.call("POST", "/start_weight_update", {}, timeout_s)

    def update(self, info: dict[str, Any], timeout_s: float) -> None:
        self.call("POST", "/update_weights", {"update_info": info}, timeout_s)

    def finish(self, version: str, timeout_s: float) -> None:
        self.call("POST", "/finish_weight_update", {"weight_version": version}, timeout_s)

    def resume(self, timeout_s: float) -> None:
        self.call("POST", "/resume", None, timeout_s)


def _reason(text: str) -> str:
    """What an error's body says, in one line."""
    try:
        found = json.loads(text)
    except ValueError:
        found = text
    if isinstance(found, dict):
        found = found.get("error", found.get("detail", found))
        found = found.get("message", found) if isinstance(found, dict) else found
    return " ".join(str(found).split())[:500]


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
        self._call("start_weight_update")

    def update(self, info: dict[str, Any], timeout_s: float) -> None:
        self._call("update_weights", {"update_info": info})

    def finish(self, version: str, timeout_s: float) -> None:
        self._call("finish_weight_update")

    def resume(self, timeout_s: float) -> None:
        """Nothing was held."""


class VllmWeightSynchronizer(WeightSynchronizer):
    """WeightSynchronizer over vLLM engines with the backend ``refit``: replica i is engines[i].

    Generation goes on while a version is staged and verified. Once it is decided each replica is paused (requests in
    flight: ``abort``, ``wait`` for them, or ``keep`` them frozen), its prefix cache reset, the version loaded, and resumed;
    an engine whose installation failed stays paused, and the next sync repairs it first. timeout_s bounds each call.
    """

    POLL_S = 0.01

    def __init__(self, coordinator: Coordinator, engines: Sequence[Engine], *, in_flight: str = "wait", timeout_s: float = 60, init_info: dict[str, Any] | None = None) -> None:
        super().__init__(coordinator)
        if in_flight not in _IN_FLIGHT:
            raise InvalidError(f"in_flight must be one of {', '.join(_IN_FLIGHT)}, not '{in_flight}'")
        if not engines:
            raise InvalidError("engines is empty")
        self.engines, self.in_flight, self.timeout_s = list(engines), in_flight, timeout_s
        self._init_info = dict(init_info or {})
        self.pause_seconds: dict[str, float] = {}  # of the last round, by engine: generation stood still
        self._paused: set[int] = set()
        self._open: set[int] = set()  # vLLM ends a session when update fails, and keeps it when finish fails

    def init_communicator(self) -> None:
        """Every engine joins, then the job plans."""
        info = {"address": self.coordinator.address, "replicas": len(self.engines), **self._init_info}
        with concurrent.futures.ThreadPoolExecutor(len(self.engines)) as pool:
            joins = [pool.submit(engine.init, {**info, "replica": i}, self.timeout_s) for i, engine in enumerate(self.engines)]
            concurrent.futures.wait(joins)
        for join in joins:
            join.result()
        super().init_communicator()

    def sync_weights(self, step: int | None = None) -> SyncReport:
        """One round. Raises the first error, as Coordinator.sync_weights does, or the engine's own."""
        self.pause_seconds = {}
        outcome: concurrent.futures.Future[SyncReport] = concurrent.futures.Future()

        def run() -> None:
            try:
                outcome.set_result(self.coordinator.sync_weights(step))
            except BaseException as e:  # noqa: BLE001 - raised again below
                outcome.set_exception(e)

        threading.Thread(target=run, name="refit-sync", daemon=True).start()
        failures: list[Error] = []
        with concurrent.futures.ThreadPoolExecutor(len(self.engines)) as pool:
            installs: dict[int, concurrent.futures.Future[None]] = {}
            while not outcome.done():
                for i in self._applying():
                    if i not in installs:
                        installs[i] = pool.submit(self._install, i)
                time.sleep(self.POLL_S)
        for i, install in installs.items():
            try:
                install.result()
            except Error as e:
                log.warning("engine %s: %s", self.engines[i].name, e)
                failures.append(e)
        report = outcome.result()
        if failures:
            raise failures[0]
        return report

    def _applying(self) -> list[int]:
        """Replicas that are told to apply a decided version. States come with heartbeats: a little late, never early."""
        status = self.coordinator.status()
        return [r["instance"] for r in status["replicas"] if r["state"] in _IN_ROUND] if status["stage"] == "applying" else []

    def _install(self, i: int) -> None:
        engine, began = self.engines[i], time.monotonic()
        deadline = began + self.timeout_s

        def left() -> float:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise DeadlineError(f"the installation took more than {self.timeout_s} s", peer=engine.name)
            return remaining

        if i not in self._paused:
            engine.pause(self.in_flight, left())
            self._paused.add(i)
        engine.reset_caches(left())
        if i not in self._open:
            engine.start(left())
            self._open.add(i)
        try:
            engine.update({"timeout_s": left()}, left())
        except BaseException:
            self._open.discard(i)
            raise
        engine.finish(self._label(), left())
        self._open.discard(i)
        engine.resume(left())
        self._paused.discard(i)
        self.pause_seconds[engine.name] = time.monotonic() - began

    def _label(self) -> str:
        """What answers are labelled with from now on."""
        version = self.coordinator.status()["version"]
        return str(version["number"]) if version else ""
