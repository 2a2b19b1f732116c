"""The driver's side: running SGLang engines, steered round each refit."""

from __future__ import annotations

import base64
import contextlib
import importlib
import itertools
import logging
import math
import pathlib
import pickle
import shutil
import ssl
import tempfile
import time
from typing import Any, Iterator, Sequence

from .._errors import DeadlineError, InvalidError, MismatchError, UnsupportedError
from .._gate import Gate
from .._http import EngineError, HttpClient
from .._whole import whole_layout
from ..driver import Engine, EngineWeightSynchronizer
from ..members import Receiver, VersionInfo
from . import orders

__all__ = ["Engine", "EngineError", "HttpEngine", "LocalEngine", "SGLangWeightSynchronizer"]

log = logging.getLogger("refit.sglang")

# Releases that this was run with.
VERSIONS = ("0.5.23",)
LOADER = "refit.sglang.load"
VIAS = ("loader", "tensor", "distributed", "disk")
_GROUP = "refit"


def buckets(tensors: Sequence[tuple[str, Any]], limit: int) -> Iterator[list[tuple[str, Any]]]:
    """Cuts named tensors into lists of about `limit` bytes. Tensors of one module's parts stay together (``….self_attn``):
    some loaders join two of them and want both in one call."""

    def owner(pair: tuple[str, Any]) -> str:
        return pair[0].rsplit(".", 2)[0]

    held: list[tuple[str, Any]] = []
    size = 0
    for _, group in itertools.groupby(sorted(tensors, key=lambda pair: (owner(pair), pair[0])), owner):
        part = list(group)
        bytes_ = sum(math.prod(t.shape) * t.element_size() for _, t in part)
        if held and size + bytes_ > limit:
            yield held
            held, size = [], 0
        held += part
        size += bytes_
    if held:
        yield held


class _Steps:
    """The steps of a refit over SGLang's endpoints, however they are reached. See HttpEngine for the options."""

    name: str

    def __init__(self, *, via: str = "loader", caches: str = "reset", bucket_bytes: int = 64 << 20, folder: str | None = None, group_backend: str = "gloo", group_address: str = "127.0.0.1") -> None:
        if via not in VIAS:
            raise InvalidError(f"via must be one of {', '.join(VIAS)}, not '{via}'")
        if caches not in ("reset", "keep"):
            raise InvalidError(f"caches must be reset or keep, not '{caches}'")
        if bucket_bytes < 1:
            raise InvalidError("bucket_bytes must be positive")
        self.via, self.caches, self._bucket_bytes = via, caches, bucket_bytes
        self._folder = folder
        self._group_backend, self._group_address = group_backend, group_address
        self.ranks = 0  # of the engine, known once it has joined
        self._sessions: bool | None = None  # has it begin and end? Probed.
        self._numbers = itertools.count(1)
        self._order: dict[str, Any] = {}
        self._receiver: Receiver | None = None
        self._gate: Gate | None = None
        self._weights: list[tuple[str, Any]] = []
        self._group: Any = None
        self._kept: list[pathlib.Path] = []
        self._until = 0.0

    # -- how it is reached

    def _post(self, path: str, body: Any, timeout_s: float, *, text: bool = False, query: dict[str, str] | None = None) -> Any:
        raise NotImplementedError

    def _facts(self, timeout_s: float) -> dict[str, Any]:
        """What the engine says of itself: at least version, model_path and the parallel sizes."""
        raise NotImplementedError

    # -- the endpoints

    def begin(self, timeout_s: float) -> None:
        """Opens a session of weights; nothing where the release has none. One that is open already is taken over."""
        if self._sessions is False:
            return
        try:
            self._post("/begin_weight_update", {}, timeout_s)
        except EngineError as e:
            if self._sessions is None and e.status in (404, 405):
                self._sessions = False
                return
            if "already open" not in e.message:
                raise
        self._sessions = True

    def end(self, timeout_s: float) -> None:
        if self._sessions:
            self._post("/end_weight_update", {}, timeout_s)

    def pause(self, in_flight: str, timeout_s: float) -> None:
        self._acknowledged("/pause_generation", {"mode": in_flight}, timeout_s)

    def resume(self, timeout_s: float) -> None:
        self._acknowledged("/continue_generation", {}, timeout_s)

    def _acknowledged(self, path: str, body: Any, timeout_s: float) -> None:
        said = self._post(path, body, timeout_s)
        if not isinstance(said, dict) or said.get("status") != "ok":
            raise EngineError(f"the answer is not the one of a server that did it: {str(said)[:200]}", peer=self.name, stage=path)

    def reset_caches(self, timeout_s: float) -> None:
        """Asks until the cache was flushed, at most timeout_s: a server refuses while requests run or wait."""
        if self.caches == "keep":
            return
        until = time.monotonic() + timeout_s
        while True:
            left = until - time.monotonic()
            try:
                # The server waits for idleness for the time that it is given, less than we wait for it.
                self._post("/flush_cache", None, left, text=True, query={"timeout": f"{max(0.0, min(5.0, left / 2)):.3f}"})
                return
            except EngineError as e:
                if e.status != 400 or time.monotonic() + 0.1 >= until:
                    raise EngineError(f"the cache was not flushed within {timeout_s:.1f} s: {e.message}", peer=self.name, stage="/flush_cache") from None
                time.sleep(0.05)

    def label(self, version: str, timeout_s: float) -> None:
        # The default would abort every request.
        said = self._post("/update_weight_version", {"new_version": version, "abort_all_requests": False}, timeout_s)
        if not isinstance(said, dict) or said.get("new_version") != version:
            raise EngineError(f"the label is not {version}: {str(said)[:200]}", peer=self.name, stage="/update_weight_version")

    def release_memory(self, tags: Sequence[str], timeout_s: float) -> None:
        """Gives the memory of `tags` (weights, kv_cache, cuda_graph) back; weights are lost. The engine must be idle, and
        have been started with its memory saver."""
        self._post("/release_memory_occupation", {"tags": list(tags)}, timeout_s)

    def resume_memory(self, tags: Sequence[str], timeout_s: float) -> None:
        """Takes it again: empty for weights, which the next refit fills."""
        self._post("/resume_memory_occupation", {"tags": list(tags)}, timeout_s)

    def update_from_ipc(self, zmq_handles: dict[str, str], timeout_s: float) -> None:
        """Lets each worker take weights from the socket of its device (GPU uuid -> path), as checkpoint-engine serves them."""
        self._post("/update_weights_from_ipc", {"zmq_handles": zmq_handles, "flush_cache": False}, timeout_s)

    # -- refit.driver.Engine

    def init(self, info: dict[str, Any], timeout_s: float) -> None:
        until = time.monotonic() + timeout_s
        known = {"address", "replica", "replicas", "ranks", "model", "threads", "untested_version", "compare_only"}
        if unknown := sorted(set(info) - known):
            raise InvalidError(f"init_info has no key {', '.join(unknown)}")
        facts = self._facts(timeout_s)
        version = str(facts.get("version", "unknown"))
        if version.split("+")[0] not in VERSIONS and not info.get("untested_version"):
            raise UnsupportedError(f"SGLang {version} was not tried with Refit (tried: {', '.join(VERSIONS)}); init_info untested_version takes the risk", peer=self.name)
        for key in ("pp_size", "dp_size"):
            if facts.get(key, 1) != 1:
                raise UnsupportedError(f"{key} is {facts[key]}: only tensor parallelism is built", peer=self.name)
        ranks = int(facts.get("tp_size", 1))
        expected = ranks if self.via == "loader" else 1
        if info.get("ranks", expected) != expected:
            raise MismatchError(f"the engine has {ranks} ranks, {expected} of the job by '{self.via}'; {info['ranks']} were declared", peer=self.name)
        if info.get("compare_only") and self.via != "loader":
            raise UnsupportedError(f"compare_only needs via='loader': no endpoint of '{self.via}' reads weights", peer=self.name)
        self._leave()
        self.ranks = ranks
        model = str(info.get("model") or facts["model_path"])
        left = until - time.monotonic()
        if self.via == "loader":
            order = {k: info[k] for k in ("address", "replica", "replicas", "threads", "compare_only") if k in info}
            self._order = order | {"ranks": ranks, "model": model}
            with self._session(until):
                self._tell("join", 0.8 * left, left)
            return
        self._gate = Gate(self._send)
        receiver = Receiver(info["address"], whole_layout(model, 1, info["replicas"]), info["replica"], engine=self._gate, threads=int(info.get("threads", 1)), join_timeout_s=left)
        try:
            self._weights = [(t.name, t.torch()) for t in receiver.tensors]
            self._model = model
            receiver.start()
        except BaseException:
            self._gate = None
            receiver.close()
            raise
        self._receiver = receiver

    def start(self, timeout_s: float) -> None:
        if self.via != "disk":  # which prepares the model itself
            self.begin(timeout_s)

    def update(self, info: dict[str, Any], timeout_s: float) -> None:
        if self.via == "loader":
            self._tell("update", info["timeout_s"], timeout_s)
            return
        if self._receiver is None or self._gate is None:
            raise InvalidError("the engine has not joined a job", peer=self.name)
        self._receiver.check(hooks=False)  # the gate tells of it
        self._until = time.monotonic() + info["timeout_s"]
        self._gate.await_round(self._until - time.monotonic())
        self._gate.hold(self._until - time.monotonic())

    def finish(self, timeout_s: float) -> None:
        if self.via != "disk":
            self.end(timeout_s)

    def close(self) -> None:
        """Ends what this engine keeps on the driver's side."""
        self._leave()
        for folder in self._kept:
            shutil.rmtree(folder, ignore_errors=True)
        self._kept.clear()

    # -- inside

    @contextlib.contextmanager
    def _session(self, until: float) -> Iterator[None]:
        self.begin(until - time.monotonic())
        try:
            yield
        except BaseException:
            try:
                self.end(max(1.0, until - time.monotonic()))
            except Exception as e:  # noqa: BLE001 - the first error is the one to tell
                log.error("the session of %s was not closed: %s", self.name, e)
            raise
        self.end(max(1.0, until - time.monotonic()))

    def _leave(self) -> None:
        if self._receiver is not None and self._gate is not None:
            self._gate.close()
            self._receiver.close()
        self._receiver, self._gate, self._weights = None, None, []
        self._drop_group()

    def _tell(self, do: str, own_s: float, timeout_s: float) -> None:
        """One order to every rank. Raises the first rank's failure that has one."""
        number = next(self._numbers)
        each = [self._order | {"do": do, "rank": r, "number": number, "timeout_s": own_s} for r in range(self.ranks)]
        body = {"serialized_named_tensors": [orders.encode(o) for o in each], "load_format": LOADER, "flush_cache": False, "selector": "target"}
        self._post("/update_weights_from_tensor", body, timeout_s)
        failures = []
        for order in each:
            try:
                orders.read_answer(order, self.name)
            except Exception as e:  # noqa: BLE001 - the first one is raised below, once all were read
                failures.append(e)
        if failures:
            for other in failures[1:]:
                log.error("%s", other)
            raise failures[0]

    def _left(self) -> float:
        left = self._until - time.monotonic()
        if left <= 0:
            raise DeadlineError("the weights were not all sent in time", peer=self.name)
        return left

    def _send(self, version: VersionInfo) -> None:
        {"tensor": self._send_tensors, "distributed": self._send_group, "disk": self._send_directory}[self.via](version)

    def _send_tensors(self, version: VersionInfo) -> None:
        for bucket in buckets(self._weights, self._bucket_bytes):
            # Each tensor by itself: a view would bring its whole storage along. The bytes travel inside the pickle, so that
            # neither side reaches into the other's memory.
            payload = base64.b64encode(pickle.dumps([(name, t.clone()) for name, t in bucket], 4)).decode()
            self._post("/update_weights_from_tensor", {"serialized_named_tensors": [payload] * self.ranks, "load_format": None, "flush_cache": False, "selector": "target"}, self._left())

    def _send_directory(self, version: VersionInfo) -> None:
        import safetensors.torch

        folder = pathlib.Path(tempfile.mkdtemp(prefix=f"refit-{version.number}-", dir=self._folder))
        self._kept.append(folder)
        source = pathlib.Path(self._model)
        for path in source.iterdir():
            if path.is_file() and path.suffix not in (".safetensors", ".bin", ".pt") and not path.name.endswith(".index.json"):
                (folder / path.name).symlink_to(path.resolve())
        safetensors.torch.save_file({name: t.contiguous() for name, t in self._weights}, folder / "model.safetensors", {"format": "pt"})
        self._post("/update_weights_from_disk", {"model_path": str(folder), "flush_cache": False}, self._left())
        while len(self._kept) > 1:  # the engine keeps the newest path
            shutil.rmtree(self._kept.pop(0), ignore_errors=True)

    def _send_group(self, version: VersionInfo) -> None:
        from .group import Group

        try:
            if self._group is None:
                self._group = Group(f"{_GROUP}-{id(self):x}-{next(self._numbers)}", self._group_backend, self._group_address, 1 + self.ranks)
                self._group.open(self._post, self._left)
            for bucket in buckets(self._weights, self._bucket_bytes):
                self._group.broadcast(bucket, self._post, self._left)
        except BaseException:
            self._drop_group()
            raise

    def _drop_group(self) -> None:
        if self._group is not None:
            group, self._group = self._group, None
            group.close(self._post)


class HttpEngine(_Steps, HttpClient):
    """An SGLang server.

    via: how weights get in. ``loader``: its workers receive by themselves (start it with ``--custom-weight-loader
    refit.sglang.load``); ``tensor``, ``distributed`` (a process group of `group_backend` that meets at `group_address`),
    ``disk`` (checkpoints under `folder`, which the server must see): what this process received whole, through the stock
    endpoints. caches: ``reset`` them in each refit, or ``keep``. admin_key: of the server, sent with every call to this
    origin alone; without one, whoever reaches its port can change its weights. bucket_bytes: of one call of ``tensor`` and
    ``distributed``.
    """

    def __init__(self, url: str, *, via: str = "loader", admin_key: str | None = None, headers: dict[str, str] | None = None, context: ssl.SSLContext | None = None, **options: Any) -> None:
        _Steps.__init__(self, via=via, **options)
        HttpClient.__init__(self, url, headers={**(headers or {}), **({"Authorization": f"Bearer {admin_key}"} if admin_key else {})}, context=context)

    def _post(self, path: str, body: Any, timeout_s: float, *, text: bool = False, query: dict[str, str] | None = None) -> Any:
        return self.call("POST", path, body, timeout_s, query, text=text)

    def _facts(self, timeout_s: float) -> dict[str, Any]:
        found = self.call("GET", "/server_info", None, timeout_s)
        if not isinstance(found, dict) or "tp_size" not in found or "model_path" not in found:
            raise EngineError("the answer does not describe a server", peer=self.name, stage="/server_info")
        return found


# path -> (method of the tokenizer manager, class of its request)
_REQUESTS = {
    "/begin_weight_update": ("begin_weight_update", "BeginWeightUpdateReqInput"),
    "/end_weight_update": ("end_weight_update", "EndWeightUpdateReqInput"),
    "/update_weights_from_tensor": ("update_weights_from_tensor", "UpdateWeightsFromTensorReqInput"),
    "/update_weights_from_disk": ("update_weights_from_disk", "UpdateWeightFromDiskReqInput"),
    "/update_weights_from_ipc": ("update_weights_from_ipc", "UpdateWeightsFromIPCReqInput"),
    "/init_weights_update_group": ("init_weights_update_group", "InitWeightsUpdateGroupReqInput"),
    "/update_weights_from_distributed": ("update_weights_from_distributed", "UpdateWeightsFromDistributedReqInput"),
    "/destroy_weights_update_group": ("destroy_weights_update_group", "DestroyWeightsUpdateGroupReqInput"),
    "/update_weight_version": ("update_weight_version", "UpdateWeightVersionReqInput"),
    "/release_memory_occupation": ("release_memory_occupation", "ReleaseMemoryOccupationReqInput"),
    "/resume_memory_occupation": ("resume_memory_occupation", "ResumeMemoryOccupationReqInput"),
}


class LocalEngine(_Steps):
    """A sglang.Engine of this process, options as HttpEngine. Its calls have no deadline of their own: a worker that hangs is
    told from a slow one by the deadlines of the round. Sync between calls of generate(), and do not generate after a sync that
    failed: nothing but the caller shuts this gate."""

    def __init__(self, engine: Any, name: str = "sglang", **options: Any) -> None:
        super().__init__(**options)
        self.engine, self.name = engine, name

    def _wait(self, awaited: Any, path: str) -> Any:
        try:
            return self.engine.loop.run_until_complete(awaited)
        except Exception as e:  # whatever a worker raised comes back as SGLang wraps it
            raise EngineError(f"{type(e).__name__}: {e}", peer=self.name, stage=path) from e

    def _post(self, path: str, body: Any, timeout_s: float, *, text: bool = False, query: dict[str, str] | None = None) -> Any:
        method, request = _REQUESTS[path]
        requests = importlib.import_module("sglang.srt.managers.io_struct")
        found = self._wait(getattr(self.engine.tokenizer_manager, method)(getattr(requests, request)(**body)), path)
        if isinstance(found, tuple) and found[0] is not True:
            raise EngineError(f"success is false: {found[1]}", peer=self.name, stage=path)
        return body

    def _facts(self, timeout_s: float) -> dict[str, Any]:
        server = self.engine.server_args
        version = importlib.import_module("sglang.version").__version__
        return {"version": version} | {key: getattr(server, key) for key in ("tp_size", "pp_size", "dp_size", "model_path")}

    def pause(self, in_flight: str, timeout_s: float) -> None:
        """Nothing runs between calls of generate()."""

    def resume(self, timeout_s: float) -> None:
        """Nothing was held."""

    def reset_caches(self, timeout_s: float) -> None:
        if self.caches == "reset":
            found = self._wait(self.engine.tokenizer_manager.flush_cache(timeout_s=timeout_s / 2), "/flush_cache")
            if found.success is not True:
                raise EngineError(f"the cache was not flushed: {found.message}", peer=self.name, stage="/flush_cache")


class SGLangWeightSynchronizer(EngineWeightSynchronizer):
    """EngineWeightSynchronizer over SGLang engines.

    Requests in flight: ``abort`` (they return what they have), ``retract`` (they wait, and go on with new weights and a
    recomputed cache: such an answer has tokens of two versions) or ``in_place`` (they go on with the cache of the old
    weights; the server cannot flush it then, so that the engines must be made with caches='keep'). The workers take
    part (coordinator's target_ranks) with via='loader' only: one rank an engine otherwise.
    """

    IN_FLIGHT = ("abort", "retract", "in_place")

    def __init__(self, coordinator: Any, engines: Sequence[Any], *, in_flight: str | None = None, **options: Any) -> None:
        if in_flight == "in_place" and any(getattr(e, "caches", "keep") != "keep" for e in engines):
            raise InvalidError("in_flight='in_place' leaves requests running, and SGLang flushes no cache then: make the engines with caches='keep', or use abort or retract")
        super().__init__(coordinator, engines, in_flight=in_flight, **options)

    def shutdown(self) -> None:
        super().shutdown()
        for engine in self.engines:
            if (close := getattr(engine, "close", None)) is not None:
                close()
