"""From a training configuration to a synchronizer: the names that loops know, over the same tables as ``refit check``."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import json
import logging
import os
import threading
import time
from typing import Any, Callable, Iterable, Mapping, Sequence

from . import _native
from ._errors import DeadlineError, Error, InvalidError, PeerLostError, UnsupportedError
from .coordinator import Coordinator, SyncReport, WeightSynchronizer
from .driver import EngineWeightSynchronizer

log = logging.getLogger("refit")


class Decision:
    """What a training configuration means: which synchronizer, over what, in which phases, or why it is refused.

    config: a YAML file's path or a mapping; sets: ``path=value`` over it. InvalidError listing every key that is wrong. The
    attributes are those of ``refit check --json``, as a mapping in `facts`.
    """

    def __init__(self, config: str | os.PathLike[str] | Mapping[str, Any], *, sets: Iterable[str] = (), algorithm: str | None = None, max_colocated_worker_groups: int = 0) -> None:
        path, text = ("", json.dumps(config, default=_plain)) if isinstance(config, Mapping) else (os.fspath(config), "")
        self._native = _native.Decision(path, text, list(sets), algorithm or "", max_colocated_worker_groups)
        self.facts: dict[str, Any] = json.loads(self._native.json())

    def check(self) -> None:
        """InvalidError with every row that refuses and its way out; UnsupportedError with what the row waits for."""
        d = self.facts
        if not d["allowed"]:
            raise InvalidError("refused by " + "; ".join(f"{r['row']}: {r['reason']} [{', '.join(r['paths'])}], way out: {r['way_out']}" for r in d["refusals"]))
        if not d["available"]:
            raise UnsupportedError(f"{d['synchronizer']} over {d['transport']}: {d['available_reason']}")
        if unbuilt := [key for key in d["unbuilt"] if key != "refit.compare_only"]:
            raise UnsupportedError(f"not built yet; leave the default: {', '.join(unbuilt)}")

    def judge_kv_scales(self, any_scales: bool) -> str:
        """``none``, ``carried``, ``ignored`` or ``refused``."""
        return self._native.judge_kv_scales(any_scales)

    def __repr__(self) -> str:
        return f"Decision({self.facts['synchronizer'] or 'none'}, {self.facts['transport']}, allowed={self.facts['allowed']}, available={self.facts['available']})"


def _plain(value: Any) -> Any:
    """Nodes of configuration libraries as what JSON knows."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence):
        return list(value)
    return str(value)


class _Flag(int):
    """True or false, as a property and as a call: loops write both."""

    def __call__(self) -> bool:
        return bool(self)

    def __repr__(self) -> str:
        return repr(bool(self))


class SyncMetrics(dict[str, Any]):
    """What a sync of a preset returns: ``outcome``, ``version``, ``seconds``, ``pause_seconds``, ``phases`` (name -> seconds),
    ``kv_scales_ignored`` (how many). `report`: the round's own."""

    report: SyncReport


# phase -> who does it, by which method, with what
_PHASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "suspend": ("generation", "suspend_for_refit", {}),
    "offload_before": ("policy", "offload_before_refit", {}),
    "prepare_weights": ("generation", "prepare_for_generation", {"tags": ["weights"]}),
    "resume_weights": ("generation", "prepare_for_generation", {"tags": ["weights"]}),
    "offload_after": ("policy", "offload_after_refit", {}),
    "prepare_kv_cache": ("generation", "prepare_for_generation", {"tags": ["kv_cache"]}),
    "resume_kv_cache": ("generation", "prepare_for_generation", {"tags": ["kv_cache"]}),
    "resume": ("generation", "resume_after_refit", {}),
}


class PresetWeightSynchronizer(WeightSynchronizer):
    """The lifecycle of one row of docs/choose-a-transport.md, round the rounds of an EngineWeightSynchronizer.

    Stale from the start of a sync until all of it ended well. After a failure the rest of the work is skipped, the clean-up
    half runs in full, and the first error is raised; later ones are logged. Every worker's result counts: a call of policy or
    generation may return a value or a list of them, futures among them, and fails when one raises or is False.
    """

    def __init__(self, decision: Decision, engines: EngineWeightSynchronizer, policy: Any, generation: Any, *, phase_timeout_s: float = 600) -> None:
        super().__init__(engines.coordinator)
        self.decision, self.engines, self.policy, self.generation = decision, engines, policy, generation
        self.phase_timeout_s = phase_timeout_s
        self._unfinished = False
        self._unproven: set[int] = set()  # engines whose weights are asleep or empty until this sync installs
        self._one = threading.Lock()
        self._phases = names = [] if engines.compare_only else [p.removeprefix("always: ") for p in decision.facts["phases"]]
        missing = [f"{who}.{method}() for {name}" for name in names if name in _PHASES for who, method, _ in [_PHASES[name]] if not callable(getattr(getattr(self, who), method, None)) and not self._by_engines(name)]
        if missing:
            raise InvalidError(f"{decision.facts['synchronizer']} drives phases that nobody offers: {', '.join(missing)}")

    def _by_engines(self, phase: str) -> bool:
        """Does each engine do it itself, where the generation object does not?"""
        return phase in ("resume_weights", "resume_kv_cache") and all(callable(getattr(e, "resume_memory", None)) for e in self.engines.engines)

    def init_communicator(self) -> None:
        """Every engine and every trainer rank joins. A policy with ``join_refit(address)`` is told where; others know it from
        ``coordinator.address``."""
        join = getattr(self.policy, "join_refit", None)
        if join is None:
            self.engines.init_communicator()
            return
        failed: list[BaseException] = []

        def tell() -> None:
            try:
                self._settled("policy.join_refit", join(self.coordinator.address))
            except BaseException as e:  # noqa: BLE001 - raised below
                failed.append(e)

        told = threading.Thread(target=tell, name="refit-join", daemon=True)
        told.start()
        try:
            self.engines.init_communicator()
        except Error as e:
            told.join(0)
            raise (failed[0] if failed else e) from None
        told.join(self.phase_timeout_s)
        if told.is_alive():
            raise DeadlineError(f"the trainer ranks did not join within {self.phase_timeout_s} s", stage="join_refit")
        if failed:
            raise failed[0]

    @property
    def is_stale(self) -> _Flag:  # type: ignore[override]
        """Reads as a property and as a call."""
        return _Flag(self._unfinished or self.engines.is_stale())

    def sync_weights(self, kv_scales: Mapping[str, Any] | None = None, timer: Any = None, step: int | None = None) -> SyncMetrics:  # type: ignore[override]
        """One sync. kv_scales: judged before anything changes; timer: its ``time(name)`` is entered for each phase."""
        with self._one:
            walk = _native.Phases(self.decision._native)
            self._unproven.clear()
            metrics = SyncMetrics(phases={}, kv_scales_ignored=0)
            first: BaseException | None = None
            while (phase := walk.running()) is not None:
                self._unfinished = self._unfinished or phase != "judge_kv_scales"
                began = time.monotonic()
                try:
                    with timer.time(f"refit/{phase}") if timer is not None else contextlib.nullcontext():
                        self._run(phase, metrics, kv_scales, step)
                except BaseException as e:  # noqa: BLE001 - the first one is raised when the clean-up half has run
                    if first is None:
                        first = e
                    else:
                        log.error("%s failed too, after %s: %s", phase, walk.failed(), e)
                    walk.ended(False)
                else:
                    walk.ended(True)
                metrics["phases"][phase] = time.monotonic() - began
            if first is not None:
                raise first
            self._unfinished = False
            return metrics

    async def sync_weights_async(self, kv_scales: Mapping[str, Any] | None = None, timer: Any = None, step: int | None = None) -> SyncMetrics:  # type: ignore[override]
        """sync_weights() while the event loop goes on."""
        return await asyncio.to_thread(self.sync_weights, kv_scales, timer, step)

    def _run(self, phase: str, metrics: SyncMetrics, kv_scales: Mapping[str, Any] | None, step: int | None) -> None:
        if phase == "judge_kv_scales":
            self._judge(metrics, kv_scales)
            if {"resume_weights", "prepare_weights"} & set(self._phases):
                self._unproven = set(range(len(self.engines.engines)))
        elif phase == "transfer":
            try:
                metrics.report = report = self.engines.sync_weights(step)
            finally:
                self._unproven = {i for i in self._unproven if not self.engines.installed(i)}
            metrics |= {"outcome": report.outcome, "version": report.version.number, "seconds": report.seconds, "pause_seconds": max(self.engines.pause_seconds.values(), default=0.0)}
        elif phase == "check_workers":
            report = metrics.report
            if not report.all_applied or report.missing:
                raise PeerLostError(f"not every worker has version {report.version.number}: {', '.join(report.missing) or report.outcome}", report=report)
        elif self.engines.compare_only:
            return  # nothing is installed: no phase of anybody changes
        elif phase == "invalidate_caches":
            # Each engine's own were reset, and that verified, before its version was loaded.
            if callable(invalidate := getattr(self.generation, "invalidate_kv_cache", None)):
                self._settled("generation.invalidate_kv_cache", self._bounded("generation.invalidate_kv_cache", invalidate))
        else:
            who, method, arguments = _PHASES[phase]
            if phase in ("resume_weights", "resume_kv_cache"):
                self._wake(phase, arguments["tags"])
                return
            if phase == "prepare_kv_cache":
                self._hold_unproven()
            call = getattr(getattr(self, who), method, None)
            if call is not None:
                self._settled(f"{who}.{method}", self._bounded(f"{who}.{method}", lambda: call(**arguments)))

    def _wake(self, phase: str, tags: list[str]) -> None:
        """Memory that a memory saver took comes back, and weights come back empty: an engine that has not this sync's version
        is paused first, and stays so until a commit. One that cannot be paused stays asleep."""
        failures = self._paused_unproven()
        call = getattr(self.generation, "prepare_for_generation", None)
        if call is None:
            for i, engine in enumerate(self.engines.engines):
                try:
                    if i not in failures:
                        engine.resume_memory(tags, self.phase_timeout_s)  # type: ignore[attr-defined]
                except Exception as e:  # noqa: BLE001 - the first one is raised below
                    failures[i] = e
        elif not failures:  # it wakes all of them or none
            self._settled("generation.prepare_for_generation", self._bounded("generation.prepare_for_generation", lambda: call(tags=tags)))
        self._raise_first(phase, failures)

    def _hold_unproven(self) -> None:
        """A colocated vLLM that slept at level 2 has lost its weights, and nothing tells the level: before its cache comes back,
        with which it could generate, an engine that has not this sync's version is paused until a commit."""
        self._raise_first("prepare_kv_cache", self._paused_unproven())

    def _paused_unproven(self) -> dict[int, Exception]:
        failures: dict[int, Exception] = {}
        for i in sorted(self._unproven):
            try:
                self.engines.hold(i)
            except Exception as e:  # noqa: BLE001 - told by the caller
                failures[i] = e
        return failures

    def _raise_first(self, phase: str, failures: Mapping[int, Exception]) -> None:
        if failures:
            for i, other in list(failures.items())[1:]:
                log.error("%s: engine %s: %s", phase, self.engines.engines[i].name, other)
            raise next(iter(failures.values()))

    def _judge(self, metrics: SyncMetrics, kv_scales: Mapping[str, Any] | None) -> None:
        verdict = self.decision.judge_kv_scales(bool(kv_scales))
        if verdict == "carried":  # by the transport; no engine adapter has a place for them
            verdict = "ignored" if self._option("refit.kv_scales_unsupported") == "ignore" else "refused"
        if verdict == "refused":
            raise UnsupportedError(f"kv_scales ({len(kv_scales or ())}) came, and {self.decision.facts['synchronizer']} cannot install them in this build: leave them out, or set refit.kv_scales_unsupported: ignore", stage="judge_kv_scales")
        if verdict == "ignored":
            metrics["kv_scales_ignored"] = len(kv_scales or ())
            log.warning("%d kv_scales are ignored, as refit.kv_scales_unsupported says", len(kv_scales or ()))

    def _option(self, path: str) -> str:
        return next(k["value"] for k in self.decision.facts["keys"] if k["path"] == path)

    def _bounded(self, what: str, call: Callable[[], Any]) -> Any:
        """The call's result, at most phase_timeout_s later."""
        done: list[Any] = []
        failed: list[BaseException] = []

        def run() -> None:
            try:
                done.append(call())
            except BaseException as e:  # noqa: BLE001 - raised below
                failed.append(e)

        thread = threading.Thread(target=run, name=f"refit-{what}", daemon=True)
        thread.start()
        thread.join(self.phase_timeout_s)
        if thread.is_alive():
            raise DeadlineError(f"{what}() did not return within {self.phase_timeout_s} s", stage=what)
        if failed:
            raise failed[0]
        return done[0]

    def _settled(self, what: str, results: Any) -> None:
        """Waits for every worker's result, then raises the first failure."""
        deadline = time.monotonic() + self.phase_timeout_s
        failures: list[BaseException] = []
        for worker, result in enumerate(results if isinstance(results, (list, tuple)) else [results]):
            try:
                if _settle(result, max(0.0, deadline - time.monotonic()), worker, what) is False:
                    raise PeerLostError(f"{what}() says False", peer=f"worker {worker}", stage=what)
            except (TimeoutError, concurrent.futures.TimeoutError) as e:  # two classes in Python 3.10
                failures.append(e if isinstance(e, Error) else DeadlineError(f"{what}() did not end within {self.phase_timeout_s} s", peer=f"worker {worker}", stage=what))
            except Exception as e:  # noqa: BLE001 - raised below
                failures.append(e)
        if failures:
            for other in failures[1:]:
                log.error("%s: %s", what, other)
            raise failures[0]

    def mark_stale(self) -> None:
        self.engines.mark_stale()

    def shutdown(self) -> None:
        self.engines.shutdown()


def _settle(result: Any, timeout_s: float, worker: int, what: str) -> Any:
    """A value, or what a future becomes: concurrent.futures, or Ray's references where Ray made them."""
    if type(result).__module__.split(".")[0] == "ray":
        from .ray import settled

        (value,), failures = settled([result], [f"worker {worker}"], what, timeout_s)
        if failures:
            raise failures[0]
        return value
    if callable(wait := getattr(result, "result", None)):
        return wait(timeout_s)
    return result


class IPCWeightSynchronizer(PresetWeightSynchronizer):
    """Colocated vLLM."""


class HTTPWeightSynchronizer(PresetWeightSynchronizer):
    """Colocated SGLang."""


class CollectiveWeightSynchronizer(PresetWeightSynchronizer):
    """vLLM on devices of its own, full weights."""


class SGLangCollectiveWeightSynchronizer(PresetWeightSynchronizer):
    """SGLang on devices of its own, full weights."""


class SparseWeightSynchronizer(PresetWeightSynchronizer):
    """vLLM behind a narrow link: what changed."""


class CheckpointEngineWeightSynchronizer(PresetWeightSynchronizer):
    """vLLM on devices of its own, full weights over NIXL; every rank reads just its shards."""


_PRESETS = {c.__name__: c for c in (IPCWeightSynchronizer, HTTPWeightSynchronizer, CollectiveWeightSynchronizer, SGLangCollectiveWeightSynchronizer, SparseWeightSynchronizer, CheckpointEngineWeightSynchronizer)}


def _world(of: Any, what: str) -> int:
    """Ranks of a cluster or of a group of workers: a number, or world_size as a value or a method."""
    found = of if isinstance(of, int) else getattr(of, "world_size", None)
    found = found() if callable(found) else found
    if not isinstance(found, int) or isinstance(found, bool) or found < 1:
        raise InvalidError(f"{what} does not tell its number of ranks: give a number, or an object with world_size")
    return found


def _engines_of(generation: Any) -> list[Any]:
    found = getattr(generation, "refit_engines", generation)
    found = found() if callable(found) else found
    engines = list(found) if isinstance(found, (list, tuple)) else [found]
    lacking = [m for e in engines for m in ("init", "pause", "start", "update", "finish", "label", "resume") if not callable(getattr(e, m, None))]
    if lacking or not engines:
        raise InvalidError(f"generation offers no engines: it must be a refit.driver.Engine, a list of them, or have refit_engines (missing: {', '.join(dict.fromkeys(lacking)) or 'any'})")
    return engines


def _sources(policy: Any, train_cluster: Any) -> int:
    if train_cluster is not None:
        return _world(train_cluster, "train_cluster")
    return _world(policy, "policy (without train_cluster)")


def create_weight_synchronizer(*arguments: Any, **named: Any) -> PresetWeightSynchronizer:
    """The synchronizer that a configuration asks for, ready for init_communicator().

    Two forms::

        create_weight_synchronizer(config, policy, generation, train_cluster=…, inference_cluster=…, inference_world_size=…, algorithm=…)
        create_weight_synchronizer(policy, generation, generation_backend, colocated, *, train_cluster, inference_cluster,
                                   inference_world_size, refit_buffer_size_gb)

    config: a mapping or the path of a YAML file, with the keys of docs/choose-a-transport.md. generation: a
    ``refit.driver.Engine``, a list of them, or an object with ``refit_engines``; policy and generation also offer the methods
    of the phases that the row drives (offload_before_refit, prepare_for_generation(tags=…), …). Clusters tell ``world_size``.
    coordinator_options: of Coordinator, for what no key says (join_timeout_s, gate_timeout_s, runtime_dir, …);
    engine_options: of the synchronizer of the engines (in_flight, init_info, …).

    InvalidError: keys that are wrong, or the rows that refuse with their ways out; UnsupportedError: what is allowed and waits
    for a mover or an adapter, with that reason. The choice is logged: nothing is replaced in silence.
    """
    if arguments and isinstance(arguments[0], (Mapping, str, os.PathLike)) or "config" in named:
        return _from_config(*arguments, **named)
    return _from_keywords(*arguments, **named)


def _from_keywords(policy: Any, generation: Any, generation_backend: str, colocated: bool, *, refit_buffer_size_gb: float | None = None, **named: Any) -> PresetWeightSynchronizer:
    policy_keys: dict[str, Any] = {"generation": {"backend": generation_backend, "colocated": {"enabled": bool(colocated)}, "refit_transport": None}}
    if refit_buffer_size_gb is not None:
        policy_keys["refit_buffer_size_gb"] = refit_buffer_size_gb
    return _from_config({"policy": policy_keys}, policy, generation, **named)


def _from_config(
    config: Any,
    policy: Any,
    generation: Any,
    *,
    train_cluster: Any = None,
    inference_cluster: Any = None,
    inference_world_size: int | None = None,
    algorithm: str | None = None,
    coordinator_options: Mapping[str, Any] | None = None,
    engine_options: Mapping[str, Any] | None = None,
) -> PresetWeightSynchronizer:
    decision = Decision(config, algorithm=algorithm)
    decision.check()
    d = decision.facts
    if "train_cluster" in d["needs"] and (train_cluster is None or (inference_world_size is None and inference_cluster is None)):
        raise InvalidError(f"{d['synchronizer']}: generation on devices of its own needs train_cluster, and inference_world_size or inference_cluster")
    engines = _engines_of(generation)
    options = dict(d["options"])
    buffer_gb = next((k["value"] for k in d["keys"] if k["path"] == "policy.refit_buffer_size_gb"), "null")
    if d["row"] in ("ipc", "http") and buffer_gb != "null":
        options["staging_bytes"] = int(float(buffer_gb) * 1e9)
        options["bucket_bytes"] = min(options["bucket_bytes"], options["staging_bytes"])
    options["nixl_params"] = [f"{key}={value}" for key, value in options["nixl_params"]]
    if d["mover"] == "nixl":
        _fit_nixl(options, float(next(k["value"] for k in d["keys"] if k["path"] == _NIXL_RATIO)))
    if d["mover"] == "shm":  # nothing of it goes over a network
        options |= {"port_range": "", "advertise_address": ""}
    coordinator = Coordinator(_sources(policy, train_cluster), len(engines), _target_ranks(d, engines, generation, inference_cluster, inference_world_size), transport=d["mover"], **{**options, **(coordinator_options or {})})
    try:
        synchronizer: type[EngineWeightSynchronizer]
        if d["backend"] == "sglang":
            from .sglang import SGLangWeightSynchronizer as synchronizer
        else:
            from .vllm import VllmWeightSynchronizer as synchronizer
        steered = synchronizer(coordinator, engines, compare_only=d["compare_only"], **(engine_options or {}))
        made = _PRESETS[d["synchronizer"]](decision, steered, policy, generation)
    except BaseException:
        coordinator.shutdown()
        raise
    log.info("%s for %s: %s%s", d["synchronizer"], d["row"], f"transport {d['mover']}", f" ({d['available_reason']})" if d["available_reason"] else "")
    return made


_NIXL_RATIO = "policy.generation.refit_cfg.nixl.update_weights_bucket_memory_ratio"


def _fit_nixl(options: dict[str, Any], ratio: float, free_bytes: int | None = None) -> None:
    """Staging takes at most this share of the host's free memory; a bucket at most half of that, since one is installed while
    the next is read. A cgroup's limit is not looked at."""
    if free_bytes is None:
        with open("/proc/meminfo") as f:
            free_bytes = next((int(line.split()[1]) << 10 for line in f if line.startswith("MemAvailable")), None)
        if free_bytes is None:
            raise UnsupportedError(f"{_NIXL_RATIO}: /proc/meminfo has no MemAvailable")
    room = int(ratio * free_bytes)
    if room < 2 << 20:
        raise InvalidError(f"{_NIXL_RATIO}: {ratio} of {free_bytes} free bytes leaves a bucket under 1 MiB: raise it")
    options["staging_bytes"] = min(options["staging_bytes"], room)
    options["bucket_bytes"] = min(options["bucket_bytes"], options["staging_bytes"] // 2)


def _target_ranks(d: Mapping[str, Any], engines: Sequence[Any], generation: Any, inference_cluster: Any, inference_world_size: int | None) -> int:
    """Ranks of one engine that take part."""
    vias = {getattr(e, "via", "loader") for e in engines}
    if len(vias) > 1:
        raise InvalidError(f"the engines take weights in different ways ({', '.join(sorted(vias))}): one job has one")
    if vias != {"loader"}:
        return 1  # what receives is the driver's side of the engine
    if inference_world_size is None and inference_cluster is not None:
        inference_world_size = _world(inference_cluster, "inference_cluster")
    if inference_world_size is None and callable(tells := getattr(generation, "get_inference_world_size", None)):
        inference_world_size = int(tells())
    if inference_world_size is None:
        return 1
    if inference_world_size % len(engines):
        raise InvalidError(f"inference_world_size is {inference_world_size}, which {len(engines)} engines do not share evenly")
    return inference_world_size // len(engines)
