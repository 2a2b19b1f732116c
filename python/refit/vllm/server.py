"""The driver's side: running engines, steered round each refit."""

from __future__ import annotations

import concurrent.futures
import http.client
import io
import json
import logging
import socket
import ssl
import threading
import time
import urllib.parse
from typing import Any, Protocol, Sequence

from .._errors import CancelledError, DeadlineError, InvalidError, PeerLostError
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

    def finish(self, timeout_s: float) -> None: ...

    def label(self, version: str, timeout_s: float) -> None:
        """What answers are labelled with from now on."""

    def resume(self, timeout_s: float) -> None: ...


class _UntilDeadline:
    """A socket for http.client of which connecting, sending and reading together end by one deadline: a timeout of a plain
    socket begins anew with every byte that drips in. What it does not bound is the resolver's time for a host's name."""

    def __init__(self, host: str, port: int, context: ssl.SSLContext | None, timeout_s: float) -> None:
        self._deadline = time.monotonic() + timeout_s
        failed: OSError = OSError(f"{host} has no address")
        for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            self._sock = socket.socket(family, kind, protocol)
            try:
                self._arm()
                self._sock.connect(address)
                self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if context is not None:
                    self._arm()  # one timeout for the whole handshake
                    self._sock = context.wrap_socket(self._sock, server_hostname=host)
                return
            except OSError as e:
                self._sock.close()
                if isinstance(e, TimeoutError):
                    raise
                failed = e
        raise failed

    def _arm(self) -> None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._sock.settimeout(left)

    def sendall(self, data: Any) -> None:
        self._arm()
        self._sock.sendall(data)

    def makefile(self, mode: str) -> io.BufferedReader:
        raw, arm = self._sock.makefile(mode, buffering=0), self._arm

        class Reader(io.RawIOBase):
            def readable(self) -> bool:
                return True

            def readinto(self, buffer: Any) -> int | None:
                arm()
                return raw.readinto(buffer)

            def close(self) -> None:
                raw.close()
                super().close()

        return io.BufferedReader(Reader())

    def close(self) -> None:
        self._sock.close()


class HttpEngine:
    """A ``vllm serve`` process with its development endpoints (VLLM_SERVER_DEV_MODE=1), which no API key of vLLM guards:
    keep them on a private network. `headers` are sent with every call, to this origin alone; redirects are errors."""

    def __init__(self, url: str, *, headers: dict[str, str] | None = None, context: ssl.SSLContext | None = None) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/") or parts.query or parts.username:
            raise InvalidError(f"an engine's URL is http(s)://HOST:PORT, not '{url}'")
        self.name = f"{parts.scheme}://{parts.hostname}:{parts.port or (443 if parts.scheme == 'https' else 80)}"
        for key, value in (headers or {}).items():
            if not value.isprintable():  # http.client would print it in its own complaint
                raise InvalidError(f"headers['{key}'] has a line break or another control character")
        self._host, self._port = parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
        self._headers = dict(headers or {})
        self._context = (context or ssl.create_default_context()) if parts.scheme == "https" else None

    def __repr__(self) -> str:
        return f"HttpEngine({self.name!r})"

    def call(self, method: str, path: str, body: Any = None, timeout_s: float = 30, query: dict[str, str] | None = None) -> Any:
        """The JSON of a 200 answer (None when it is empty). EngineError otherwise; DeadlineError when the whole answer, of
        at most MAX_ANSWER bytes, is not there timeout_s after the call."""
        connection = http.client.HTTPConnection(self._host, self._port)
        target = path + ("?" + urllib.parse.urlencode(query) if query else "")
        headers = {"Content-Type": "application/json", **self._headers}
        try:
            connection.sock = _UntilDeadline(self._host, self._port, self._context, timeout_s)  # type: ignore[assignment]
            connection.request(method, target, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            data = answer.read(MAX_ANSWER + 1)
            if len(data) > MAX_ANSWER:
                raise http.client.HTTPException(f"the answer is longer than {MAX_ANSWER} bytes")
            if answer.length:  # bytes that were promised and did not come
                raise http.client.HTTPException(f"the answer broke off, {answer.length} bytes are missing")
            text = data.decode("utf-8", "replace")
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

    def finish(self, timeout_s: float) -> None:
        self.call("POST", "/finish_weight_update", {}, timeout_s)

    def label(self, version: str, timeout_s: float) -> None:
        self.call("POST", "/update_weight_version", {"new_version": version}, timeout_s)

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

    def finish(self, timeout_s: float) -> None:
        self._call("finish_weight_update")

    def label(self, version: str, timeout_s: float) -> None:
        """vllm.LLM has no label."""

    def resume(self, timeout_s: float) -> None:
        """Nothing was held."""


class VllmWeightSynchronizer(WeightSynchronizer):
    """WeightSynchronizer over vLLM engines with the backend ``refit``: replica i is engines[i].

    Generation goes on while a version is staged and verified. Once it is decided each replica is paused (requests in
    flight: ``abort``, ``wait`` for them, or ``keep`` them frozen), its prefix cache reset, the version loaded. It is
    labelled and resumed only when the coordinator says that all its ranks serve the version. An engine of which it does not
    say so, for whatever reason, stays or gets paused, and the next sync repairs it. timeout_s bounds an installation, at most
    the coordinator's gate_timeout_s (the default).
    """

    POLL_S = 0.01
    SETTLE_S = 1.0  # for states that come with heartbeats

    def __init__(self, coordinator: Coordinator, engines: Sequence[Engine], *, in_flight: str = "wait", timeout_s: float | None = None, init_info: dict[str, Any] | None = None) -> None:
        super().__init__(coordinator)
        if in_flight not in _IN_FLIGHT:
            raise InvalidError(f"in_flight must be one of {', '.join(_IN_FLIGHT)}, not '{in_flight}'")
        if not engines:
            raise InvalidError("engines is empty")
        timeout_s = coordinator.gate_timeout_s if timeout_s is None else timeout_s
        if not 0 < timeout_s <= coordinator.gate_timeout_s:
            raise InvalidError(f"timeout_s is {timeout_s}; it must be above 0 and at most the coordinator's gate_timeout_s, {coordinator.gate_timeout_s}: a replica is fenced after that")
        self.engines, self.in_flight, self.timeout_s = list(engines), in_flight, timeout_s
        self._init_info = dict(init_info or {})
        self.pause_seconds: dict[str, float] = {}  # of the last round, by engine: generation stood still
        self._paused: set[int] = set()

    def init_communicator(self) -> None:
        """Every engine joins, then the job plans. Also after an engine was restarted."""
        info = {"address": self.coordinator.address, "replicas": len(self.engines), **self._init_info}
        with concurrent.futures.ThreadPoolExecutor(len(self.engines)) as pool:
            joins = [pool.submit(engine.init, {**info, "replica": i}, max(self.timeout_s, 60)) for i, engine in enumerate(self.engines)]
            concurrent.futures.wait(joins)
        for join in joins:
            join.result()
        self._paused.clear()  # a server that was restarted is not paused: the next installation pauses it again
        super().init_communicator()

    def is_stale(self) -> bool:
        """As the coordinator says, and also while an engine stands paused."""
        return super().is_stale() or bool(self._paused)

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
        installs: dict[int, concurrent.futures.Future[None]] = {}
        with concurrent.futures.ThreadPoolExecutor(len(self.engines)) as pool:
            while not outcome.done():
                for i in self._applying():
                    if i not in installs:
                        installs[i] = pool.submit(self._install, i)
                time.sleep(self.POLL_S)
        failures: dict[int, BaseException] = {}
        for i, install in installs.items():
            if (failure := install.exception()) is not None:
                log.warning("engine %s: %s", self.engines[i].name, failure)
                failures[i] = failure
        behind = self._shut_out(outcome)
        report = outcome.result()
        for i, failure in failures.items():
            if i not in behind:  # it has the version, and something after that failed
                raise failure
        return report

    def _status(self) -> dict[str, Any]:
        status = self.coordinator.status()
        if not status:
            raise CancelledError("the coordinator was shut down")
        return status

    def _applying(self) -> list[int]:
        """Replicas that are told to apply a decided version. States come with heartbeats: a little late, never early."""
        status = self.coordinator.status()
        if status.get("stage") != "applying":
            return []
        return [r["instance"] for r in status["replicas"] if r["state"] in _IN_ROUND]

    def _serves_newest(self, i: int) -> bool:
        status = self._status()
        replica = next(r for r in status["replicas"] if r["instance"] == i)
        return status["version"] is not None and replica["state"] == "Serving" and replica["version"] == status["version"]["number"]

    def _shut_out(self, outcome: concurrent.futures.Future[SyncReport]) -> set[int]:
        """Pauses every engine that does not serve the newest version, whatever the round's outcome was. Their replicas."""
        behind = set(range(len(self.engines)))
        until = time.monotonic() + self.SETTLE_S
        if self.coordinator.status().get("version") is None:
            return behind  # nothing was ever committed: there is nothing that an engine could be behind of
        while behind and (time.monotonic() < until):
            behind = {i for i in behind if not self._serves_newest(i)}
            time.sleep(self.POLL_S)
        for i in sorted(behind - self._paused):
            engine = self.engines[i]
            try:
                engine.pause(self.in_flight, self.timeout_s)
            except Exception as e:  # noqa: BLE001 - the engine may be gone; what is told is that it could not be paused
                log.error("engine %s does not serve the newest version and could not be paused: %s", engine.name, e)
            self._paused.add(i)
        return behind

    def _install(self, i: int) -> None:
        engine, began = self.engines[i], time.monotonic()
        deadline = began + self.timeout_s

        def left() -> float:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise DeadlineError(f"the installation took more than {self.timeout_s} s", peer=engine.name)
            return remaining

        if i not in self._paused:
            self._paused.add(i)  # also when the answer is lost
            engine.pause(self.in_flight, left())
        engine.reset_caches(left())
        try:
            engine.start(left())
        except EngineError as e:
            if "already active" not in e.message:  # vLLM keeps the session when finish fails, or its answer was lost
                raise
        # The workers give up before the call does, so that none is left in a session that the driver believes closed.
        engine.update({"timeout_s": max(0.8 * left(), left() - 2)}, left())
        engine.finish(left())
        while not self._serves_newest(i):
            left()
            time.sleep(self.POLL_S)
        engine.label(str(self._status()["version"]["number"]), left())
        engine.resume(left())
        self._paused.discard(i)
        self.pause_seconds[engine.name] = time.monotonic() - began
