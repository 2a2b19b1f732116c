"""Publisher and Receiver: one trainer rank, one engine rank."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Callable, Iterable, Iterator, Mapping, Protocol

from . import _arrays, _native
from ._arrays import Parameter, Tensor
from ._errors import BusyError, CancelledError, DeadlineError, Error, InvalidError
from .layout import Layout

if TYPE_CHECKING:
    from .trainers.jax import JaxPublisher
    from .trainers.megatron import MegatronPublisher
    from .trainers.torch import TorchPublisher

log = logging.getLogger("refit")

MemberReport = _native.MemberReport
VersionInfo = _native.VersionInfo


_RUN_SLICE_S = 0.05  # how long a signal or a hook's exception may wait inside Receiver.run()


def _seconds(argument: str, value: float) -> float:
    if not (math.isfinite(value) and value >= 0):
        raise InvalidError(f"{argument} must be a finite number of seconds, not negative (it is {value})")
    return value


def _goodbye(native: Any) -> None:
    """A member that nobody closed, when it is collected or the interpreter ends: its threads must not outlive either."""
    try:
        native.close(1)
    except Error as e:
        log.warning("closing: %s", e)


class _Member:
    """What both have: the rank's memory as views."""

    _native: Any
    layout: Layout
    rank: int

    _views = True  # whether its memory may be looked at

    def _look(self) -> None:
        self._buffers: list[tuple[str, memoryview]] = []
        self._tensors: list[Tensor] = []
        self._parameters: list[Parameter] = []
        if not self._views:
            return
        self._buffers = self._native.buffers()
        info = self.layout._native.rank(self.rank)
        self._tensors = _arrays.tensors(info, self._buffers)
        self._parameters = _arrays.parameters(info, self._buffers)

    @property
    def buffers(self) -> dict[str, memoryview]:
        """The rank's buffers as they lie in this process. They keep their memory alive, as all views of it do."""
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
        weakref.finalize(self, _goodbye, self._native)
        self._look()
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
        config: Any = None,
        group: Any = None,
        ignore: Iterable[str] = (),
        dtypes: Mapping[str, str] | None = None,
        adapter: str | None = None,
        threads: int = 1,
        join_timeout_s: float = 60,
    ) -> "TorchPublisher":
        """This process' rank of a torch trainer.

        model: a module (plain, DDP, tensor-parallel, FSDP2), several of them by name, which one version then brings together
        (``{"": policy, "draft": draft}``; names become ``draft.…``, without rules), or named parameters (mapping or pairs). The layout comes
        from the placements of DTensors; a plain tensor is a replica. Names lose ``module.``, ``_orig_mod.``,
        ``_fsdp_wrapped_module.`` and ``.base_layer``; other wrappers' names are refused in a list, unless a pattern of
        `ignore` leaves them out. A parameter of an FSDP2 module travels in its ``MixedPrecisionPolicy.param_dtype``,
        cast as torch casts; `dtypes` (pattern -> dtype of layout files) says otherwise. Collective over `group` where
        torch.distributed runs: ranks that disagree are refused.

        config: the model's Hugging Face configuration (path, text, mapping, object); without it the module's own
        `config`, where it has one of a family that Refit has rules for; False for none. With it, fused experts of
        transformers 5 (``experts.gate_up_proj``) travel as the tensors that checkpoints and targets name, what the family
        keeps in float32 travels in float32, and parameters that are unknown, missing or of another shape are refused.

        A PEFT model's plain LoRA travels merged, under the names of the base model: each publish() computes base +
        alpha/r · B·A where it lends it from, and writes nothing of the model. adapter: that adapter's own tensors travel
        instead, alone, for engines that keep adapters beside the base.

        Each publish() copies (and casts) the weights into memory that Refit lends; training goes on at once.
        """
        from .trainers import torch as trainer

        agreed = trainer.agree(model, group, ignore=ignore, dtypes=dtypes, config=config, adapter=adapter)
        return trainer.TorchPublisher(address, *agreed, threads=threads, join_timeout_s=join_timeout_s)

    @classmethod
    def from_jax(cls, address: str, model: Any, **options: Any) -> "JaxPublisher":
        """This process of a JAX trainer: ``refit.trainers.jax.publisher()``, which documents the options."""
        from .trainers import jax as trainer

        return trainer.publisher(address, model, **options)

    @classmethod
    def from_megatron(cls, address: str, model: Any, config: Any, **options: Any) -> "MegatronPublisher":
        """This process' rank of a Megatron-Core trainer: ``refit.trainers.megatron.publisher()``, which documents the
        options."""
        from .trainers import megatron as trainer

        return trainer.publisher(address, model, config, **options)

    def guard(self, timeout_s: float = 30) -> None:
        """Before the weights are written: waits until no round holds them. BusyError at the deadline: do not write."""
        self._native.guard(timeout_s)

    async def guard_async(self, timeout_s: float = 30) -> None:
        """guard() while the event loop goes on."""
        await asyncio.to_thread(self.guard, timeout_s)

    def rebind(self, memory: Mapping[str, Any], timeout_s: float = 30) -> None:
        """guard(), and from then on the lent buffers are these arrays, equal in size to those given first; `tensors` and
        `buffers` are made anew. InvalidError where the memory is Refit's own. publish() says what step lies there."""
        self._native.rebind(_arrays.lend_all(memory, writable=False), timeout_s)
        self._look()

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


class Engine(Protocol):
    """What an engine may offer a Receiver; each method is optional. They run on the thread that calls run()."""

    def pause(self, timeout_s: float) -> None:
        """Returns when no forward pass reads weights; raises TimeoutError when that takes too long."""

    def resume(self) -> None: ...

    def reset_caches(self) -> None:
        """Prefix, encoder and multimodal caches. A reset that fails must raise."""

    def installed(self, version: VersionInfo) -> None:
        """The weights are those of `version`: the label of answers from now on."""


def _kept(hook: Callable[..., None] | None, raised: list[BaseException]) -> Callable[..., None] | None:
    """An engine's method whose exceptions are logged and kept where they were raised: the round's error is a line of
    text. (`raised` and not the receiver, which would never be collected.)"""
    if hook is None:
        return None

    def call(*arguments: Any) -> None:
        try:
            hook(*arguments)
        except BaseException as e:
            log.exception("the engine's %s failed", getattr(hook, "__name__", "hook"))
            if not raised:  # the first since somebody looked
                raised.append(e)
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
        self.layout, self.rank = layout, rank
        self._server: threading.Thread | None = None
        self._running = threading.Lock()  # held by the one run()
        self._failed: BaseException | None = None
        self._raised: list[BaseException] = []  # by hooks, not told yet
        given = _arrays.lend_all(memory, writable=True)
        hooks = [_kept(getattr(engine, name, None), self._raised) for name in ("pause", "resume", "reset_caches", "installed")]
        self._native = _native.Receiver(layout._native, address, rank, given, threads, join_timeout_s, *hooks)
        weakref.finalize(self, _goodbye, self._native)
        self._look()
        log.info("target rank %d joined %s", rank, address)

    @classmethod
    def from_arrays(cls, address: str, arrays: Mapping[str, Any], *, tied: Iterable[tuple[str, str]] = (), **options: Any) -> "Receiver":
        """The only rank of the only target, whole tensors installed in the arrays themselves: name -> array."""
        return cls(address, Layout.from_arrays(arrays, tied=tied), 0, memory=arrays, **options)

    def run(self, seconds: float) -> None:
        """Serves the protocol for so long, or until close(); the engine's methods run here.

        Raises when the connection failed for good, and what one of the engine's methods raised (the coordinator was told
        of it; run() may be called again). BusyError while another thread is in here.
        """
        deadline = time.monotonic() + _seconds("seconds", seconds)
        if self._server is not None:
            raise InvalidError("start() made a thread that serves already")
        if not self._running.acquire(blocking=False):
            raise BusyError("another thread is inside run()")
        try:
            self._native.run(min(seconds, _RUN_SLICE_S))
            self._tell_raised()
            while (left := deadline - time.monotonic()) > 0:
                try:
                    self._native.run(min(left, _RUN_SLICE_S))
                except CancelledError:
                    return  # closed meanwhile
                self._tell_raised()
        finally:
            self._running.release()

    def _tell_raised(self) -> None:
        if self._raised:
            first = self._raised[0]
            self._raised.clear()
            raise first

    async def run_async(self, seconds: float) -> None:
        """run() while the event loop goes on; the engine's methods run on another thread then."""
        await asyncio.to_thread(self.run, seconds)

    def start(self, slice_s: float = 0.05) -> None:
        """Serves on a thread until close(); the engine's methods run there. What they raise, check() raises."""
        _seconds("slice_s", slice_s)
        if self._server is not None:
            return
        self._server = threading.Thread(target=self._serve, args=(slice_s,), name=f"refit-receive-{self.rank}", daemon=True)
        self._server.start()

    def _serve(self, slice_s: float) -> None:
        try:
            while True:
                self._native.run(slice_s)
        except CancelledError:
            pass  # closed
        except BaseException as e:  # kept for check(): nobody else would hear of it
            self._failed = e
            log.error("target rank %d stopped serving: %s", self.rank, e)

    def check(self, hooks: bool = True) -> None:
        """Raises what ended the thread that start() made, if anything did; else, once, what one of the engine's methods
        raised there since the last look (without `hooks`, for an engine that tells of it by itself, that is forgotten)."""
        if self._failed is not None:
            raise self._failed
        if hooks:
            self._tell_raised()
        else:
            self._raised.clear()  # told elsewhere: not by a later look too

    def wait_version(self, number: int = 1, timeout_s: float = 60, until: Callable[[], bool] | None = None, *, hooks: bool = True) -> VersionInfo:
        """Waits until this rank serves version `number` or a newer one whole, serving meanwhile where no thread does.
        DeadlineError after timeout_s; what one of the engine's methods raised meanwhile is raised here (without `hooks`: only
        the round that it failed tells of it)."""
        deadline = time.monotonic() + _seconds("timeout_s", timeout_s)
        while True:
            self.check(hooks)
            if self.complete and self.version.number >= number and (until is None or until()):
                return self.version
            if time.monotonic() > deadline:
                raise DeadlineError(f"version {number} did not come within {timeout_s} s; this rank serves {self.version.number}", peer=f"target rank {self.rank}")
            if self._server is None:
                self.run(_RUN_SLICE_S)
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
        """Ends a run() of another thread or of start(), says goodbye. Safe to call twice, from any thread.

        DeadlineError when an engine's method holds run() up for so long, BusyError when that method called this itself:
        close again when it has returned; run() is refused from the first call on.
        """
        self._native.close(timeout_s)
        if self._server is not None and self._server is not threading.current_thread():
            self._server.join(timeout_s)  # it has left its last run() already
            self._server = None

    def __enter__(self) -> "Receiver":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
