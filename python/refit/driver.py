"""The driver's side of rollout engines: what steers them round each refit, whatever they are."""

from __future__ import annotations

import concurrent.futures
import logging
import threading
import time
from typing import Any, Callable, Protocol, Sequence

from ._errors import CancelledError, DeadlineError, InvalidError
from ._http import EngineError, HttpClient
from .coordinator import Coordinator, SyncReport, WeightSynchronizer

__all__ = ["Engine", "EngineError", "EngineWeightSynchronizer"]

log = logging.getLogger("refit")

_IN_ROUND = ("Receiving", "Voted", "Applying")

# Gates that a synchronizer of this process was to shut and has not opened since: see _gate().
_shut_gates: dict[Any, Any] = {}


def _gate(engine: Any) -> Any:
    """What is one gate, whoever steers it: a server has one name and an actor one id, however many clients it has."""
    if isinstance(engine, HttpClient):
        return engine.name
    return getattr(engine, "gate", None) or id(engine)


class Engine(Protocol):
    """One engine instance as a synchronizer steers it. Each call ends by timeout_s, or raises."""

    name: str

    def init(self, info: dict[str, Any], timeout_s: float) -> None:
        """Joins the job. info: address (the coordinator's), replica, replicas, compare_only where it is so, and whatever
        the synchronizer was given for its engines."""

    def pause(self, in_flight: str, timeout_s: float) -> None:
        """Shuts the gate: when it returns no request runs. in_flight: what becomes of running requests."""

    def reset_caches(self, timeout_s: float) -> None:
        """Prefix cache; raises when it did not take effect."""

    def start(self, timeout_s: float) -> None:
        """Opens a session of weights. One that is open already, from an installation that failed, is taken over."""

    def update(self, info: dict[str, Any], timeout_s: float) -> None:
        """info: timeout_s, by which the engine's own ranks give up."""

    def finish(self, timeout_s: float) -> None: ...

    def label(self, version: str, timeout_s: float) -> None:
        """What answers are labelled with from now on; nothing else changes."""

    def resume(self, timeout_s: float) -> None: ...


class EngineWeightSynchronizer(WeightSynchronizer):
    """WeightSynchronizer over engines: replica i is engines[i].

    Generation goes on while a version is staged and verified. Once it is decided each replica is paused (requests in
    flight: one of IN_FLIGHT, the first by default), its caches reset, the version loaded. It is labelled and resumed only
    when the coordinator says that all its ranks serve the version. An engine of which it does not say so, for whatever
    reason, stays or gets paused, and the next sync repairs it. timeout_s bounds an installation, at most the
    coordinator's gate_timeout_s (the default).

    compare_only: nothing is installed. Each engine compares the version with the weights that it has, under a pause in
    which its caches stay; a difference fails the sync and names tensors. An engine that another synchronizer of this process
    holds paused stays so.
    """

    IN_FLIGHT: Sequence[str] = ("wait", "abort", "keep")
    POLL_S = 0.01
    SETTLE_S = 1.0  # for states that come with heartbeats

    def __init__(self, coordinator: Coordinator, engines: Sequence[Engine], *, in_flight: str | None = None, timeout_s: float | None = None, init_info: dict[str, Any] | None = None, compare_only: bool = False) -> None:
        super().__init__(coordinator)
        if not engines:
            raise InvalidError("engines is empty")
        in_flight = self.IN_FLIGHT[0] if in_flight is None else in_flight
        if in_flight not in self.IN_FLIGHT:
            raise InvalidError(f"in_flight must be one of {', '.join(self.IN_FLIGHT)}, not '{in_flight}'")
        timeout_s = coordinator.gate_timeout_s if timeout_s is None else timeout_s
        if not 0 < timeout_s <= coordinator.gate_timeout_s:
            raise InvalidError(f"timeout_s is {timeout_s}; it must be above 0 and at most the coordinator's gate_timeout_s, {coordinator.gate_timeout_s}: a replica is fenced after that")
        self.engines, self.in_flight, self.timeout_s = list(engines), in_flight, timeout_s
        self._init_info = dict(init_info or {}) | ({"compare_only": True} if compare_only else {})
        self.compare_only = compare_only
        self.pause_seconds: dict[str, float] = {}  # of the last round, by engine: generation stood still
        self._paused: set[int] = set()  # the engine said so, and was not told to resume since
        self._asked: set[int] = set()  # to pause, and no resume was acknowledged since: the gate may be shut or open
        self._installed: set[int] = set()  # in the last round

    def init_communicator(self) -> None:
        """Every engine joins, then the job plans. Also after an engine was restarted."""
        info = {"address": self.coordinator.address, "replicas": len(self.engines), **self._init_info}
        with concurrent.futures.ThreadPoolExecutor(len(self.engines)) as pool:
            joins = [pool.submit(engine.init, {**info, "replica": i}, max(self.timeout_s, 60)) for i, engine in enumerate(self.engines)]
            concurrent.futures.wait(joins)
        for join in joins:
            join.result()
        # A server that was restarted is not paused: the next installation pauses it again.
        for i in list(self._asked):
            self._opened(i)
        super().init_communicator()

    def is_stale(self) -> bool:
        """As the coordinator says, and also while an engine stands paused, or may."""
        return super().is_stale() or bool(self._asked)

    def hold(self, i: int) -> None:
        """Pauses engine i, unless it is known to be paused. It stays so until it has the newest version. Raises when it did
        not say that it is paused; it is asked again then by whoever next needs it paused."""
        self._pause(i, self.timeout_s)

    def _pause(self, i: int, timeout_s: float) -> None:
        if i in self._paused:
            return
        self._asked.add(i)
        _shut_gates[_gate(self.engines[i])] = self.engines[i]  # held, so that its id is its own
        self.engines[i].pause(self.in_flight, timeout_s)
        self._paused.add(i)

    def _opened(self, i: int) -> None:
        self._paused.discard(i)
        self._asked.discard(i)
        _shut_gates.pop(_gate(self.engines[i]), None)

    def installed(self, i: int) -> bool:
        """Whether the last round gave engine i its version and opened its gate."""
        return i in self._installed

    def sync_weights(self, step: int | None = None) -> SyncReport:
        """One round. Raises the first error, as Coordinator.sync_weights does, or the engine's own."""
        self.pause_seconds = {}
        self._installed.clear()
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
        if self.compare_only:
            return set()
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
                self._pause(i, self.timeout_s)
            except Exception as e:  # noqa: BLE001 - the engine may be gone; what is told is that it could not be paused
                log.error("engine %s does not serve the newest version and could not be paused: %s", engine.name, e)
        return behind

    def _install(self, i: int) -> None:
        engine, began = self.engines[i], time.monotonic()
        deadline = began + self.timeout_s

        def left() -> float:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise DeadlineError(f"the installation took more than {self.timeout_s} s", peer=engine.name)
            return remaining

        if self.compare_only:
            return self._compare(engine, left)
        self._pause(i, left())
        engine.reset_caches(left())
        engine.start(left())
        # The workers give up before the call does, so that none is left in a session that the driver believes closed.
        engine.update({"timeout_s": max(0.8 * left(), left() - 2)}, left())
        engine.finish(left())
        while not self._serves_newest(i):
            left()
            time.sleep(self.POLL_S)
        engine.label(str(self._status()["version"]["number"]), left())
        remaining = left()
        self._paused.discard(i)  # also when the answer is lost: the next installation must not rely on it
        engine.resume(remaining)
        self._opened(i)
        self._installed.add(i)
        self.pause_seconds[engine.name] = time.monotonic() - began

    def _compare(self, engine: Engine, left: Callable[[], float]) -> None:
        """Another synchronizer owns this engine: whatever comes of it, it generates on, unless that one shut its gate."""
        if _gate(engine) not in _shut_gates:
            engine.pause(self.IN_FLIGHT[-1], left())
        try:
            engine.start(left())
            failed: Exception | None = None
            for step in (lambda: engine.update({"timeout_s": max(0.8 * left(), left() - 2)}, left()), lambda: engine.finish(self.timeout_s)):
                try:
                    step()
                except Exception as e:  # noqa: BLE001 - the first one is raised, once the session is closed
                    failed = failed or e
            if failed is not None:
                raise failed
        finally:
            if _gate(engine) not in _shut_gates:
                engine.resume(self.timeout_s)
