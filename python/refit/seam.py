"""Engines of one's own: two small classes to derive from, and the receiver that serves them."""

from __future__ import annotations

import abc
import weakref
from typing import Any, Callable, Mapping, Sequence

from ._arrays import Tensor
from ._errors import CancelledError
from .layout import Layout
from .members import Receiver, VersionInfo


class Instance(abc.ABC):
    """One engine instance, as far as a refit touches it. Its methods run on the thread that serves the receiver; what raises
    fails the rank, and the error of the round tells why."""

    @abc.abstractmethod
    def pause(self, timeout_s: float) -> None:
        """Shuts the gate: when it returns nothing reads the weights, until resume()."""

    @abc.abstractmethod
    def resume(self) -> None: ...

    @abc.abstractmethod
    def invalidate(self, policy: str) -> None:
        """``reset``: prefix, encoder and multimodal caches. A reset that fails must raise."""

    # The weights' version, set when they are installed: the label of answers from there on. May be a property with a setter.
    version: VersionInfo | None = None


class Shard(abc.ABC):
    """The weights of one engine rank: where they lie (regions), or how whole tensors are loaded (load); one of both."""

    rank: int = 0

    @property
    @abc.abstractmethod
    def layout(self) -> Layout:
        """Of all ranks of all instances."""

    def regions(self) -> Mapping[str, Any] | None:
        """Buffer of the layout -> an array of this process, written in place; None: Refit's own memory, and load()."""
        return None

    def load(self, tensors: Sequence[Tensor], version: VersionInfo) -> None:
        """Under the gate: the whole version, in Refit's memory, which stays as it is only until this returns."""
        raise NotImplementedError("a Shard has regions(), or load()")


class _Hooks:
    """The engine that a Receiver knows, made of both."""

    def __init__(self, instance: Instance, shard: Shard, loads: bool) -> None:
        self._instance, self._shard, self._loads = instance, shard, loads
        # Weak: the receiver's native part holds these hooks, and a cycle through it no collector would see.
        self.receiver: Callable[[], Receiver | None] = lambda: None

    def pause(self, timeout_s: float) -> None:
        self._instance.pause(timeout_s)

    def resume(self) -> None:
        self._instance.resume()

    def reset_caches(self) -> None:
        self._instance.invalidate("reset")

    def installed(self, version: VersionInfo) -> None:
        if self._loads:
            receiver = self.receiver()
            if receiver is None:
                raise CancelledError("the receiver was let go while it served")
            self._shard.load(receiver.tensors, version)
        self._instance.version = version


def serve(address: str, instance: Instance, shard: Shard, **options: Any) -> Receiver:
    """Joins the job as the rank that `shard` is, and returns its receiver: start() or run() it. options: of Receiver."""
    memory = shard.regions()
    hooks = _Hooks(instance, shard, memory is None)
    receiver = Receiver(address, shard.layout, shard.rank, memory=memory, engine=hooks, **options)
    hooks.receiver = weakref.ref(receiver)
    return receiver
