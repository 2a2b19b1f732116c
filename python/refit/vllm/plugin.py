"""The worker's side: vLLM's weight-transfer interface over a Refit receiver."""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass, field
from typing import Any, Callable

import vllm
from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo

from .._errors import Error, InvalidError, UnsupportedError
from .._gate import Gate
from ..layout import Layout
from ..members import Receiver, VersionInfo
from .adapter import Adapter, adapter_layout
from .layouts import choose_layout, traced_weights
from .loading import Model

log = logging.getLogger("refit.vllm")

# Releases whose reload session this was run with.
VERSIONS = ("0.32.0",)


@dataclass
class RefitInitInfo(WeightTransferInitInfo):
    """address: of the job's coordinator. replica of replicas: which instance this engine is. model: a checkpoint
    directory or configuration that the layout is made from (default: the one that the engine was started with).
    layout: "rules"; "traced": from the engine's own loader (model must be a checkpoint directory), compared with the rules
    where they cover the model; "auto": rules, or traced where none cover it. trace_timeout_s: for the process that traces.
    adapter: the versions are those of a LoRA adapter, and the base weights stay as they are: what
    ``refit.trainers.lora.adapter_info()`` told, with `id`, its number in requests (default 1)."""

    address: str = ""
    replica: int = 0
    replicas: int = 1
    model: str = ""
    layout: str = "auto"
    trace_timeout_s: float = 600
    threads: int = 1
    join_timeout_s: float = 60
    adapter: dict[str, Any] = field(default_factory=dict)
    untested_version: bool = False


@dataclass
class RefitUpdateInfo(WeightTransferUpdateInfo):
    """timeout_s: until the round's decision has reached this rank and the round has ended here."""

    timeout_s: float = 60


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
        self._target: Model | Adapter | None = None
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
        self._gate = Gate(self._load)
        receiver = Receiver(init_info.address, layout, rank, engine=self._gate, threads=init_info.threads, join_timeout_s=init_info.join_timeout_s)
        try:
            if init_info.adapter:
                self._weights = {t.name: t.torch() for t in receiver.tensors}
                self._target = Adapter(self.model, init_info.adapter)
            else:
                self._weights = {p.name: p.torch() for p in receiver.parameters} or traced_weights(receiver, self.model)
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
            if isinstance(self._target, Adapter):
                self._target.close()

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
        model = init_info.model or self.model_config.model
        dtype = str(self.model_config.dtype).removeprefix("torch.")
        if init_info.adapter:
            layout = adapter_layout(init_info.adapter, init_info.replicas * tp * dp)
        else:
            layout = choose_layout(model, tp, dp, ep, init_info.replicas, dtype, init_info.layout, init_info.trace_timeout_s)
        rank = init_info.replica * tp * dp + p.data_parallel_index * tp + p.rank % tp
        if math.prod((init_info.replicas, tp, dp)) != layout.world:
            raise InvalidError(f"the layout has {layout.world} ranks, the engines {init_info.replicas} x {tp * dp}")
        return layout, rank

    def _load(self, version: VersionInfo) -> None:
        began = time.perf_counter()
        assert self._target is not None
        try:
            self._target.install(self._weights)
        except BaseException:
            self._target.restore()
            raise
        log.info("version %d of step %d loaded in %.3f s", version.number, version.step, time.perf_counter() - began)
