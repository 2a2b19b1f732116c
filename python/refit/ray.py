"""A job of Ray actors: the driver holds the coordinator, actors hold publishers, receivers or engines.

::

    @ray.remote
    class Trainer(refit.ray.SourceWorker):
        def refit_publisher(self, address): return refit.Publisher.from_torch(address, self.model)

    trainers = refit.ray.WorkerGroup([Trainer.remote(...) for _ in range(4)], "source")
    engines = refit.ray.WorkerGroup([Rollout.remote(...) for _ in range(2)], "target", replicas=2)
    sync = refit.ray.RayWeightSynchronizer(refit.Coordinator(4, 2, 1), trainers, engines)
    sync.init_communicator()

Whatever is asked of a group is asked of each actor, each answer is waited for by a deadline, and the error names the actor.
"""

from __future__ import annotations

import logging
import os
import time
from typing import Any, Mapping, Sequence

import ray
import ray.exceptions

from ._errors import DeadlineError, Error, InternalError, InvalidError, PeerLostError
from .coordinator import Coordinator, SyncReport, WeightSynchronizer
from .driver import _IN_ROUND
from .members import Publisher, Receiver
from .synchronizers import Decision

log = logging.getLogger("refit")

__all__ = ["ActorEngine", "EngineWorker", "RayWeightSynchronizer", "SourceWorker", "TargetWorker", "WorkerGroup", "generation_resources"]


def generation_resources(config: Decision | str | os.PathLike[str] | Mapping[str, Any], max_colocated_worker_groups: int = 0) -> float:
    """GPUs of one generation worker, for ``ray.remote(num_gpus=…)``: a whole one on devices of its own, else
    min(0.2, 1/max_colocated_worker_groups). InvalidError where that number is needed and was not given."""
    decision = config if isinstance(config, Decision) else Decision(config, max_colocated_worker_groups=max_colocated_worker_groups)
    if decision.facts["gpu_share"] is None:
        raise InvalidError(f"colocated generation takes {decision.facts['gpu_share_rule']} of a GPU: give max_colocated_worker_groups")
    return float(decision.facts["gpu_share"])


# -- in the actors


class _Worker:
    """What an actor answers for Refit. It needs no constructor of its own."""

    _refit_member: Any = None
    _refit_address = ""

    def _refit_make(self, address: str) -> Any:
        raise NotImplementedError

    def refit_join(self, address: str) -> str:
        """Joins the job, once. An actor that a former coordinator knew leaves that one first."""
        if self.refit_joined() != address:
            self.refit_leave()
            self._refit_member = self._refit_make(address)
            self._refit_address = address
        return address

    def refit_joined(self) -> str:
        """The address that this actor joined: empty in one that was started anew, or whose connection has ended."""
        if self._refit_member is not None:
            try:
                self._refit_member.report()
            except Error as e:
                log.warning("the connection to %s has ended: %s", self._refit_address, e)
                return ""
        return self._refit_address

    def refit_leave(self) -> None:
        member, self._refit_member, self._refit_address = self._refit_member, None, ""
        if member is not None:
            try:
                member.close()
            except Error as e:  # the member is given up either way
                log.warning("leaving: %s", e)


class SourceWorker(_Worker):
    """A trainer rank's actor: derive from it and make its publisher. The actor's own methods train and ``publish``."""

    def refit_publisher(self, address: str) -> Publisher:
        raise NotImplementedError("derive from SourceWorker and make the publisher of this rank here")

    @property
    def publisher(self) -> Publisher:
        if self._refit_member is None:
            raise InvalidError("refit_join() was not called on this actor")
        return self._refit_member

    def _refit_make(self, address: str) -> Publisher:
        return self.refit_publisher(address)

    def refit_publish(self, step: int) -> int:
        """The weights in memory are those of `step`."""
        self.publisher.publish(step)
        return step


class TargetWorker(_Worker):
    """An engine rank's actor: derive from it and make its receiver, which a thread then serves."""

    def refit_receiver(self, address: str) -> Receiver:
        raise NotImplementedError("derive from TargetWorker and make the receiver of this rank here")

    @property
    def receiver(self) -> Receiver:
        if self._refit_member is None:
            raise InvalidError("refit_join() was not called on this actor")
        return self._refit_member

    def _refit_make(self, address: str) -> Receiver:
        receiver = self.refit_receiver(address)
        receiver.start()
        return receiver


class EngineWorker:
    """An actor that holds an engine as the driver steers it (``refit.vllm.LocalEngine``, …): `engine` is set by its own
    constructor. The driver's end is ActorEngine."""

    engine: Any = None

    def refit_engine(self, method: str, *arguments: Any) -> Any:
        if method not in _STEERED:
            raise InvalidError(f"'{method}' is no method of an engine")
        return getattr(self.engine, method)(*arguments)


_STEERED = ("init", "pause", "reset_caches", "start", "update", "finish", "label", "resume", "resume_memory")


# -- in the driver


def _told(e: BaseException, who: str, what: str) -> Error:
    """A failure of an actor's call as an Error that names the actor."""
    cause = getattr(e, "cause", None)
    if isinstance(e, ray.exceptions.RayTaskError) and isinstance(cause, Exception):
        e = cause
    if isinstance(e, Error):
        e.peer = e.peer or who
        return e
    if isinstance(e, ray.exceptions.GetTimeoutError):
        return DeadlineError(f"{what}() did not return in time", peer=who, stage=what)
    if isinstance(e, ray.exceptions.ActorUnavailableError):  # a RayActorError, but it may be back: the connection broke
        return DeadlineError("the actor cannot be reached for now", peer=who, stage=what)
    if isinstance(e, (ray.exceptions.RayActorError, ray.exceptions.WorkerCrashedError, ray.exceptions.ObjectLostError, ray.exceptions.NodeDiedError)):
        reason = (str(e).strip().splitlines() or ["no reason was told"])[0]
        return PeerLostError(f"the actor is gone: {reason}", peer=who, stage=what)
    error = InternalError(f"{type(e).__name__}: {e}", peer=who, stage=what)
    error.__cause__ = e
    return error


def settled(refs: Sequence[Any], names: Sequence[str], what: str, timeout_s: float) -> tuple[list[Any], list[Error]]:
    """Every result by rank (None where it failed), and every failure, by one deadline for all."""
    until = time.monotonic() + timeout_s
    results: list[Any] = []
    failures: list[Error] = []
    for ref, name in zip(refs, names, strict=True):
        try:
            results.append(ray.get(ref, timeout=max(0.001, until - time.monotonic())))
        except Exception as e:  # noqa: BLE001 - told by the caller
            results.append(None)
            failures.append(_told(e, name, what))
    # An actor that died explains why others did not answer; they do not explain it.
    failures.sort(key=lambda e: not isinstance(e, PeerLostError))
    return results, failures


class WorkerGroup:
    """The actors of one side, by rank. side: ``source`` or ``target``; replicas: of a target, with equally many ranks each.
    name: in errors. timeout_s: of every call that names none."""

    def __init__(self, actors: Sequence[Any], side: str, *, replicas: int = 1, name: str = "", timeout_s: float = 120) -> None:
        if side not in ("source", "target"):
            raise InvalidError(f"side must be source or target, not '{side}'")
        if replicas < 1 or not actors or len(actors) % replicas:
            raise InvalidError(f"{len(actors)} actors do not make {replicas} replicas")
        self.actors, self.side, self.replicas, self.timeout_s = list(actors), side, replicas, timeout_s
        self._name = name or ("trainer" if side == "source" else "engine")

    @property
    def world_size(self) -> int:
        return len(self.actors)

    def peer(self, rank: int) -> str:
        """As the coordinator names it: ``target:1.0``."""
        ranks = len(self.actors) // self.replicas
        return f"{self.side}:{rank // ranks}.{rank % ranks}"

    def names(self) -> list[str]:
        return [f"{self._name} actor {r} ({self.peer(r)})" for r in range(len(self.actors))]

    def start(self, method: str, *arguments: Any, **named: Any) -> list[Any]:
        """The futures of every actor's call, as loops with Ray hand them on."""
        return [getattr(a, method).remote(*arguments, **named) for a in self.actors]

    def call(self, method: str, *arguments: Any, timeout_s: float | None = None, **named: Any) -> list[Any]:
        """Every actor's result. The first failure is raised once all have ended, a death before anything else; the others are
        logged."""
        return self._all(self.start(method, *arguments, **named), method, timeout_s)

    def each(self, method: str, arguments: Sequence[Sequence[Any]], *, timeout_s: float | None = None) -> list[Any]:
        """call() with arguments of its own for each rank."""
        return self._all([getattr(a, method).remote(*own) for a, own in zip(self.actors, arguments, strict=True)], method, timeout_s)

    def join_refit(self, address: str) -> list[Any]:
        """What ``create_weight_synchronizer`` asks of a policy."""
        return self.start("refit_join", address)

    def replace(self, rank: int, actor: Any) -> None:
        """Another actor takes a dead one's place; the next sync lets it join."""
        self.actors[rank] = actor

    def joined(self, timeout_s: float) -> tuple[list[Any], list[Error]]:
        """What each actor joined, and those that do not answer."""
        return settled(self.start("refit_joined"), self.names(), "refit_joined", timeout_s)

    def _all(self, refs: Sequence[Any], what: str, timeout_s: float | None) -> list[Any]:
        results, failures = settled(refs, self.names(), what, self.timeout_s if timeout_s is None else timeout_s)
        for other in failures[1:]:
            log.error("%s: %s", what, other)
        if failures:
            raise failures[0]
        return results


class RayWeightSynchronizer(WeightSynchronizer):
    """WeightSynchronizer whose members are actors (SourceWorker, TargetWorker).

    A sync that fails looks which actors are dead and names them. The next sync lets actors join that were started anew, by
    Ray (``max_restarts``) or by WorkerGroup.replace(), and repairs. probe_timeout_s: how long an actor may be busy before it
    counts as not answering; that alone fails no sync.
    """

    def __init__(self, coordinator: Coordinator, *groups: WorkerGroup, probe_timeout_s: float = 10) -> None:
        super().__init__(coordinator)
        if not groups:
            raise InvalidError("no group of actors was given")
        self.groups, self.probe_timeout_s = groups, probe_timeout_s
        self._doubtful = False  # an actor may be new, or gone
        self._known: list[Any] = []  # the actors that were asked to join

    def init_communicator(self) -> None:
        """Every actor joins, then the job plans."""
        joins = [(g, g.start("refit_join", self.coordinator.address)) for g in self.groups]
        failures: list[Error] = []
        for group, refs in joins:
            failures += settled(refs, group.names(), "refit_join", group.timeout_s)[1]
        self._raise(failures)
        self._known = self._actors()
        super().init_communicator()

    def _actors(self) -> list[Any]:
        return [a for g in self.groups for a in g.actors]

    def sync_weights(self, step: int | None = None) -> SyncReport:
        """One round. PeerLostError naming the actors where any is dead, else the round's own error."""
        if self._doubtful or self._actors() != self._known:
            self._rejoin()
        try:
            report = super().sync_weights(step)
        except Error as e:
            self._doubtful = True
            dead = [failure for _, failure in self._probe()[1]]
            if not dead:
                raise
            for other in dead[1:]:
                log.error("sync: %s", other)
            named = ", ".join(d.peer for d in dead)
            raise PeerLostError(f"{named}: {dead[0].message}; the round: {e}", peer=e.peer or dead[0].peer, stage=e.stage, report=e.report) from e
        states = [r["state"] for r in self.coordinator.status().get("replicas", [])]
        lost = any(s != "Serving" and s not in _IN_ROUND for s in states)  # states come a little late
        self._doubtful = bool(report.missing or report.evicted) or not report.all_applied or lost
        return report

    def _probe(self) -> tuple[list[tuple[WorkerGroup, list[Any]]], list[tuple[WorkerGroup, Error]]]:
        """What each actor has joined, by group; and those that are gone."""
        found, dead = [], []
        asked = [(g, g.start("refit_joined")) for g in self.groups]
        for group, refs in asked:
            addresses, failures = settled(refs, group.names(), "refit_joined", self.probe_timeout_s)
            found.append((group, addresses))
            for failure in failures:
                if isinstance(failure, PeerLostError):
                    dead.append((group, failure))
                else:
                    log.warning("%s", failure)
        return found, dead

    def _rejoin(self) -> None:
        """Actors that were started anew join. A dead target is left to the round where that may go on without it."""
        actors = self._actors()
        found, dead = self._probe()
        self._raise([e for g, e in dead if g.side == "source" or self.coordinator.on_target_loss == "fail"])
        new = [(g, r) for g, addresses in found for r, a in enumerate(addresses) if a is not None and a != self.coordinator.address]
        refs = [g.actors[r].refit_join.remote(self.coordinator.address) for g, r in new]
        _, failures = settled(refs, [g.names()[r] for g, r in new], "refit_join", max((g.timeout_s for g, _ in new), default=0))
        self._raise(failures)
        for group, rank in new:
            log.info("%s joined anew", group.names()[rank])
        self._known = actors

    @staticmethod
    def _raise(failures: Sequence[Error]) -> None:
        for other in failures[1:]:
            log.error("%s", other)
        if failures:
            raise failures[0]

    def shutdown(self) -> None:
        """Members leave, as far as they answer; then the coordinator ends. Actors live on."""
        try:
            for group in self.groups:
                for failure in settled(group.start("refit_leave"), group.names(), "refit_leave", self.probe_timeout_s)[1]:
                    log.warning("%s", failure)
        finally:  # also where Ray itself is gone
            super().shutdown()


class ActorEngine:
    """An EngineWorker as a synchronizer of engines steers it; every call ends by its deadline.

    via: the engine's own, of SGLang (``refit.sglang``). resumes_memory: whether the engine has resume_memory()."""

    def __init__(self, actor: Any, name: str, *, via: str = "loader", resumes_memory: bool = False) -> None:
        self.actor, self.name, self.via = actor, name, via
        self.gate = actor._actor_id.hex()  # one gate, however many ActorEngines steer it
        if resumes_memory:
            self.resume_memory = lambda tags, timeout_s: self._call("resume_memory", timeout_s, list(tags), timeout_s)

    def _call(self, method: str, timeout_s: float, *arguments: Any) -> Any:
        # The actor's own deadline is the same; what it has to say about it should still arrive.
        ref = self.actor.refit_engine.remote(method, *arguments)
        (result,), failures = settled([ref], [self.name], method, timeout_s + 1)
        if failures:
            if isinstance(failures[0], DeadlineError):  # one that waits its turn must not run later
                ray.cancel(ref)
            raise failures[0]
        return result

    def init(self, info: dict[str, Any], timeout_s: float) -> None:
        self._call("init", timeout_s, info, timeout_s)

    def pause(self, in_flight: str, timeout_s: float) -> None:
        self._call("pause", timeout_s, in_flight, timeout_s)

    def reset_caches(self, timeout_s: float) -> None:
        self._call("reset_caches", timeout_s, timeout_s)

    def start(self, timeout_s: float) -> None:
        self._call("start", timeout_s, timeout_s)

    def update(self, info: dict[str, Any], timeout_s: float) -> None:
        self._call("update", timeout_s, info, timeout_s)

    def finish(self, timeout_s: float) -> None:
        self._call("finish", timeout_s, timeout_s)

    def label(self, version: str, timeout_s: float) -> None:
        self._call("label", timeout_s, version, timeout_s)

    def resume(self, timeout_s: float) -> None:
        self._call("resume", timeout_s, timeout_s)
