"""Publisher and Receiver: one trainer rank, one engine rank."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import threading
import time
import weakref
from typing import Any, Callable, Iterable, Iterator, Mapping, Protocol

from . import _arrays, _native
from ._arrays import Parameter, Tensor
from ._errors import DeadlineError, Error, InvalidError
from .layout import Layout

log = logging.getLogger("refit")

MemberReport = _native.MemberReport
VersionInfo = _native.VersionInfo


# Who has not been closed: native threads must not outlive the interpreter.
_alive: "weakref.WeakSet[_Member]" = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for member in list(_alive):
        try:
            member.close(1)
        except Error as e:
            log.warning("closing at exit: %s", e)


class _Member:
    """What both have: the rank's memory as views."""

    _native: Any
    layout: Layout
    rank: int

    def close(self, timeout_s: float = 5) -> None:
        raise NotImplementedError

    def _look(self, kept: Any) -> None:
        self._kept = kept  # arrays whose memory is lent
        self._buffers = self._native.buffers()
        info = self.layout._native.rank(self.rank)
        self._tensors = _arrays.tensors(info, self._buffers)
        self._parameters = _arrays.parameters(info, self._buffers)
        _alive.add(self)

    @property
    def buffers(self) -> dict[str, memoryview]:
        """The rank's buffers as they lie in this process."""
        return dict(self._buffers)

    @property
    def tensors(self) -> list[Tensor]:
        """Views of everything that this rank holds. A tensor may have several boxes."""
        return list(self._tensors)

    @property
    def parameters(self) -> list[Parameter]:
        """Views of the parameters of this side's own model, under its own names; empty where no rule made the layout."""
        return list(self._parameters)

    def tensor(self, name: str) -> Tensor:
        """The one box that this rank holds of a tensor. InvalidError when it holds none or several."""
        found = [t for t in self._tensors if t.name == name]
        if len(found) != 1:
            raise InvalidError(f"rank {self.rank} holds {len(found)} boxes of it", tensor=name)
        return found[0]

    def report(self) -> MemberReport:
        """What the last round took here. Raises what ended the connection, if anything did."""
        return self._native.report()


class Publisher(_Member):
    """One trainer rank: lends its weights to rounds, on a thread that runs no Python.

    address: Coordinator.address; rank: of `layout`, which must be equal on all trainer ranks. memory: an array of your
    own for each buffer of the rank, lent as it lies (over ``shm``, which cannot read it, it is copied at each seal:
    report().snapshot_bytes). Without it Refit allocates memory that ``shm`` lends without a copy: write the weights into
    `tensors`. Waits up to join_timeout_s for the coordinator; MismatchError when the layout differs from other ranks'.

    A step: ``with publisher.writing(step): …write…``, or guard(), write, publish().
    """

    def __init__(
        self,
        address: str,
        layout: Layout,
        rank: int = 0,
        *,
        memory: Mapping[str, Any] | None = None,
        threads: int = 1,
        join_timeout_s: float = 60,
    ) -> None:
        self.layout, self.rank = layout, rank
        # Only read, whoever owns it: a JAX array may be lent.
        given = _arrays.lend_all(memory, writable=False)
        self._native = _native.Publisher(layout._native, address, rank, given, threads, join_timeout_s)
        self._look(dict(memory or {}))
        log.info("source rank %d joined %s", rank, address)

    @classmethod
    def from_arrays(cls, address: str, arrays: Mapping[str, Any], *, tied: Iterable[tuple[str, str]] = (), **options: Any) -> "Publisher":
        """The only trainer rank, with whole tensors: name -> array of any framework, lent as they lie."""
        return cls(address, Layout.from_arrays(arrays, tied=tied), 0, memory=arrays, **options)

    @classmethod
    def from_torch(
        cls,
        address: str,
        model: Any,
        *,
        group: Any = None,
        ignore: Iterable[str] = (),
        dtypes: Mapping[str, str] | None = None,
        threads: int = 1,
        join_timeout_s: float = 60,
    ) -> "TorchPublisher":
        """This process' rank of a torch trainer.

        model: a module (plain, DDP, tensor-parallel, FSDP2) or named parameters (mapping or pairs). The layout comes
        from the placements of DTensors; a plain tensor is a replica. Names lose ``module.``, ``_orig_mod.``,
        ``_fsdp_wrapped_module.`` and ``.base_layer``; other wrappers' names are refused in a list, unless a pattern of
        `ignore` leaves them out. A parameter of an FSDP2 module travels in its ``MixedPrecisionPolicy.param_dtype``,
        cast as torch casts; `dtypes` (pattern -> dtype of layout files) says otherwise. Collective over `group` where
        torch.distributed runs: ranks that disagree are refused.

        Each publish() copies (and casts) the weights into memory that Refit lends; training goes on at once.
        """
        from . import _torch

        return TorchPublisher(address, *_torch.agree(model, group, ignore=ignore, dtypes=dtypes), threads=threads, join_timeout_s=join_timeout_s)

    def guard(self, timeout_s: float = 30) -> None:
        """Before the weights are written: waits until no round holds them. BusyError at the deadline: do not write."""
        self._native.guard(timeout_s)

    async def guard_async(self, timeout_s: float = 30) -> None:
        """guard() while the event loop goes on."""
        await asyncio.to_thread(self.guard, timeout_s)

    def publish(self, step: int, weight_set: str = "policy") -> None:
        """The weights in memory are those of `step`: a round may take them."""
        self._native.publish(step, weight_set)
        log.debug("source rank %d published step %d", self.rank, step)

    @contextlib.contextmanager
    def writing(self, step: int, weight_set: str = "policy", timeout_s: float = 30) -> Iterator["Publisher"]:
        """guard() before the block, publish(step) after it. A block that raises publishes nothing."""
        self.guard(timeout_s)
        yield self
        self.publish(step, weight_set)

    def close(self, timeout_s: float = 5) -> None:
        """Says goodbye. Safe to call twice."""
        self._native.close(timeout_s)

    def __enter__(self) -> "Publisher":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class TorchPublisher(Publisher):
    """What Publisher.from_torch() returns."""

    def __init__(self, address: str, described: Any, layout: Layout, rank: int, *, threads: int, join_timeout_s: float) -> None:
        from . import _torch

        super().__init__(address, layout, rank, threads=threads, join_timeout_s=join_timeout_s)
        self._packer = _torch.Packer(described, self.buffers)

    def publish(self, step: int, weight_set: str = "policy", timeout_s: float = 30) -> None:
        """Copies the weights as they are now, once no round holds the former copy (BusyError at the deadline)."""
        self.guard(timeout_s)
        self._packer.pack()
        super().publish(step, weight_set)


class Engine(Protocol):
    """What an engine may offer a Receiver; each method is optional. They run on the thread that calls run()."""

    def pause(self, timeout_s: float) -> None:
        """Returns when no forward pass reads weights; raises TimeoutError when that takes too long."""

    def resume(self) -> None: ...

    def reset_caches(self) -> None:
        """Prefix, encoder and multimodal caches. A reset that fails must raise."""

    def installed(self, version: VersionInfo) -> None:
        """The weights are those of `version`: the label of answers from now on."""


def _logged(hook: Callable[..., None] | None) -> Callable[..., None] | None:
    """An engine's method whose exceptions are logged where they were raised: the round's error has no traceback."""
    if hook is None:
        return None

    def call(*arguments: Any) -> None:
        try:
            hook(*arguments)
        except BaseException:
            log.exception("the engine's %s failed", getattr(hook, "__name__", "hook"))
            raise

    return call


class Receiver(_Member):
    """One engine rank: receives versions, all or nothing.

    rank: of `layout`; its replica follows from it. memory: an array of your own for each buffer of the rank, installed
    in place (never a JAX array); without it Refit allocates. engine: an object with methods of Engine. Serve the protocol
    with run(), or start() a thread that does.
    """

    def __init__(
        self,
        address: str,
        layout: Layout,
        rank: int = 0,
        *,
        memory: Mapping[str, Any] | None = None,
        engine: Engine | Any = None,
        threads: int = 1,
        join_timeout_s: float = 60,
    ) -> None:
        self._open(address, layout, rank, _arrays.lend_all(memory, writable=True), dict(memory or {}), engine, threads, join_timeout_s)

    def _open(self, address: str, layout: Layout, rank: int, given: Any, kept: Any, engine: Any, threads: int, join_timeout_s: float) -> None:
        self.layout, self.rank = layout, rank
        self._server: threading.Thread | None = None
        self._stop = threading.Event()
        self._failed: Error | None = None
        hooks = [_logged(getattr(engine, name, None)) for name in ("pause", "resume", "reset_caches", "installed")]
        self._native = _native.Receiver(layout._native, address, rank, given, threads, join_timeout_s, *hooks)
        self._look(kept)
        log.info("target rank %d joined %s", rank, address)

    @classmethod
    def from_arrays(cls, address: str, arrays: Mapping[str, Any], *, tied: Iterable[tuple[str, str]] = (), **options: Any) -> "Receiver":
        """The only rank of the only target, whole tensors installed in the arrays themselves: name -> array."""
        return cls(address, Layout.from_arrays(arrays, tied=tied), 0, memory=arrays, **options)

    def run(self, seconds: float) -> None:
        """Serves the protocol for so long; the engine's methods run here. Raises when the connection failed for good."""
        if self._server is not None and threading.current_thread() is not self._server:
            raise InvalidError("start() made a thread that serves already")
        self._native.run(seconds)

    async def run_async(self, seconds: float) -> None:
        """run() while the event loop goes on; the engine's methods run on another thread then."""
        await asyncio.to_thread(self.run, seconds)

    def start(self, slice_s: float = 0.05) -> None:
        """Serves on a thread until close(); the engine's methods run there."""
        if self._server is not None:
            return
        self._stop.clear()
        self._server = threading.Thread(target=self._serve, args=(slice_s,), name=f"refit-receive-{self.rank}", daemon=True)
        self._server.start()

    def _serve(self, slice_s: float) -> None:
        try:
            while not self._stop.is_set():
                self._native.run(slice_s)
        except Error as e:
            self._failed = e
            log.error("target rank %d stopped serving: %s", self.rank, e)

    def check(self) -> None:
        """Raises what ended the thread that start() made, if anything did."""
        if self._failed is not None:
            raise self._failed

    def wait_version(self, number: int = 1, timeout_s: float = 60, until: Callable[[], bool] | None = None) -> VersionInfo:
        """Waits until this rank serves version `number` or a newer one whole, serving meanwhile where no thread does.
        DeadlineError after timeout_s."""
        deadline = time.monotonic() + timeout_s
        while True:
            self.check()
            if self.complete and self.version.number >= number and (until is None or until()):
                return self.version
            if time.monotonic() > deadline:
                raise DeadlineError(f"version {number} did not come within {timeout_s} s; this rank serves {self.version.number}", peer=f"target rank {self.rank}")
            if self._server is None:
                self._native.run(0.05)
            else:
                time.sleep(0.005)

    @property
    def version(self) -> VersionInfo:
        """What was installed last; number 0 before that."""
        return self._native.version()

    @property
    def complete(self) -> bool:
        """True while the bytes are one whole version: what a gate asks before it reads weights."""
        return self._native.complete()

    @property
    def busy(self) -> bool:
        """True while a round is in hand on this rank."""
        return self._native.busy()

    def close(self, timeout_s: float = 5) -> None:
        """Ends the thread of start(), says goodbye. Safe to call twice."""
        self._stop.set()
        if self._server is not None:
            self._server.join(timeout_s)
            if self._server.is_alive():
                raise DeadlineError(f"the serving thread did not end within {timeout_s} s: is the engine's hook waiting?", peer=f"target rank {self.rank}")
            self._server = None
        self._native.close(timeout_s)

    def __enter__(self) -> "Receiver":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
