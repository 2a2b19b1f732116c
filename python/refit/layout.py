"""Layouts and plans."""

from __future__ import annotations

import json
from typing import Any, Iterable, Mapping, NamedTuple

from . import _arrays, _native
from ._errors import InvalidError, MismatchError, UnsupportedError


class Holding(NamedTuple):
    """A box of a tensor and where it lies: `offset` bytes into `buffer`, one byte stride per axis (or factor of `view`)."""

    tensor: str
    box: list[tuple[int, int]]
    buffer: str
    offset: int
    strides: list[int]
    dtype: str
    view: list[list[int]] | None


class Layout:
    """Which rank of a side holds which box of which logical tensor, and where in its memory. Immutable."""

    __slots__ = ("_native",)

    def __init__(self, native: _native.Layout) -> None:
        self._native = native

    @classmethod
    def from_model(cls, model: str, spec: str) -> "Layout":
        """From rules. model: a checkpoint directory or .safetensors file, a config.json, or a built-in name such as
        ``qwen3-30b-a3b@layers=1``; spec: as on the command line (``fsdp=2,tp=2``, ``vllm:tp=2,replicas=2``)."""
        return cls(_native.Layout.from_model(str(model), spec))

    @classmethod
    def from_config(cls, config: str | Mapping[str, Any], spec: str) -> "Layout":
        """From rules, with the content of a config.json."""
        text = config if isinstance(config, str) else json.dumps(config)
        return cls(_native.Layout.from_config(text, spec))

    @classmethod
    def from_json(cls, layout: str | Mapping[str, Any]) -> "Layout":
        """From explicit holdings: the text or content of a layout file, or what to_json() wrote."""
        text = layout if isinstance(layout, str) else json.dumps(layout)
        return cls(_native.Layout.from_json(text))

    @classmethod
    def merge(cls, parts: Iterable[Mapping[str, Any]]) -> "Layout":
        """From parts, each the content of a layout file with some of the ranks (see describe functions).

        MismatchError when two parts give one name different shapes or dtypes; InvalidError when a rank comes twice.
        """
        tensors: dict[str, Any] = {}
        owner: dict[str, int] = {}
        ranks: list[Any] = []
        tied: list[Any] = []
        for part in parts:
            first = part["ranks"][0]["rank"] if part["ranks"] else -1
            for name, spec in part["tensors"].items():
                if tensors.setdefault(name, spec) != spec:
                    raise MismatchError(f"rank {owner[name]} has shape and dtype {tensors[name]}, rank {first} has {spec}", tensor=name)
                owner.setdefault(name, first)
            ranks.extend(part["ranks"])
            tied.extend(t for t in part.get("tied", []) if t not in tied)
        return cls.from_json({"tensors": tensors, "ranks": ranks, "tied": tied})

    @classmethod
    def together(cls, parts: Mapping[str, "Layout"]) -> "Layout":
        """Several models on the same ranks as one, so that one version brings all of them or none: a policy and its draft model.

        parts: name of a model -> its layout; tensors and buffers get the name and a dot before their own ("" adds nothing).
        UnsupportedError for several replicas, whose layouts are recipes. Holdings become explicit: see docs/python.md for the
        size that such a layout may have.
        """
        if not parts:
            raise InvalidError("no layout was given")
        worlds = {name: one.world for name, one in parts.items()}
        if len(set(worlds.values())) > 1:
            raise MismatchError(f"the models are on different numbers of ranks: {worlds}")
        if several := [name for name, one in parts.items() if one.instances > 1]:
            raise UnsupportedError(f"'{several[0]}' has {parts[several[0]].instances} replicas: together() makes layouts of one")
        world, tensors, tied = next(iter(worlds.values())), {}, []
        ranks: list[dict[str, Any]] = [{"rank": r, "buffers": {}, "holdings": []} for r in range(world)]
        for name, one in parts.items():
            dot = f"{name}." if name else ""
            described = one.describe()
            if described["values"]:
                raise UnsupportedError(f"'{name}' transforms values ({sorted(described['values'])[0]}), which explicit holdings cannot say")
            tied += [[dot + a, dot + b] for a, b in one.tied]
            for tensor, spec in described["tensors"].items():
                if tensors.setdefault(dot + tensor, spec) is not spec:
                    raise InvalidError("two of the models have it", tensor=dot + tensor)
            for own, rank in zip(ranks, described["ranks"], strict=True):
                for buffer, spec in rank["buffers"].items():
                    if own["buffers"].setdefault(dot + buffer, spec) is not spec:
                        raise InvalidError(f"two of the models have a buffer '{dot + buffer}'")
                own["holdings"] += [dict(h, tensor=dot + h["tensor"], buffer=dot + h["buffer"]) for h in rank["holdings"]]
        return cls.from_json({"tensors": tensors, "tied": tied, "ranks": ranks})

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any], *, tied: Iterable[tuple[str, str]] = ()) -> "Layout":
        """Whole tensors of one rank, each its own buffer of the same name: to lend or to fill the arrays themselves.

        arrays: name -> array of any framework in host memory, row-major without gaps.
        """
        tensors, buffers, holdings = {}, {}, []
        for name, array in arrays.items():
            dtype = _arrays.dtype_name(array)
            shape = [int(n) for n in array.shape]
            strides, step = [], _arrays.SIZES[dtype]
            for n in reversed(shape):
                strides.insert(0, step)
                step *= n
            tensors[name] = {"shape": shape, "dtype": dtype}
            buffers[name] = {"bytes": step}
            holdings.append({"tensor": name, "box": [[0, n] for n in shape], "buffer": name, "offset": 0, "strides": strides})
        return cls.from_json({"tensors": tensors, "tied": [list(t) for t in tied], "ranks": [{"rank": 0, "buffers": buffers, "holdings": holdings}]})

    @classmethod
    def from_torch(
        cls, model: Any, *, config: Any = None, group: Any = None, ignore: Iterable[str] = (), dtypes: Mapping[str, str] | None = None, adapter: str | None = None
    ) -> "Layout":
        """The layout that Publisher.from_torch() publishes: see there. Collective where torch.distributed runs."""
        from .trainers import torch as trainer

        return trainer.agree(model, group, ignore=ignore, dtypes=dtypes, config=config, adapter=adapter)[1]

    @classmethod
    def from_jax(cls, model: Any, *, config: Any = None, ignore: Iterable[str] = (), dtypes: Mapping[str, str] | None = None) -> "Layout":
        """The layout that Publisher.from_jax() publishes: see ``refit.trainers.jax.publisher()``. Collective over processes."""
        from .trainers import jax as trainer

        return trainer.agree(model, config=config, ignore=ignore, dtypes=dtypes)[1]

    @classmethod
    def from_megatron(cls, model: Any, config: Any, *, group: Any = None, ignore: Iterable[str] = (), spec: Mapping[str, Any] | None = None) -> "Layout":
        """The layout that Publisher.from_megatron() publishes: see ``refit.trainers.megatron.publisher()``. Collective."""
        from .trainers import megatron as trainer

        return trainer.agree(model, config, group, ignore=ignore, spec=spec)[0]

    def to_json(self) -> str:
        """Text from which from_json() makes an equal layout."""
        return self._native.to_json()

    @property
    def digest(self) -> str:
        """32 hex digits; equal for equal layouts."""
        return self._native.digest()

    @property
    def world(self) -> int:
        """Number of ranks."""
        return self._native.world()

    @property
    def instances(self) -> int:
        """Equal groups of consecutive ranks; of a target: replicas."""
        return self._native.instances()

    @property
    def tensors(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """name -> (shape, dtype), in byte order of the names: what prepare_refit_info() of a training loop returns."""
        return {t.name: (tuple(t.shape), t.dtype) for t in self._native.tensors()}

    @property
    def tied(self) -> list[tuple[str, str]]:
        """Pairs of names that are one tensor."""
        return [tuple(pair) for pair in self._native.tied()]

    def describe(self) -> dict[str, Any]:
        """Everything as plain values, rank by rank: "tensors", "ranks" (each with "buffers", "holdings", and "parameters" where
        rules made the layout), and "values": tensor -> the transform that its stored values went through."""
        ranks = []
        for r in range(self.world):
            info = self._native.rank(r)
            ranks.append(
                {
                    "rank": r,
                    "buffers": {b.name: {"bytes": b.bytes} for b in info.buffers},
                    "holdings": [
                        {"tensor": h.tensor, "box": [list(i) for i in h.box], "buffer": h.buffer, "offset": h.offset, "strides": list(h.strides), "dtype": h.dtype, **({"view": h.view} if h.view else {})}
                        for h in info.holdings
                    ],
                    "parameters": [{"name": p.name, "shape": list(p.shape), "dtype": p.dtype, "buffer": p.buffer, "offset": p.offset} for p in info.parameters],
                }
            )
        recipe = json.loads(self.to_json()).get("recipe", {})
        return {"tensors": {n: {"shape": list(s), "dtype": d} for n, (s, d) in self.tensors.items()}, "ranks": ranks, "values": recipe.get("values", {})}

    def buffers(self, rank: int) -> dict[str, int]:
        """Buffers of a rank: name -> bytes."""
        return {b.name: b.bytes for b in self._native.rank(rank).buffers}

    def holdings(self, rank: int) -> list[Holding]:
        """What a rank holds."""
        return [Holding(h.tensor, [tuple(i) for i in h.box], h.buffer, h.offset, h.strides, h.dtype, h.view or None) for h in self._native.rank(rank).holdings]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Layout) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"Layout({len(self.tensors)} tensors, {self.world} ranks, {self.instances} instances, {self.digest[:12]})"


class Plan:
    """What goes where between two layouts, proven: every byte of every target rank has a source and is written once.

    Making one raises MismatchError or InvalidError listing holes, overlaps, unknown names and disagreements.
    bytes_needed: each distinct logical byte once per target rank; bytes_moved: what all senders send; bound_bytes: the
    most that any one rank must send or receive.
    """

    __slots__ = ("_native",)

    def __init__(
        self,
        source: Layout,
        target: Layout,
        *,
        bucket_bytes: int = 32 << 20,
        staging_bytes: int = 256 << 20,
        allow_cast: Iterable[str] = (),
        list_unwanted: bool = False,
    ) -> None:
        options = _native.PlanOptions()
        for name, value in (("bucket_bytes", bucket_bytes), ("staging_bytes", staging_bytes)):
            if value <= 0:
                raise InvalidError(f"refit.{name} must be positive")
        options.bucket_bytes = bucket_bytes
        options.staging_bytes = staging_bytes
        options.allow_cast = list(allow_cast)
        options.list_unwanted = list_unwanted
        self._native = _native.Plan.make(source._native, target._native, options)

    id = property(lambda self: self._native.id, doc="32 hex digits.")
    bytes_needed = property(lambda self: self._native.bytes_needed)
    bytes_moved = property(lambda self: self._native.bytes_moved)
    bytes_local = property(lambda self: self._native.bytes_local, doc="The part of bytes_moved within one host.")
    bound_bytes = property(lambda self: self._native.bound_bytes)
    segments = property(lambda self: self._native.segments)
    buckets = property(lambda self: self._native.buckets)
    coverage = property(lambda self: self._native.coverage, doc="1.0: there is no plan otherwise.")
    unwanted = property(lambda self: self._native.unwanted, doc="Names of the source that no target wants.")

    @property
    def links(self) -> list[tuple[int, int, int]]:
        """(from, to, bytes) by rank; by ordinal in `hosts` for large worlds (then `hosts` is not empty)."""
        return [tuple(link) for link in self._native.links]

    @property
    def hosts(self) -> list[str]:
        return self._native.hosts if self._native.by_host else []

    def explain(self, tensor: str) -> str:
        """Every piece of one tensor, from whom to whom and where."""
        return self._native.explain(tensor)

    def __repr__(self) -> str:
        return f"Plan({self.id[:12]}, {self.bytes_moved} bytes in {self.buckets} buckets)"
