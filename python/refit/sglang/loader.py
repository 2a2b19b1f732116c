"""The worker's side: a Refit receiver in each of SGLang's own processes, and the model's own loader behind it."""

from __future__ import annotations

import logging
import time
from typing import Any

import torch

from .._errors import Error, InvalidError, MismatchError
from .._gate import Gate
from .._whole import whole_layout
from ..layout import Layout
from ..members import Receiver, VersionInfo
from . import orders

log = logging.getLogger("refit.sglang")


class _Rank:
    """What this process has joined. One receiver, whatever engine asked last."""

    def __init__(self) -> None:
        self.receiver: Receiver | None = None
        self.gate: Gate | None = None
        self.model: Any = None
        self.weights: dict[str, torch.Tensor] = {}

    def join(self, model: Any, order: dict[str, Any]) -> None:
        self.leave()
        ranks, replicas, compare = int(order["ranks"]), int(order["replicas"]), bool(order.get("compare_only"))
        if compare:
            layout = Layout.from_model(order["model"], f"sglang:tp={ranks},replicas={replicas}")
        else:
            layout = whole_layout(order["model"], ranks, replicas)
        self.model, self.gate = model, Gate(self._compare if compare else self._load)
        receiver = Receiver(order["address"], layout, int(order["replica"]) * ranks + int(order["rank"]), engine=self.gate, threads=int(order.get("threads", 1)), join_timeout_s=float(order["timeout_s"]))
        try:
            held = receiver.parameters if compare else receiver.tensors
            self.weights = {t.name: t.torch() for t in held}
        except BaseException:
            receiver.close()
            raise
        receiver.start()
        self.receiver = receiver

    def leave(self) -> None:
        if self.receiver is not None and self.gate is not None:
            self.gate.close()
            self.receiver.close()
        self.receiver, self.gate, self.weights = None, None, {}

    def update(self, model: Any, order: dict[str, Any]) -> None:
        if self.receiver is None or self.gate is None:
            raise InvalidError("this rank has not joined a job")
        if model is not self.model:
            raise InvalidError("the worker's model is another than the one that joined")
        self.receiver.check(hooks=False)  # the gate tells of it
        until = time.monotonic() + float(order["timeout_s"])
        self.gate.await_round(until - time.monotonic())
        self.gate.hold(until - time.monotonic())

    @torch.no_grad()
    def _load(self, version: VersionInfo) -> None:
        began = time.perf_counter()
        self.model.load_weights(self.weights.items())
        log.info("version %d of step %d loaded in %.3f s", version.number, version.step, time.perf_counter() - began)

    @torch.no_grad()
    def _compare(self, version: VersionInfo) -> None:
        live = {**dict(self.model.named_buffers()), **dict(self.model.named_parameters())}
        absent = sorted(set(self.weights) - set(live))
        other = sorted(n for n, w in self.weights.items() if n in live and not _same(w, live[n]))
        log.info("version %d of step %d: %d parameters compared, %d differ, %d are not there", version.number, version.step, len(self.weights), len(other), len(absent))
        if absent or other:
            named = ", ".join((other + [f"{n} (the model has none)" for n in absent])[:8])
            raise MismatchError(f"{len(other) + len(absent)} of {len(self.weights)} parameters differ from the engine's: {named}", tensor=(other + absent)[0])


def _same(given: torch.Tensor, live: torch.Tensor) -> bool:
    """Bit for bit, in the dtype that the engine keeps."""
    if given.shape != live.shape:
        return False
    a, b = (t.detach().contiguous() for t in (given.to(live.device, live.dtype), live))
    return torch.equal(a.view(torch.uint8), b.view(torch.uint8)) if a.dim() else torch.equal(a.reshape(1).view(torch.uint8), b.reshape(1).view(torch.uint8))


_rank = _Rank()


def obey(model: Any, named_tensors: Any) -> None:
    """One order. Never raises once the order is read: SGLang would end this process."""
    order = orders.decode(named_tensors)
    failed: BaseException | None = None
    try:
        if order["do"] == "join":
            _rank.join(model, order)
        elif order["do"] == "update":
            _rank.update(model, order)
        elif order["do"] == "leave":
            _rank.leave()
        else:
            raise InvalidError(f"'{order['do']}' is no order")
    except Exception as e:  # noqa: BLE001 - told to the driver
        (log.error if isinstance(e, Error) else log.exception)("%s: %s", order.get("do"), e)
        failed = e
    try:
        orders.answer(order, failed)
    except Exception as e:  # noqa: BLE001 - the driver misses the answer and says so
        log.error("no answer could be left: %s", e)
