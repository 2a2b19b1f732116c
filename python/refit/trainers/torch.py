"""torch modules: their layout from DTensor placements, and packing their weights into memory that Refit lends."""

from __future__ import annotations

import fnmatch
import logging
import math
import re
from collections import Counter
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Callable, Iterable, Mapping

from .. import _arrays
from .._errors import Error, InvalidError, UnsupportedError
from ..layout import Layout
from ..members import Publisher
from . import lora as _lora
from . import rules as _rules

log = logging.getLogger("refit")

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
    """One tensor of this rank: where its values are, and where they are lent from."""

    name: str  # without wrappers
    own: str  # in the model
    tensor: Any  # as last seen
    shape: tuple[int, ...]  # whole
    stored: str  # dtype of the tensor itself, in the names of layout files
    dtype: str  # on the wire
    local_shape: tuple[int, ...]
    runs: list[Runs]
    offset: int = 0  # bytes in BUFFER


@dataclass
class Described:
    """What this process holds of a model."""

    entries: list[Entry]
    tied: list[tuple[str, str]] = field(default_factory=list)  # (name, its copy's)
    copies: dict[str, Entry] = field(default_factory=dict)  # a copy's name in the model -> what it is tied with
    bytes: int = 0
    now: Callable[[], dict[str, Any]] = dict  # name in the model -> tensor
    adapters: Callable[[], tuple[_lora.Adapters | None, dict[str, Any]]] = lambda: (None, {})  # and the tensors that they name
    rules: _rules.Rules | None = None

    def part(self, rank: int) -> dict[str, Any]:
        """The content of a layout file with this rank alone."""
        tensors, held = {}, []
        by_name = {e.name: e for e in self.entries}
        names = [(e.name, e) for e in self.entries] + [(b, by_name[a]) for a, b in self.tied]
        for name, e in names:
            strides = [n * _arrays.SIZES[e.dtype] for n in _rules.row_major(e.local_shape)]
            own = self.rules.find(name, e.shape) if self.rules and name in self.rules.parameters else None
            for piece in own.pieces if own else ():
                tensors[piece.tensor] = {"shape": list(self.rules.tensors[piece.tensor][0]), "dtype": e.dtype}
            if own is None:
                tensors[name] = {"shape": list(e.shape), "dtype": e.dtype}
            for box, first in boxes(e.runs):
                offset = e.offset + sum(i * s for i, s in zip(first, strides, strict=True))
                if own is not None:
                    held += [dict(h, buffer=BUFFER) for h in _rules.holdings(own, box, strides, offset)]
                else:
                    held.append({"tensor": name, "box": [list(run) for run in box], "buffer": BUFFER, "offset": offset, "strides": strides})
        return {
            "tensors": tensors,
            "tied": [list(pair) for pair in self.tied],
            "ranks": [{"rank": rank, "buffers": {BUFFER: {"bytes": self.bytes}}, "holdings": held}],
        }


def _modules(model: Any) -> dict[str, Any]:
    """What comes before the names of each module -> the module; empty where `model` is none and has none."""
    import torch

    if isinstance(model, torch.nn.Module):
        return {"": model}
    if isinstance(model, Mapping) and model and all(isinstance(m, torch.nn.Module) for m in model.values()):
        return {f"{name}." if name else "": m for name, m in model.items()}
    return {}


def _named_once(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, tensor in pairs:
        if out.setdefault(name, tensor) is not tensor:
            raise InvalidError("two of the models have it", tensor=name)
    return out


def _source(model: Any) -> Callable[[], dict[str, Any]]:
    """What gives the model's parameters and persistent buffers as they are now: name -> tensor, tied ones under each.

    A module's own names. An FSDP2 module gives its sharded parameters, also where a forward pass left whole ones.
    """
    import torch

    if modules := _modules(model):
        return lambda: _named_once((dot + n, t) for dot, module in modules.items() for n, t in module.state_dict(keep_vars=True).items() if isinstance(t, torch.Tensor))
    if isinstance(model, Mapping):
        return lambda: {str(n): t for n, t in model.items()}
    pairs: dict[str, Any] = {}
    for n, t in model:
        if pairs.setdefault(str(n), t) is not t:
            raise InvalidError("is given twice", tensor=str(n))
    return lambda: pairs


def _param_dtypes(model: Any) -> dict[int, Any]:
    """id of each FSDP2 parameter -> the dtype that its MixedPrecisionPolicy computes in."""
    out: dict[int, Any] = {}
    for module in (m for one in _modules(model).values() for m in one.modules()):
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


def _place(name: str, tensor: Any) -> tuple[tuple[int, ...], tuple[int, ...], list[Runs]]:
    """(whole shape, local shape, indices held by axis) of a tensor."""
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
    return shape, local_shape, runs


def _layout_dtype(name: str, dtype: Any) -> str:
    try:
        return _arrays.layout_dtype(dtype)
    except UnsupportedError as e:
        raise UnsupportedError(e.message, tensor=name) from None


def rules_of(model: Any, config: Any, names: Iterable[str]) -> _rules.Rules | None:
    """The rules that name a module's tensors in Hugging Face's way: of `config`; without one of the module's own
    `config`, where it has one of a family with rules. None with False, and for what has no configuration."""
    if config is False:
        return None
    found = config
    while found is None and model is not None:
        own = getattr(model, "config", None)
        if hasattr(own, "to_json_string") and getattr(own, "model_type", None):
            found = own
        model = getattr(model, "module", None) or getattr(model, "_orig_mod", None)
    if found is None:
        return None
    text = _rules.config_text(found)
    try:
        return _rules.without_drafts(text, "hf:naming=fused", names)
    except UnsupportedError as e:
        if config is not None:
            raise
        log.info("the model's tensors go by their own names: %s", e.message)
        return None


def _keep_exceptions(entries: list[Entry], rules: _rules.Rules, said: set[str]) -> None:
    """What the family keeps in a dtype of its own (correction biases, A_log) travels in it, unless `dtypes` said otherwise."""
    count: Counter[str] = Counter()
    for e in entries:
        if e.dtype in ("bf16", "f16", "f32"):
            count[e.dtype] += math.prod(e.shape)
    if not count:
        return
    base = count.most_common(1)[0][0]
    kept = rules.dtypes(base)
    for e in entries:
        wanted = {kept[p.tensor] for p in rules.parameters[e.name].pieces} if e.name in rules.parameters else set()
        if len(wanted) == 1 and e.name not in said and wanted != {base} and _rules.widens(e.stored, want := wanted.pop()):
            e.dtype = want


def describe(model: Any, *, ignore: Iterable[str] = (), dtypes: Mapping[str, str] | None = None, config: Any = None, adapter: str | None = None) -> Described:
    """What this process holds of a model, or of one of its adapters alone. InvalidError listing names of unknown wrappers, and
    names that collide."""
    import torch

    ignore, wanted = list(ignore), dict(dtypes or {})
    unknown = [d for d in wanted.values() if d not in _arrays.NUMPY]
    if unknown:
        raise InvalidError(f"dtypes: '{unknown[0]}' is no dtype of layout files")
    alone = adapter is not None
    source = _lora.alone(model, adapter, plain_name) if adapter is not None else _source(model)

    def adapters() -> tuple[_lora.Adapters | None, dict[str, Any]]:
        tensors = source()
        return None if alone else _lora.find(model, tensors.keys(), ignore), tensors

    def plain(name: str, found: _lora.Adapters | None) -> str:
        return name if alone else plain_name(found.name(name) if found else name)

    def now() -> dict[str, Any]:
        found, tensors = adapters()
        left_out = found.left_out if found else set()
        return {n: t for n, t in tensors.items() if n not in left_out and not _rules.ignored(n, ignore) and not _rules.ignored(plain(n, found), ignore)}

    found, tensors = adapters()
    named = [(n, plain(n, found), t) for n, t in now().items()]
    leftovers = sorted(n for n, plain, _ in named if not alone and _LEFTOVER.search(plain))
    if leftovers:
        raise InvalidError(f"{len(leftovers)} names belong to a wrapper that is not known (leave them out with `ignore`, or rename them): {', '.join(leftovers)}")
    out = Described([], now=now, adapters=adapters, rules=rules_of(model, False if alone else config, [name for _, name, _ in named]))
    if out.rules:
        _rules.refuse_unknown(out.rules, (name for _, name, _ in named))
    cast = _param_dtypes(model)
    seen: dict[int, Entry] = {}
    origin: dict[str, str] = {}
    said_of: set[str] = set()
    for own, name, tensor in named:
        if not isinstance(tensor, torch.Tensor):
            raise InvalidError(f"is a {type(tensor).__name__}, not a tensor", tensor=own)
        if origin.setdefault(name, own) != own:
            raise InvalidError(f"the names '{origin[name]}' and '{own}' are one without their wrappers", tensor=name)
        if id(tensor) in seen:
            out.tied.append((seen[id(tensor)].name, name))
            out.copies[own] = seen[id(tensor)]
            continue
        said = [d for pattern, d in wanted.items() if fnmatch.fnmatchcase(name, pattern)]
        said_of.update([name] if said else [])
        stored = _layout_dtype(name, tensor.dtype)
        dtype = said[0] if said else _layout_dtype(name, cast.get(id(tensor), tensor.dtype))
        shape, local_shape, runs = _place(name, tensor)
        out.entries.append(Entry(name, own, tensor, shape, stored, dtype, local_shape, runs))
        seen[id(tensor)] = out.entries[-1]
    if not out.entries:
        raise InvalidError("the model has no tensor to publish")
    _refuse_tied_updates(out, found, tensors)
    if out.rules:
        for copy, primary in ((b, a) for a, b in out.rules.tied):
            apart = {e.name for e in out.entries}
            if copy in apart and primary in apart:
                raise InvalidError(f"by the configuration it is '{primary}', and in the module it is a tensor of its own", tensor=copy)
        _keep_exceptions(out.entries, out.rules, said_of)
    for e in out.entries:
        e.offset = -(-out.bytes // _ALIGN) * _ALIGN
        out.bytes = e.offset + math.prod(e.local_shape) * _arrays.SIZES[e.dtype]
    return out


def _refuse_tied_updates(described: Described, found: _lora.Adapters | None, tensors: Mapping[str, Any]) -> None:
    """tensors: also those that `ignore` leaves out, whose copies in the engine change all the same."""
    if found is None:
        return
    published = {e.own for e in described.entries} | described.copies.keys()
    for own in found.updates:
        for other, t in tensors.items():
            if other != own and t is tensors[own] and other not in found.left_out and {own, other} & published:
                raise UnsupportedError(f"an adapter changes it, and it is tied with '{plain_name(other)}', which would change too", tensor=plain_name(own))


def gathered(mine: Any, group: Any) -> list[Any]:
    """Every rank's object, by torch.distributed where it runs."""
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        return [mine]
    parts: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(parts, mine, group=group)
    return parts


def own_rank(group: Any) -> int:
    import torch.distributed as dist

    return dist.get_rank(group) if dist.is_available() and dist.is_initialized() else 0


def agree(
    model: Any, group: Any, *, ignore: Iterable[str] = (), dtypes: Mapping[str, str] | None = None, config: Any = None, adapter: str | None = None
) -> tuple[Described, Layout, int]:
    """What this process holds, the layout of all ranks (equal on each), and this process' rank in it.

    A rank that cannot describe its model tells the others, so that all raise instead of waiting for it.
    """
    rank = own_rank(group)
    failed: Error | None = None
    mine: tuple[str, dict[str, Any], list[str]] = ("", {}, [])
    described = Described([])
    try:
        described = describe(model, ignore=ignore, dtypes=dtypes, config=config, adapter=adapter)
        mine = ("", described.part(rank), [e.name for e in described.entries])
    except Exception as e:  # noqa: BLE001 - raised by together(), once the others know of it
        failed = _rules.telling(e, f"source rank {rank}")
        mine = (str(failed), {}, [])
    parts = gathered(mine, group)
    _rules.together(parts, failed)
    layout = Layout.merge(part for _, part, _ in parts)
    if described.rules:
        _rules.whole_or_refuse(described.rules, (n for _, _, names in parts for n in names), layout.tied)
    return described, layout, rank


class Packer:
    """Copies a rank's weights, as they are now, to where they are lent from; casts as torch does."""

    def __init__(self, described: Described, buffers: Mapping[str, memoryview]) -> None:
        import torch

        memory = torch.frombuffer(buffers[BUFFER], dtype=torch.uint8) if described.bytes else torch.empty(0, dtype=torch.uint8)
        kinds = {v: k for k, v in _arrays.NAMES.items()}
        self._described = described
        self._pairs = []
        for e in described.entries:
            count = math.prod(e.local_shape)
            view = memory[e.offset : e.offset + count * _arrays.SIZES[e.dtype]].view(getattr(torch, kinds[e.dtype]))
            self._pairs.append((e, view.view(e.local_shape) if count else None))

    def follow(self) -> list[Any]:
        """The local tensors as they are now, by entry. A parameter that was replaced (``load_state_dict(assign=True)``) is
        followed where it lies as the former did; InvalidError naming it, and nothing copied, where the layout no longer
        describes it."""
        now, described = self._described.now(), self._described
        new = now.keys() - {e.own for e in described.entries} - described.copies.keys()
        if new:
            raise InvalidError(f"{len(new)} tensors are new in the model since its layout was made: make a new publisher: {_rules.listed(new)}")
        out = []
        for e in described.entries:
            tensor = now.get(e.own)
            if tensor is None:
                raise InvalidError("is no longer in the model: make a new publisher", tensor=e.name)
            if tensor is not e.tensor:
                place = _place(e.name, tensor)
                if place != (e.shape, e.local_shape, e.runs):
                    raise InvalidError(f"was replaced by one that lies otherwise: shape {e.shape}, here {e.local_shape}, before, {place[0]}, here {place[1]}, now: make a new publisher", tensor=e.name)
                log.info("%s was replaced in the model; the new one is published", e.name)
            local = _local(tensor.detach())
            if tuple(local.shape) != e.local_shape:
                raise InvalidError(f"its local shape was {e.local_shape} and is {tuple(local.shape)}: make a new publisher", tensor=e.name)
            if local.device.type != "cpu":
                raise UnsupportedError(f"the tensor moved to {local.device}; this build moves host memory only", tensor=e.name)
            if _layout_dtype(e.name, local.dtype) != e.stored:
                raise InvalidError(f"its dtype was {e.stored} and is {local.dtype}: make a new publisher", tensor=e.name)
            out.append((e, tensor, local))
        for copy, e in described.copies.items():
            if now.get(copy) is not now[e.own]:
                raise InvalidError(f"was tied with '{e.name}' and is so no longer: make a new publisher", tensor=plain_name(copy))
        for e, tensor, _ in out:
            e.tensor = tensor
        return [local for _, _, local in out]

    def pack(self) -> None:
        """Errors of follow(): nothing was copied then. Adapters are added on the way: collective where they are sharded."""
        found, tensors = self._described.adapters()
        _refuse_tied_updates(self._described, found, tensors)
        updates = found.updates if found else {}
        for local, (e, view) in zip(self.follow(), self._pairs, strict=True):
            added = updates.get(e.own)
            if not added:
                if view is not None:
                    view.copy_(local)
                continue
            # In the base's dtype, as PEFT merges: in place where that is lent.
            merged = local.clone() if view is None or view.dtype != local.dtype else view.copy_(local)
            for u in added:
                values = u.values(tensors, e.runs)
                if view is not None:
                    merged.add_(values.to(merged.dtype) if u.rounded else values)
            if view is not None and merged is not view:
                view.copy_(merged)


class TorchPublisher(Publisher):
    """What Publisher.from_torch() returns."""

    def __init__(self, address: str, described: Described, layout: Layout, rank: int, *, threads: int, join_timeout_s: float) -> None:
        super().__init__(address, layout, rank, threads=threads, join_timeout_s=join_timeout_s)
        self._packer = Packer(described, self.buffers)

    def publish(self, step: int, weight_set: str = "policy", timeout_s: float = 30) -> None:
        """Copies the weights as they are now, once no round holds the former copy (BusyError at the deadline).

        A parameter that was replaced is followed, or refused by name where it lies otherwise than the layout says.
        """
        self.guard(timeout_s)
        self._packer.pack()
        super().publish(step, weight_set)
