"""A job without a driver: every trainer rank calls the same functions, and rank 0 embeds the coordinator.

::

    with refit.spmd.start(lambda: refit.WeightSynchronizer(refit.Coordinator(2, targets=1))) as sync:
        publisher = refit.Publisher.from_torch(sync.address, model)
        sync.init_communicator()
        ...
        publisher.publish(step)
        sync.mark_stale()
        sync.sync_weights(step)

Ranks meet in a store: torch's, where torch.distributed or torchrun has one, or a private folder of this host.
"""

from __future__ import annotations

import abc
import datetime
import hashlib
import json
import logging
import os
import pathlib
import re
import socket
import sys
import time
import uuid
from typing import Any, Callable

from . import _errors
from ._errors import DeadlineError, Error, InvalidError, MismatchError, PeerLostError, UnsupportedError
from ._private import check_private, home, make_private
from .coordinator import WeightSynchronizer
from .launch import Place, place

log = logging.getLogger("refit")


class Store(abc.ABC):
    """Short texts by key, which all ranks of a job see."""

    @abc.abstractmethod
    def put(self, key: str, value: str) -> None: ...

    @abc.abstractmethod
    def get(self, key: str, timeout_s: float) -> str:
        """Waits until somebody put it; DeadlineError after timeout_s."""

    @abc.abstractmethod
    def drop(self, key: str) -> None:
        """Nothing where there is no such key."""

    def close(self) -> None:
        """By rank 0, when nobody asks any more."""


class FolderStore(Store):
    """In a directory of mode 0700, made where its parent is there. One user, and hosts that share it."""

    POLL_S = 0.005

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = pathlib.Path(folder)
        make_private(self.folder)

    def _file(self, key: str) -> pathlib.Path:
        return self.folder / (re.sub(r"[^\w.-]", "_", key) + ".json")

    def put(self, key: str, value: str) -> None:
        part = self._file(key).with_suffix(f".part{os.getpid()}")
        part.write_text(value)
        os.replace(part, self._file(key))

    def get(self, key: str, timeout_s: float) -> str:
        until = time.monotonic() + timeout_s
        while True:
            try:
                return self._file(key).read_text()
            except FileNotFoundError:
                pass
            if time.monotonic() > until:
                raise DeadlineError(f"nobody put '{key}' within {timeout_s:.3g} s", peer=str(self.folder), stage="meet")
            time.sleep(self.POLL_S)

    def drop(self, key: str) -> None:
        self._file(key).unlink(missing_ok=True)

    def close(self) -> None:
        for found in self.folder.glob("*.json"):
            found.unlink(missing_ok=True)
        try:
            self.folder.rmdir()
        except OSError:  # somebody else's files are in it, or it is gone
            pass


class TorchStore(Store):
    """A store of torch.distributed (TCPStore, FileStore, …) under a prefix."""

    def __init__(self, store: Any, prefix: str = "refit") -> None:
        import torch.distributed as dist

        self._store = dist.PrefixStore(prefix, store)

    def put(self, key: str, value: str) -> None:
        self._store.set(key, value)

    def get(self, key: str, timeout_s: float) -> str:
        try:
            self._store.wait([key], datetime.timedelta(seconds=max(timeout_s, 1.0)))
            return self._store.get(key).decode()
        except RuntimeError as e:  # torch's errors derive from it; a timeout has no class of its own in all of its stores
            if "timeout" in str(e).lower() or "timed out" in str(e).lower():
                raise DeadlineError(f"nobody put '{key}' within {timeout_s:.3g} s", stage="meet") from None
            raise Error(f"torch's store failed: {e}", stage="meet") from e

    def drop(self, key: str) -> None:
        self._store.delete_key(key)


def find_store(at: Place, folder: str | os.PathLike[str] | None = None, timeout_s: float = 60) -> Store:
    """Where the ranks of a job meet. folder: a FolderStore there. Else torch's own store where torch.distributed was
    initialised, or torchrun's agent has one; else a folder of this host that is named by the job. InvalidError where
    nothing tells this job from another, or its ranks are on several hosts."""
    if folder is not None:
        return FolderStore(folder)
    if at.world == 1:
        make_private(home())
        return FolderStore(home() / f"spmd-{os.getpid()}-{time.monotonic_ns()}")
    if (found := _torchs_own()) is not None:
        return TorchStore(found, f"refit/{at.job}")
    if at.launcher == "torchrun" and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        import torch.distributed as dist

        host, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
        if not host or not port.isdigit():
            raise InvalidError("MASTER_ADDR and MASTER_PORT do not say where torchrun's store is: give a folder")
        return TorchStore(dist.TCPStore(host, int(port), is_master=False, timeout=datetime.timedelta(seconds=timeout_s), wait_for_workers=False), f"refit/{at.job}")
    if not at.job:
        raise InvalidError(f"no variable of '{at.launcher}' tells this job from another one: initialise torch.distributed first, or give a folder that all {at.world} ranks see")
    if at.local_world is not None and at.local_world != at.world:
        raise InvalidError(f"{at.local_world} of {at.world} ranks are on this host: initialise torch.distributed first, or give a folder that all of them see")
    make_private(home())
    return FolderStore(home() / f"spmd-{hashlib.sha256(at.job.encode()).hexdigest()[:16]}")


def _torchs_own() -> Any:
    """The store of torch.distributed where this process has initialised it."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not (dist.is_available() and dist.is_initialized()):
        return None
    return dist.distributed_c10d._get_default_store()


class SpmdWeightSynchronizer:
    """The five calls of a training loop, each made by every rank, in the same order. Rank 0's synchronizer does the work;
    its result, or the class and fields of its error, reaches all ranks. A rank that does not call within timeout_s is named.

    address: of the coordinator, for the members of this rank and for engines.
    """

    def __init__(self, make: Callable[[], WeightSynchronizer], at: Place, store: Store, *, timeout_s: float = 60, call_timeout_s: float = 900) -> None:
        self.place, self._store, self._timeout_s, self._call_timeout_s = at, store, timeout_s, call_timeout_s
        self._calls = 0
        self._closed = False
        self._run = uuid.uuid4().hex  # tells this run's entries from those that another one left in the store
        self._seen: dict[str, str] = {}  # rank -> its run, in the call in hand
        self.synchronizer: WeightSynchronizer | None = None
        address, host = self._all("start", "", lambda: self._made(make))
        if host != _host() and address.startswith("ipc:"):
            self.shutdown()
            raise UnsupportedError(f"the coordinator is on host {host} at {address}, and this rank on {_host()}: members join over ipc, within one host", peer=f"rank {at.rank}")
        self.address = address

    def _made(self, make: Callable[[], WeightSynchronizer]) -> list[str]:
        self.synchronizer = make()
        return [self.synchronizer.coordinator.address, _host()]

    def init_communicator(self) -> None:
        """Waits until every member has joined and planned."""
        self._all("init_communicator", "", lambda: self._mine().init_communicator())

    def mark_stale(self) -> None:
        """The trainer's weights have changed."""
        self._all("mark_stale", "", lambda: self._mine().mark_stale())

    def is_stale(self) -> bool:
        """Rank 0's answer, on every rank."""
        return bool(self._all("is_stale", "", lambda: bool(self._mine().is_stale())))

    def sync_weights(self, step: int | None = None) -> dict[str, Any]:
        """One round, once all ranks have called. What it did: outcome, version, step, seconds, missing. Every rank raises what
        rank 0 would; MismatchError where ranks ask for different steps."""
        return dict(self._all("sync_weights", "" if step is None else str(step), lambda: _told(self._mine().sync_weights(step))))

    def shutdown(self) -> None:
        """Releases everything. Safe to call twice and after a failure. Waits for no other rank, but rank 0 keeps its
        coordinator until the others are here, at most timeout_s."""
        if self._closed:
            return
        self._closed = True
        if self.place.rank:
            try:
                self._store.put(f"bye/{self.place.rank}", self._run)
            except (OSError, RuntimeError) as e:  # rank 0 has closed it already
                log.warning("rank 0 is told no goodbye: %s", e)
            return
        until = time.monotonic() + self._timeout_s
        for rank in range(1, self.place.world):
            try:
                self._store.get(f"bye/{rank}", max(0.0, until - time.monotonic()))
            except Error as e:
                log.warning("rank %d did not shut down: %s", rank, e)
        try:
            if self.synchronizer is not None:
                self.synchronizer.shutdown()
        finally:
            self._store.close()

    def __enter__(self) -> "SpmdWeightSynchronizer":
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    # -- inside

    def _mine(self) -> WeightSynchronizer:
        if self.synchronizer is None:
            raise InvalidError("rank 0 could not make its synchronizer")
        return self.synchronizer

    def _all(self, call: str, argument: str, work: Callable[[], Any]) -> Any:
        """One call of all ranks: rank 0 waits for the others, works, and tells."""
        if self._closed:
            raise _errors.CancelledError(f"{call}() after shutdown()")
        self._calls += 1
        n, mine = self._calls, [call, argument]
        if self.place.rank:
            try:
                self._store.put(f"{n}/{self.place.rank}", json.dumps([*mine, self._run]))
            except (OSError, RuntimeError) as e:
                raise PeerLostError(f"the store in which the ranks meet is gone: {e}", peer="rank 0", stage=call) from e
            try:
                told = json.loads(self._store.get(f"{n}/outcome", self._timeout_s + self._call_timeout_s))
            except DeadlineError as e:
                raise DeadlineError(f"{call}(): {e.message}", peer="rank 0", stage=call) from None
            if told["seen"].get(str(self.place.rank), self._run) != self._run:
                raise MismatchError("the store holds what another run left there: give an empty folder, or a prefix of its own", peer="rank 0", stage=call)
            if "error" in told:
                raise _raised(told["error"])
            return told["result"]
        try:
            self._arrived(n, mine)
            result = work()
        except BaseException as e:
            self._store.put(f"{n}/outcome", json.dumps({"error": _fields(e), "seen": self._seen}))
            raise
        self._store.put(f"{n}/outcome", json.dumps({"result": result, "seen": self._seen}))
        return result

    def _arrived(self, n: int, mine: list[str]) -> None:
        """Every rank has made this call; so each has read the outcome of the one before."""
        until = time.monotonic() + self._timeout_s
        missing, others = [], {}
        self._seen = {}
        for rank in range(1, self.place.world):
            try:
                *others[rank], self._seen[str(rank)] = json.loads(self._store.get(f"{n}/{rank}", max(0.0, until - time.monotonic())))
            except DeadlineError:
                missing.append(rank)
        if missing:
            names = ", ".join(f"rank {r}" for r in missing)
            raise DeadlineError(f"{names} did not call {mine[0]}() within {self._timeout_s:.3g} s", peer=f"rank {missing[0]}", stage=mine[0])
        for rank, theirs in others.items():
            if theirs != mine:
                raise MismatchError(f"rank 0 calls {mine[0]}({mine[1]}), rank {rank} calls {theirs[0]}({theirs[1]})", peer=f"rank {rank}", stage=mine[0])
        for rank in others:
            self._store.drop(f"{n}/{rank}")
        self._store.drop(f"{n - 1}/outcome")


def _host() -> str:
    return socket.gethostname()


def _told(report: Any) -> dict[str, Any]:
    """A round's report as plain values; of a preset, its metrics."""
    report = getattr(report, "report", report)
    return {"outcome": report.outcome, "version": report.version.number, "step": report.version.step, "seconds": report.seconds, "missing": list(report.missing)}


def _fields(e: BaseException) -> dict[str, Any]:
    if not isinstance(e, Error):
        return {"code": "internal", "message": f"{type(e).__name__}: {e}", "peer": "rank 0"}
    named = {k: getattr(e, k) for k in ("peer", "stage", "bucket", "tensor") if getattr(e, k)}
    return {"code": e.code, "message": e.message or str(e), **named, **{k: v for k in ("need", "have") if (v := getattr(e, k)) is not None}}


def _raised(told: dict[str, Any]) -> Error:
    return _errors.of_code(told.pop("code"), told.pop("message"), **told)


def start(
    make: Callable[[], WeightSynchronizer],
    *,
    at: Place | None = None,
    store: Store | None = None,
    folder: str | os.PathLike[str] | None = None,
    timeout_s: float = 60,
    call_timeout_s: float = 900,
) -> SpmdWeightSynchronizer:
    """The synchronizer of all trainer ranks; every rank calls this. make: called on rank 0 alone; it makes a Coordinator and
    what drives it: ``WeightSynchronizer(Coordinator(…))``, one of engines, ``create_weight_synchronizer(…)``. An error there is
    raised on every rank.

    at: this process (default: ``refit.launch.place()``); store or folder: where the ranks meet (default:
    ``find_store()``). timeout_s: how long rank 0 waits for the others' calls; call_timeout_s: how long they wait for its work.
    """
    at = place() if at is None else at
    store = find_store(at, folder, timeout_s) if store is None else store
    if isinstance(store, FolderStore):
        check_private(store.folder)
    return SpmdWeightSynchronizer(make, at, store, timeout_s=timeout_s, call_timeout_s=call_timeout_s)
