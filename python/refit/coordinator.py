"""The part of a job that decides, and what a training loop drives."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any, Iterable

from . import _native
from ._errors import Error, InvalidError
from .layout import Layout

log = logging.getLogger("refit")

SyncReport = _native.SyncReport
VersionInfo = _native.VersionInfo

_COMMIT = {"rolling": False, "barrier": True}
_ON_LOSS = {"fail": False, "continue": True}


def _choice(option: str, value: str, choices: dict[str, bool]) -> bool:
    if value not in choices:
        raise InvalidError(f"{option} must be one of {', '.join(choices)}, not '{value}'")
    return choices[value]


class Coordinator:
    """Decides a job's rounds; embedded in the process that drives it (the driver, or rank 0 of a trainer).

    source_ranks: trainer ranks; targets: engine replicas; target_ranks: ranks of one replica. The other options are
    keys of the ``refit:`` section of a configuration, with its defaults; encoding: ``raw`` (all bytes of every version),
    ``xor`` or ``overwrite`` (what changed; over transports that send, such as ``tcp``). nixl_params: ``KEY=VALUE`` each. Members are told `address`; so is
    ``refit status``. It listens in a private directory of this host (`runtime_dir`: where that is made).
    """

    def __init__(
        self,
        source_ranks: int,
        targets: int = 1,
        target_ranks: int = 1,
        *,
        transport: str = "shm",
        encoding: str = "raw",
        runtime_dir: str = "",
        bucket_bytes: int = 32 << 20,
        staging_bytes: int = 256 << 20,
        proof_every: int = 10,
        commit: str = "rolling",
        on_target_loss: str = "fail",
        min_targets: int = 1,
        allow_cast: Iterable[str] = (),
        snapshot: bool = False,
        security_bulk: str = "mac",
        port_range: str = "",
        advertise_address: str = "",
        nixl_backend: str = "UCX",
        nixl_params: Iterable[str] = (),
        nixl_release: bool = False,
        stall_timeout_s: float = 30,
        total_timeout_s: float = 600,
        join_timeout_s: float = 60,
        gate_timeout_s: float = 30,
    ) -> None:
        options = _native.CoordinatorOptions()
        for name, count in (("source_ranks", source_ranks), ("targets", targets), ("target_ranks", target_ranks)):
            if count < 1:
                raise InvalidError(f"{name} must be at least 1")
        options.source_ranks = source_ranks
        options.target_instances = targets
        options.target_ranks = target_ranks
        options.transport = transport
        options.encoding = encoding
        options.runtime_dir = runtime_dir
        options.bucket_bytes = bucket_bytes
        options.staging_bytes = staging_bytes
        options.proof_every = proof_every
        options.barrier = _choice("refit.commit", commit, _COMMIT)
        options.continue_on_loss = _choice("refit.on_target_loss", on_target_loss, _ON_LOSS)
        options.min_targets = min_targets
        options.allow_cast = list(allow_cast)
        options.snapshot = snapshot
        options.security_bulk = security_bulk
        options.port_range = port_range
        options.advertise_address = advertise_address
        options.nixl_backend = nixl_backend
        options.nixl_params = list(nixl_params)
        options.nixl_release = nixl_release
        options.stall_timeout_s = stall_timeout_s
        options.total_timeout_s = total_timeout_s
        options.join_timeout_s = join_timeout_s
        options.gate_timeout_s = gate_timeout_s
        self.gate_timeout_s, self.on_target_loss = gate_timeout_s, on_target_loss
        self._native = _native.Coordinator(options)
        log.info("coordinator of %d source ranks and %d x %d target ranks at %s", source_ranks, targets, target_ranks, self.address)

    @classmethod
    def of(cls, source: Layout, target: Layout, **options: Any) -> "Coordinator":
        """For all ranks of two layouts."""
        return cls(source.world, target.instances, target.world // target.instances, **options)

    @property
    def address(self) -> str:
        """What members are told."""
        return self._native.address()

    def init_communicator(self) -> None:
        """Waits until every member has joined and planned. DeadlineError names who is missing; a plan that a member
        refused is raised with its reason."""
        self._native.init_communicator()

    def mark_stale(self) -> None:
        """The trainer's weights have changed."""
        self._native.mark_stale()

    def is_stale(self) -> bool:
        """True before the first sync, and from mark_stale() or the start of a round until every member has applied
        weights that were sealed at or after the last mark."""
        return self._native.is_stale()

    def sync_weights(self, step: int | None = None) -> SyncReport:
        """Brings every target to the newest published weights, or to those of `step`.

        Raises the round's first error, naming peer, stage, bucket and tensor, when it did not commit everywhere; its
        `report` tells the outcome as it is. Staleness stays set then, and the next call repairs first.
        """
        try:
            report = self._native.sync_weights(step)
        except Error as e:
            log.warning("sync %s: %s", e.report.outcome if e.report else "refused", e)
            raise
        log.info("sync %s: version %d of step %d in %.3f s", report.outcome, report.version.number, report.version.step, report.seconds)
        return report

    def verify(self, timeout_s: float = 30) -> dict[str, Any]:
        """Asks every member to prove what it holds."""
        return json.loads(self._native.verify(timeout_s))

    def status(self) -> dict[str, Any]:
        """Versions, states and rates by member."""
        return json.loads(self._native.status())

    def shutdown(self) -> None:
        """Releases everything. Safe to call twice and after a failure."""
        self._native.shutdown()

    def __enter__(self) -> "Coordinator":
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()


class WeightSynchronizer:
    """The five calls of a training loop, over a coordinator that lives in this process.

    init_communicator() once, mark_stale() after every step, ``if is_stale(): sync_weights()`` before a rollout,
    shutdown() at the end. Every call ends by a timeout of the coordinator's options.
    """

    def __init__(self, coordinator: Coordinator) -> None:
        self.coordinator = coordinator

    def init_communicator(self) -> None:
        self.coordinator.init_communicator()

    def mark_stale(self) -> None:
        self.coordinator.mark_stale()

    def is_stale(self) -> bool:
        return self.coordinator.is_stale()

    def sync_weights(self, step: int | None = None) -> SyncReport:
        return self.coordinator.sync_weights(step)

    def shutdown(self) -> None:
        self.coordinator.shutdown()

    async def init_communicator_async(self) -> None:
        """init_communicator() while the event loop goes on."""
        await asyncio.to_thread(self.init_communicator)

    async def sync_weights_async(self, step: int | None = None) -> SyncReport:
        """sync_weights() while the event loop goes on."""
        return await asyncio.to_thread(self.sync_weights, step)

    def __enter__(self) -> "WeightSynchronizer":
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
