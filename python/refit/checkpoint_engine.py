"""Refit as the checkpoint engine of a framework: NeMo-RL (``refit_transport: refit.checkpoint_engine:RefitCheckpointEngine``),
written and tested against its published interface, not against the package; and verl (``refit.verl``), run with the package.

Whole tensors go from the first trainer worker to every rollout worker of this host, all or nothing, proven; the framework's own
loader takes them from there. Where both sides can keep their own layouts, ``refit.create_weight_synchronizer`` moves less.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import pathlib
import shutil
import threading
import time
import uuid
from typing import Any, AsyncIterable, AsyncIterator, Iterable, Mapping, Sequence

from ._errors import DeadlineError, Error, InvalidError
from ._private import check_private, home, make_private
from ._whole import repeated
from .coordinator import Coordinator
from .layout import Layout
from .members import Publisher, Receiver

log = logging.getLogger("refit")

_CARD = "card.json"


class _Reading:
    """A receiver's engine: installs only while nobody reads. A round may end between pause and resume; the next one then
    finds the gate shut already."""

    def __init__(self) -> None:
        self.free = threading.Semaphore()
        self._shut = False  # by the receiver's thread, which alone calls the hooks

    def pause(self, timeout_s: float) -> None:
        if not self._shut and not self.free.acquire(timeout=timeout_s):
            raise DeadlineError("the former version is still being read", stage="receive_weights")
        self._shut = True

    def resume(self) -> None:
        if self._shut:
            self._shut = False
            self.free.release()


class RefitCheckpointEngine:
    """One worker's end, of either side. bucket_size (bytes): of a batch of received tensors. array: ``torch``, or ``numpy`` for
    loops without it. timeout_s: of every wait. coordinator_options: of refit.Coordinator."""

    shard_expert_weights = shard_hf_weights = cleanup_after_load = False

    def __init__(self, bucket_size: int | None = None, *, bucket_size_bytes: int | None = None, array: str = "torch", timeout_s: float = 120, coordinator_options: Mapping[str, Any] | None = None) -> None:
        self.bucket_size = bucket_size or bucket_size_bytes or 1 << 30
        if array not in ("torch", "numpy"):
            raise InvalidError(f"array must be torch or numpy, not '{array}'")
        self._array, self._timeout_s, self._options = array, timeout_s, dict(coordinator_options or {})
        self._own = str(home() / f"checkpoint-{uuid.uuid4().hex[:12]}")
        self._folder: pathlib.Path | None = None
        self._rank, self._rollouts, self._sends = 0, 0, False
        self._coordinator: Coordinator | None = None
        self._publisher: Publisher | None = None
        self._sent: dict[str, Any] = {}
        self._steps = 0
        self._receiver: Receiver | None = None
        self._reading = _Reading()
        self._seen = 0

    # -- both frameworks

    def prepare(self) -> dict[str, Any]:
        """What the first trainer worker's entry says is where the workers meet."""
        return {"refit": self._own}

    def finalize(self) -> None:
        """After each refit: nothing. Plan, memory and connections live on to the next one; close() ends them."""

    async def send_weights(self, weights: Iterable[tuple[str, Any]] | AsyncIterable[tuple[str, Any]], global_steps: int | None = None) -> None:
        """Drains the generator, on every trainer worker: it may be collective. The first worker sends; when this returns there,
        every rollout worker has the version whole. global_steps: the version's step; without one they are counted."""
        if self._folder is None:
            raise InvalidError("send_weights before the process group was made")
        if not self._sends:
            async for _ in _each(weights):
                pass
            return
        names = []
        if self._publisher is not None:
            await asyncio.to_thread(self._publisher.guard, self._timeout_s)
        async for name, tensor in _each(weights):
            names.append(name)
            if self._publisher is None:
                self._sent[name] = _copied(tensor)
            elif name not in self._sent or (tuple(self._sent[name].shape), self._sent[name].dtype) != (tuple(tensor.shape), tensor.dtype):
                raise InvalidError("is new or has another shape or dtype than in the first refit: make new engines", tensor=name)
            else:
                _copy_into(self._sent[name], tensor)
        if missing := sorted(set(self._sent) - set(names)):
            raise InvalidError(f"{len(missing)} tensors of the first refit did not come", tensor=missing[0])
        await asyncio.to_thread(self._round, global_steps)

    def _round(self, global_steps: int | None) -> None:
        if self._publisher is None:
            self._open()
        assert self._publisher is not None and self._coordinator is not None
        self._steps = self._steps + 1 if global_steps is None else global_steps
        self._publisher.publish(self._steps)
        self._coordinator.mark_stale()
        self._coordinator.sync_weights()

    def _open(self) -> None:
        assert self._folder is not None
        make_private(self._folder.parent)
        make_private(self._folder)
        layout = Layout.from_arrays(self._sent)
        try:
            self._coordinator = Coordinator(1, 1, self._rollouts, **{"runtime_dir": str(self._folder), "join_timeout_s": self._timeout_s, **self._options})
            card = {"address": self._coordinator.address, "layout": repeated(layout, self._rollouts).to_json()}
            part = self._folder / (_CARD + ".part")
            part.write_text(json.dumps(card))
            os.replace(part, self._folder / _CARD)
            self._publisher = Publisher(self._coordinator.address, layout, 0, memory=self._sent, join_timeout_s=self._timeout_s)
            self._coordinator.init_communicator()
        except BaseException:  # the next send begins anew, and nobody is to join what has ended
            (self._folder / _CARD).unlink(missing_ok=True)
            publisher, coordinator, self._publisher, self._coordinator, self._sent = self._publisher, self._coordinator, None, None, {}
            for end in (publisher and publisher.close, coordinator and coordinator.shutdown):
                try:
                    if end is not None:
                        end()
                except Error as e:
                    log.warning("after a refit that did not begin: %s", e)
            raise

    async def _received(self, global_steps: int | None = None) -> AsyncIterator[list[tuple[str, Any]]]:
        if self._folder is None or self._sends:
            raise InvalidError("receive_weights on a worker that is no rollout worker of a process group")
        receiver = await asyncio.to_thread(self._joined)
        until = time.monotonic() + self._timeout_s
        new = (lambda: receiver.version.step >= global_steps) if global_steps is not None else None
        while True:
            await asyncio.to_thread(receiver.wait_version, self._seen + 1, max(0.0, until - time.monotonic()), new, hooks=False)  # send_weights told of it
            # On this thread: a cancellation then never leaves a thread behind that takes it for nobody.
            while not self._reading.free.acquire(blocking=False):
                if time.monotonic() > until:
                    raise DeadlineError("the version is still being installed", stage="receive_weights")
                await asyncio.sleep(0.005)
            if receiver.complete:
                break
            self._reading.free.release()  # a newer one came meanwhile, and failed half-way
        try:
            # What is read from here on, maybe newer than what was waited for. Taken also where the reading breaks off: each
            # refit begins with a new version, for which this one must not stand in.
            self._seen = receiver.version.number
            batch: list[tuple[str, Any]] = []
            size = 0
            for t in receiver.tensors:
                array = t.torch() if self._array == "torch" else t.numpy()
                if batch and size + array.nbytes > self.bucket_size:
                    yield batch
                    batch, size = [], 0
                batch.append((t.name, array))
                size += array.nbytes
            if batch:
                yield batch
        finally:
            self._reading.free.release()

    def _joined(self) -> Receiver:
        if self._receiver is None:
            assert self._folder is not None
            until = time.monotonic() + self._timeout_s
            while not (self._folder / _CARD).exists():
                if time.monotonic() > until:
                    raise DeadlineError(f"the first trainer worker did not send within {self._timeout_s} s", peer=str(self._folder))
                time.sleep(0.02)
            check_private(self._folder.parent)
            check_private(self._folder)
            card = json.loads((self._folder / _CARD).read_text())
            self._receiver = Receiver(card["address"], Layout.from_json(card["layout"]), self._rank, engine=self._reading, join_timeout_s=self._timeout_s)
            self._receiver.start()
        return self._receiver

    def _meet(self, rank: int, rollouts: int, metadata: Sequence[Any], sends: bool) -> None:
        if rollouts < 1 or not metadata or not isinstance(metadata[0], Mapping) or "refit" not in metadata[0]:
            raise InvalidError("the metadata is not what prepare() gave: trainer workers' first, then rollout workers'")
        folder = pathlib.Path(metadata[0]["refit"])
        if self._folder is not None and (folder, rank, rollouts) != (self._folder, self._rank, self._rollouts):
            self.close()
        self._folder, self._rank, self._rollouts, self._sends = folder, rank, rollouts, sends

    def close(self) -> None:
        """Ends everything. Safe to call twice."""
        for end in (self._publisher, self._receiver):
            if end is not None:
                end.close()
        if self._coordinator is not None:
            self._coordinator.shutdown()
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)
        self._publisher, self._receiver, self._coordinator, self._folder = None, None, None, None
        self._sent, self._seen = {}, 0

    # -- NeMo-RL

    def get_target_weight_layout(self) -> None:
        """Whole tensors."""

    def init_policy_process_group(self, *, worker_rank: int, train_world_size: int, rollout_world_size: int, metadata: Sequence[Any]) -> None:
        self._meet(worker_rank, rollout_world_size, metadata, worker_rank == 0)

    def init_rollout_process_group(self, *, rollout_rank: int, train_world_size: int, rollout_world_size: int, metadata: Sequence[Any]) -> None:
        self._meet(rollout_rank, rollout_world_size, metadata, False)

    async def receive_weight_batches(self) -> AsyncIterator[list[tuple[str, Any]]]:
        """Batches of (name, tensor), views that hold until the next batch is asked for; a version counts as taken from its first
        one on."""
        async for batch in self._received():
            yield batch

    # -- verl

    @classmethod
    def build_topology(cls, trainer_world_size: int, rollout_world_size: int, metadata: Sequence[Any]) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        """Arguments of init_process_group for each trainer and each rollout worker."""

        def side(world: int, trainer: bool) -> dict[str, list[Any]]:
            return {"rank": list(range(world)), "rollout_world_size": [rollout_world_size] * world, "metadata": [list(metadata)] * world, "trainer": [trainer] * world}

        return side(trainer_world_size, True), side(rollout_world_size, False)

    def init_process_group(self, *, rank: int, rollout_world_size: int, metadata: Sequence[Any], trainer: bool) -> None:
        self._meet(rank, rollout_world_size, metadata, trainer and rank == 0)

    async def receive_weights(self, global_steps: int | None = None) -> AsyncIterator[tuple[str, Any]]:
        """As receive_weight_batches(), one by one. Waits for a version of step global_steps or newer."""
        async for batch in self._received(global_steps):
            for pair in batch:
                yield pair


async def _each(weights: Any) -> AsyncIterator[tuple[str, Any]]:
    """Of a generator of either kind."""
    if hasattr(weights, "__aiter__"):
        async for pair in weights:
            yield pair
    else:
        for pair in weights:
            yield pair


def _copied(tensor: Any) -> Any:
    if hasattr(tensor, "detach"):
        return tensor.detach().cpu().clone().contiguous()
    import numpy as np

    return np.array(tensor, order="C")


def _copy_into(kept: Any, tensor: Any) -> None:
    if hasattr(kept, "copy_"):
        kept.copy_(tensor.detach())
    else:
        kept[...] = tensor
