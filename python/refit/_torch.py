"""torch modules: their layout from DTensor placements, and packing their weights into memory that Refit lends."""

from __future__ import annotations

import fnmatch
import math
import re
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Iterable, Mapping

from . import _arrays
from ._errors import Error, InvalidError, MismatchError, UnsupportedError
from .layout import Layout

BUFFER = "weights"  # the one buffer of a published rank
_ALIGN = 64  # bytes: where each tensor starts in it

Runs = list[tuple[int, int]]  # half-open intervals of one axis, in the order in which they lie in memory

_LEADING = re.compile(r"^(module\.)+")
_INSIDE = re.compile(r"(?:^|(?<=\.))(?:_orig_mod|_fsdp_wrapped_module)\.")
_BASE = re.compile(r"\.base_layer(?=\.|$)")
# What a wrapper leaves behind that is no weight of the model itself.
_LEFTOVER = re.compile(r"(?:^|\.)(?:_[^.]*|lora_[^.]*|modules_to_save|original_module|base_model)(?:\.|$)")


def plain_name(name: str) -> str:
    """A parameter's name without the known wrappers."""
    before = None
    while before != name:
        before = name
        name = _INSIDE.sub("", _LEADING.sub("", name))
    return _BASE.sub("", name)


def chunk(runs: Runs, pieces: int) -> list[Runs]:
    """Cuts a sequence of indices as torch.chunk does: equal pieces rounded up, the last ones short or empty."""
    total = sum(hi - lo for lo, hi in runs)
    size = -(-total // pieces)
    out: list[Runs] = []
    for k in range(pieces):
        first, last = min(k * size, total), min((k + 1) * size, total)
        piece: Runs = []
        at = 0
        for lo, hi in runs:
            a, b = max(first, at), min(last, at + hi - lo)
            if a < b:
                piece.append((lo + a - at, lo + b - at))
            at += hi - lo
        out.append(piece)
    return out


def joined(runs: Runs) -> Runs:
    """Neighbours that follow each other in one."""
    out: Runs = []
    for lo, hi in runs:
        if out and out[-1][1] == lo:
            out[-1] = (out[-1][0], hi)
        else:
            out.append((lo, hi))
    return out


def shard_runs(shape: Iterable[int], placements: Iterable[Any], mesh_shape: Iterable[int], coordinate: Iterable[int]) -> list[Runs]:
    """Per axis, the indices that the rank at `coordinate` holds. UnsupportedError for a placement that is no cut."""
    runs: list[Runs] = [[(0, n)] if n else [] for n in shape]
    for placement, size, at in zip(placements, mesh_shape, coordinate, strict=True):
        kind = type(placement).__name__
        if kind == "Replicate":
            continue
        if kind == "Shard":
            runs[placement.dim] = chunk(runs[placement.dim], size)[at]
        elif kind == "_StridedShard":
            # First cut as the later mesh axes will, then each part by this one; the parts of one rank lie together.
            parts = chunk(runs[placement.dim], int(placement.split_factor))
            runs[placement.dim] = [run for part in parts for run in chunk(part, size)[at]]
        else:
            raise UnsupportedError(f"placement {placement} holds no values of its own: redistribute it first")
    return [joined(r) for r in runs]


def boxes(runs: list[Runs]) -> list[tuple[Runs, list[int]]]:
    """Every box of a shard with the local index of its first element: the product of its axes' runs."""
    starts = []
    for axis in runs:
        at, own = 0, []
        for lo, hi in axis:
            own.append(((lo, hi), at))
            at += hi - lo
        starts.append(own)
    return [([run for run, _ in corner], [at for _, at in corner]) for corner in product(*starts)]


@dataclass
class Entry:
    """One tensor of this rank: where its values are now, and where they are lent from."""

    name: str
    shape: tuple[int, ...]  # logical
    dtype: str  # on the wire, in the names of layout files
    local: Any  # callable: the local torch tensor as it is now
    local_shape: tuple[int, ...]
    runs: list[Runs]
    offset: int = 0  # bytes in BUFFER


@dataclass
class Described:
    """What this process holds of a model."""

    entries: list[Entry]
    tied: list[tuple[str, str]] = field(default_factory=list)
    bytes: int = 0

    def part(self, rank: int) -> dict[str, Any]:
        """The content of a layout file with this rank alone."""
        tensors, holdings = {}, []
        by_name = {e.name: e for e in self.entries}
        names = [(e.name, e) for e in self.entries] + [(b, by_name[a]) for a, b in self.tied]
        for name, e in names:
            item = _arrays.SIZES[e.dtype]
            strides, step = [], item
            for n in reversed(e.local_shape):
                strides.insert(0, step)
                step *= n
            tensors[name] = {"shape": list(e.shape), "dtype": e.dtype}
            for box, first in boxes(e.runs):
                offset = e.offset + sum(i * s for i, s in zip(first, strides, strict=True))
                holdings.append({"tensor": name, "box": [list(run) for run in box], "buffer": BUFFER, "offset": offset, "strides": strides})
        return {
            "tensors": tensors,
            "tied": [list(pair) for pair in self.tied],
            "ranks": [{"rank": rank, "buffers": {BUFFER: {"bytes": self.bytes}}, "holdings": holdings}],
        }


def _named(model: Any) -> list[tuple[str, Any]]:
    """Parameters and persistent buffers; a module's own names, tied ones under each."""
    import torch

    if isinstance(model, torch.nn.Module):
        return [(n, t) for n, t in model.state_dict(keep_vars=True).items() if isinstance(t, torch.Tensor)]
    pairs = model.items() if isinstance(model, Mapping) else model
    return [(str(n), t) for n, t in pairs]


def _param_dtypes(model: Any) -> dict[int, Any]:
    """id of each FSDP2 parameter -> the dtype that its MixedPrecisionPolicy computes in."""
    import torch

    out: dict[int, Any] = {}
    if not isinstance(model, torch.nn.Module):
        return out
    for module in model.modules():
        get = getattr(module, "_get_fsdp_state", None)
        if get is None:
            continue
        state = get()
        groups = getattr(state, "_fsdp_param_groups", None)
        if groups is None:
            groups = [g for g in [state._fsdp_param_group] if g is not None]
        for group in groups:
            for p in group.fsdp_params:
                dtype = group.mp_policy.param_dtype
                if dtype is not None and p.sharded_param.dtype.is_floating_point:
                    out[id(p.sharded_param)] = dtype
    return out


def _local(tensor: Any) -> Any:
    return tensor.to_local() if hasattr(tensor, "placements") else tensor


def _entry(name: str, tensor: Any, dtype: str) -> Entry:
    local = _local(tensor.detach())
    if local.device.type != "cpu":
        raise UnsupportedError(f"the tensor is on {local.device}; this build moves host memory only", tensor=name)
    shape = tuple(int(n) for n in tensor.shape)
    if hasattr(tensor, "placements"):
        mesh = tensor.device_mesh
        coordinate = mesh.get_coordinate()
        if coordinate is None:
            raise InvalidError("this rank is not in the tensor's mesh", tensor=name)
        try:
            runs = shard_runs(shape, tensor.placements, mesh.shape, coordinate)
        except UnsupportedError as e:
            raise UnsupportedError(e.message, tensor=name) from None
    else:
        runs = [[(0, n)] if n else [] for n in shape]
    held = tuple(sum(hi - lo for lo, hi in axis) for axis in runs)
    local_shape = tuple(int(n) for n in local.shape)
    if math.prod(held) != math.prod(local_shape) or (math.prod(held) and held != local_shape):
        raise UnsupportedError(f"the placements {getattr(tensor, 'placements', ())} mean a local shape of {held}, the tensor has {local_shape}", tensor=name)
    return Entry(name, shape, dtype, lambda: _local(tensor.detach()), local_shape, runs)


def describe(model: Any, *, ignore: Iterable[str] = (), dtypes: Mapping[str, str] | None = None) -> Described:
    """What this process holds of a model. InvalidError listing names of unknown wrappers, and names that collide."""
    import torch

    ignore, wanted = list(ignore), dict(dtypes or {})
    unknown = [d for d in wanted.values() if d not in _arrays.NUMPY]
    if unknown:
        raise InvalidError(f"dtypes: '{unknown[0]}' is no dtype of layout files")
    named = [(n, plain_name(n), t) for n, t in _named(model)]
    named = [x for x in named if not any(fnmatch.fnmatchcase(x[0], p) or fnmatch.fnmatchcase(x[1], p) for p in ignore)]
    leftovers = sorted(n for n, plain, _ in named if _LEFTOVER.search(plain))
    if leftovers:
        raise InvalidError(f"{len(leftovers)} names belong to a wrapper that is not known (leave them out with `ignore`, or rename them): {', '.join(leftovers)}")
    cast = _param_dtypes(model)
    out = Described([])
    seen: dict[int, str] = {}
    origin: dict[str, str] = {}
    for own, name, tensor in named:
        if not isinstance(tensor, torch.Tensor):
            raise InvalidError(f"is a {type(tensor).__name__}, not a tensor", tensor=own)
        if origin.setdefault(name, own) != own:
            raise InvalidError(f"the names '{origin[name]}' and '{own}' are one without their wrappers", tensor=name)
        if id(tensor) in seen:
            out.tied.append((seen[id(tensor)], name))
            continue
        seen[id(tensor)] = name
        said = [d for pattern, d in wanted.items() if fnmatch.fnmatchcase(name, pattern)]
        try:
            dtype = said[0] if said else _arrays.layout_dtype(cast.get(id(tensor), tensor.dtype))
        except UnsupportedError as e:
            raise UnsupportedError(e.message, tensor=name) from None
        entry = _entry(name, tensor, dtype)
        entry.offset = -(-out.bytes // _ALIGN) * _ALIGN
        out.bytes = entry.offset + math.prod(entry.local_shape) * _arrays.SIZES[dtype]
        out.entries.append(entry)
    if not out.entries:
        raise InvalidError("the model has no tensor to publish")
    return out


def agree(model: Any, group: Any, *, ignore: Iterable[str] = (), dtypes: Mapping[str, str] | None = None) -> tuple[Described, Layout, int]:
    """What this process holds, the layout of all ranks (equal on each), and this process' rank in it.

    Every rank's part, by torch.distributed where it runs. A rank that cannot describe its model tells the others, so
    that all raise instead of waiting for it.
    """
    import torch.distributed as dist

    alone = not (dist.is_available() and dist.is_initialized())
    rank = 0 if alone else dist.get_rank(group)
    failed: Error | None = None
    mine: tuple[str, dict[str, Any]] = ("", {})
    described = Described([])
    try:
        described = describe(model, ignore=ignore, dtypes=dtypes)
        mine = ("", described.part(rank))
    except Error as e:
        failed, mine = e, (str(e), {})
    parts: list[Any] = [mine]
    if not alone:
        parts = [None] * dist.get_world_size(group)
        dist.all_gather_object(parts, mine, group=group)
    if failed is not None:
        raise failed
    for other, (why, _) in enumerate(parts):
        if why:
            raise MismatchError(f"its model cannot be published: {why}", peer=f"source rank {other}")
    return described, Layout.merge(part for _, part in parts), rank


class Packer:
    """Copies a rank's weights, as they are now, to where they are lent from; casts as torch does."""

    def __init__(self, described: Described, buffers: Mapping[str, memoryview]) -> None:
        import torch

        memory = torch.frombuffer(buffers[BUFFER], dtype=torch.uint8) if described.bytes else torch.empty(0, dtype=torch.uint8)
        kinds = {v: k for k, v in _arrays.NAMES.items()}
        self._pairs = []
        for e in described.entries:
            count = math.prod(e.local_shape)
            if count == 0:
                continue
            view = memory[e.offset : e.offset + count * _arrays.SIZES[e.dtype]].view(getattr(torch, kinds[e.dtype]))
            self._pairs.append((e, view.view(e.local_shape)))

    def pack(self) -> None:
        """InvalidError naming a tensor whose local shape has changed since the layout was made."""
        for entry, view in self._pairs:
            now = entry.local()
            if tuple(now.shape) != entry.local_shape:
                raise InvalidError(f"its local shape was {entry.local_shape} and is {tuple(now.shape)}: make a new publisher", tensor=entry.name)
            view.copy_(now)
