"""The worker's side: vLLM's weight-transfer interface over a Refit receiver."""

from __future__ import annotations

import logging
import math
import threading
import time
from dataclasses import dataclass
from typing import Any, Callable

import torch
import vllm
from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo

from .._errors import DeadlineError, Error, InvalidError, UnsupportedError
from ..layout import Layout
from ..members import Receiver, VersionInfo
from .loading import Model

log = logging.getLogger("refit.vllm")

# Releases whose reload session this was run with.
VERSIONS = ("0.32.0",)


@dataclass
class RefitInitInfo(WeightTransferInitInfo):
    """address: of the job's coordinator. replica of replicas: which instance this engine is. model: a checkpoint
    directory or configuration that the layout is made from (default: the one that the engine was started with)."""

    address: str = ""
    replica: int = 0
    replicas: int = 1
    model: str = ""
    threads: int = 1
    join_timeout_s: float = 60
    untested_version: bool = False


@dataclass
class RefitUpdateInfo(WeightTransferUpdateInfo):
    """timeout_s: until the round's decision has reached this rank and the round has ended here."""

    timeout_s: float = 60


class _Gate:
    """Between the receiver's thread, which runs the protocol, and the worker's thread, which runs the model: while the
    worker stands in the gate no forward pass runs, and only it touches the model."""

    def __init__(self, load: Callable[[VersionInfo], None]) -> None:
        self._load = load
        self._changed = threading.Condition()
        self._wanted = self._held = self._released = self._closed = False
        self._version: VersionInfo | None = None
        self._failed: BaseException | None = None

    def _until(self, ready: Callable[[], Any], timeout_s: float, what: str) -> None:
        if not self._changed.wait_for(ready, max(0.0, timeout_s)):
            raise DeadlineError(f"{what} within {timeout_s:.1f} s")

    # -- the receiver's thread: methods of refit.Engine

    def pause(self, timeout_s: float) -> None:
        with self._changed:
            self._wanted, self._released, self._version, self._failed = True, False, None, None
            self._changed.notify_all()
            self._until(lambda: self._held or self._closed, timeout_s, "the engine did not call finish_weight_update")
            if self._closed:
                raise Error("the worker shut its receiver down")

    def installed(self, version: VersionInfo) -> None:
        with self._changed:
            if not self._held:
                raise Error("the worker left the gate before the weights were there")
            self._version = version
            self._changed.notify_all()
            # No deadline of its own: the worker answers when its load ends, however it ends, or leaves the gate by its own.
            self._changed.wait_for(lambda: self._version is None or not self._held)
            if self._version is not None:
                self._version = None
                raise Error("the worker left the gate before it loaded")
            if self._failed is not None:
                raise self._failed

    def resume(self) -> None:
        with self._changed:
            self._wanted, self._released = False, True
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closed = self._released = True
            self._changed.notify_all()

    # -- the worker's thread

    def await_round(self, timeout_s: float) -> None:
        """Until a version is staged, verified and decided."""
        with self._changed:
            self._until(lambda: self._wanted, timeout_s, "no version was decided for this rank")

    def hold(self, timeout_s: float) -> VersionInfo:
        """Stands in the gate until it is opened; loads meanwhile. What was installed."""
        deadline = time.monotonic() + timeout_s
        installed = None
        with self._changed:
            if not self._wanted:
                raise InvalidError("finish_weight_update without a decided version: call update_weights first")
            self._held = True
            self._changed.notify_all()
            try:
                while not self._released:
                    self._until(lambda: self._released or self._version is not None, deadline - time.monotonic(), "the round did not end")
                    if self._version is None:
                        continue
                    version, failed = self._version, None
                    self._changed.release()
                    try:
                        self._load(version)
                    except BaseException as e:  # noqa: BLE001 - told to both sides
                        log.exception("loading version %d failed", version.number)
                        failed = e
                    finally:
                        self._changed.acquire()
                    self._version, self._failed = None, failed
                    self._changed.notify_all()
                    if failed is not None:
                        raise Error(f"loading version {version.number} failed, this rank is fenced: {failed}")
                    installed = version
            finally:
                self._held = False
                self._changed.notify_all()
        if installed is None:
            raise Error("the round ended without an installation on this rank; its former weights serve on")
        return installed


class RefitWeightTransferEngine(WeightTransferEngine[RefitInitInfo, RefitUpdateInfo]):
    """``init_transfer_engine`` joins the job; a thread then receives versions beside generation. ``update_weights``
    waits for the decision and touches nothing; everything that changes the model happens in ``finish_weight_update``.
    A round that fails before its decision never comes here: the old weights serve on."""

    init_info_cls = RefitInitInfo
    update_info_cls = RefitUpdateInfo
    supports_draft_weight_update = False

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._receiver: Receiver | None = None
        self._until = 0.0  # end of the update in hand, on the monotonic clock

    # -- vLLM's interface

    def init_transfer_engine(self, init_info: RefitInitInfo) -> None:
        if vllm.__version__.split("+")[0] not in VERSIONS and not init_info.untested_version:
            raise UnsupportedError(f"vLLM {vllm.__version__} was not tried with Refit (tried: {', '.join(VERSIONS)}); init_info.untested_version takes the risk")
        if not init_info.address:
            raise InvalidError("init_info.address is missing: the coordinator's address")
        if not 0 <= init_info.replica < init_info.replicas:
            raise InvalidError(f"init_info.replica must be in [0, {init_info.replicas}), not {init_info.replica}")
        self.shutdown()
        layout, rank = self._layout(init_info)
        self._gate = _Gate(self._load)
        receiver = Receiver(init_info.address, layout, rank, engine=self._gate, threads=init_info.threads, join_timeout_s=init_info.join_timeout_s)
        try:
            self._weights = {p.name: p.torch() for p in receiver.parameters}
            self._target = Model(self.model, self.model_config, {name: (tuple(t.shape), t.dtype) for name, t in self._weights.items()})
        except BaseException:
            receiver.close()
            raise
        receiver.start()
        self._receiver = receiver

    def start_weight_update(self) -> None:
        self._answer(lambda: self._joined().check(hooks=False))  # the gate tells the engine what it raised

    def receive_weights(self, update_info: RefitUpdateInfo) -> None:
        self._until = time.monotonic() + update_info.timeout_s
        self._answer(lambda: self._joined() and self._gate.await_round(update_info.timeout_s))

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self.receive_weights(self.parse_update_info(update_info))

    def finish_weight_update(self) -> None:
        self._answer(lambda: self._joined() and self._gate.hold(self._until - time.monotonic()))

    def shutdown(self) -> None:
        if self._receiver is not None:
            self._gate.close()
            self._receiver.close()
            self._receiver = None

    # -- inside

    def _joined(self) -> Receiver:
        if self._receiver is None:
            raise InvalidError("init_weight_transfer_engine was not called, or failed")
        return self._receiver

    def _answer(self, call: Callable[[], Any]) -> None:
        """With several ranks, vLLM reads only the first rank's error and takes the others' for answers to later calls.
        There the coordinator alone tells: it knows what every rank did."""
        try:
            call()
        except Error as e:
            if self.parallel_config.world_size == 1:
                raise
            log.error("%s", e)

    def _layout(self, init_info: RefitInitInfo) -> tuple[Layout, int]:
        p = self.parallel_config
        if p.pipeline_parallel_size != 1:
            raise UnsupportedError(f"pipeline_parallel_size {p.pipeline_parallel_size}: Refit's vLLM layouts have no pipeline stages")
        if getattr(p, "enable_eplb", False):
            raise UnsupportedError("enable_eplb moves experts between ranks under the weights: switch it off")
        tp, dp = p.tensor_parallel_size, p.data_parallel_size
        ep = tp * dp if p.enable_expert_parallel else 1
        layout = Layout.from_model(init_info.model or self.model_config.model, f"vllm:tp={tp},dp={dp},ep={ep},replicas={init_info.replicas}")
        rank = init_info.replica * tp * dp + p.data_parallel_index * tp + p.rank % tp
        if math.prod((init_info.replicas, tp, dp)) != layout.world:
            raise InvalidError(f"the layout has {layout.world} ranks, the engines {init_info.replicas} x {tp * dp}")
        return layout, rank

    def _load(self, version: VersionInfo) -> None:
        began = time.perf_counter()
        try:
            self._target.install(self._weights)
        except BaseException:
            self._target.restore()
            raise
        log.info("version %d of step %d loaded in %.3f s", version.number, version.step, time.perf_counter() - began)
