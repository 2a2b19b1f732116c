"""Layouts from an engine's own weight loader, for engines and model classes that no rule covers.

The model is built without memory (torch's meta device), its loader is handed checkpoint tensors without memory, and every
operation on the way is watched: views keep their storage, offset and strides, so that a copy says which elements of which
checkpoint tensor land where. What a loader computes, or decides after looking at values, cannot be followed; such tensors
are reported by name and get no holding.

    found = trace(build, checkpoint)        # one rank; `build` makes the rank's model
    layout = layout_of([found, …], checkpoint)

The result is a layout file as `refit plan --target-layout` and `refit reshard` read it.
"""
from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Callable, Iterable, Mapping, Sequence

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["Holding", "Trace", "TraceError", "WithoutMemory", "trace", "layout_of", "boxes_of", "differences"]

aten = torch.ops.aten

# A parameter whose holdings number more than this is reported instead: its loader shuffles single elements.
MAX_HOLDINGS = 65536
# Copies of one element (a scale for each row out of one for all): more are reported.
MAX_REPEATS = 256

DTYPES = {torch.bool: "bool", torch.uint8: "u8", torch.int8: "i8", torch.int16: "i16", torch.int32: "i32", torch.int64: "i64", torch.float16: "f16",
          torch.bfloat16: "bf16", torch.float32: "f32", torch.float64: "f64", torch.float8_e4m3fn: "f8_e4m3", torch.float8_e5m2: "f8_e5m2"}


class TraceError(RuntimeError):
    """The loader cannot be traced at all; per-tensor findings are in `Trace.problems` instead."""


class LooksAtValues(TraceError):
    def __init__(self, tensor: str, op: str):
        super().__init__(f"the loader looks at values of {tensor} ({op})")
        self.tensor, self.op = tensor, op


# ---- regions: an offset and (count, stride) per axis, in elements of one storage ------------------------------------------


@dataclasses.dataclass(frozen=True)
class Write:
    """Elements of a storage and where they came from: a checkpoint tensor, zeros, or something computed."""

    offset: int
    counts: tuple[int, ...]
    strides: tuple[int, ...]
    tensor: str = ""  # of the checkpoint
    source_offset: int = 0
    source_strides: tuple[int, ...] = ()
    computed: str = ""  # the operation; the elements are no copy of the checkpoint's then
    among: tuple[str, ...] = ()  # the tensors that it computed with

    def last(self) -> int:
        return self.offset + sum((n - 1) * s for n, s in zip(self.counts, self.strides))


def _sorted_axes(counts, strides, other=()):
    """Axes of more than one element, outermost in the storage first."""
    other = other or (0,) * len(counts)
    axes = sorted((s, o, n) for n, s, o in zip(counts, strides, other) if n != 1)
    return [(n, s, o) for s, o, n in reversed(axes)]


def _nested(w: Write) -> list[Write]:
    """The same elements, so that each stride is a multiple of all smaller ones: then an address has one place in the write."""
    axes = _sorted_axes(w.counts, w.strides, w.source_strides)
    for (n, s, _), (m, t, _) in zip(axes, axes[1:]):
        if t == 0 or s % t or m * t > s:
            i = next(i for i in range(len(w.counts)) if w.counts[i] == n and w.strides[i] == s)
            counts = w.counts[:i] + (1,) + w.counts[i + 1:]
            step = w.source_strides[i] if w.source_strides else 0
            if n > MAX_HOLDINGS:
                raise TraceError(f"a write of strides {w.strides} falls into {n} parts")
            return [x for k in range(n) for x in _nested(dataclasses.replace(w, offset=w.offset + k * s, counts=counts, source_offset=w.source_offset + k * step))]
    return [w]


class Store:
    """What one storage holds, as the writes that filled it; later ones win."""

    def __init__(self, numel: int):
        self.numel = numel
        self.writes: list[Write] = []

    def write(self, w: Write) -> None:
        self.writes += _nested(w)

    def pieces(self, offset, counts, strides, upto=None):
        """The region cut so that each part has one origin: [(first index per axis, counts, Write or None)]. The write of a
        part is re-expressed for exactly its elements. None: nothing was written there."""
        out, todo = [], [(tuple(0 for _ in counts), tuple(counts), len(self.writes) if upto is None else upto)]
        while todo:
            first, size, until = todo.pop()
            at = offset + sum(f * s for f, s in zip(first, strides))
            last = at + sum((n - 1) * s for n, s in zip(size, strides))
            for k in range(until - 1, -1, -1):
                w = self.writes[k]
                if at > w.last() or last < w.offset:
                    continue
                found = _meet(at, size, strides, w)
                if found == "apart":
                    continue
                if isinstance(found, Write):
                    out.append((first, size, found))
                else:
                    axis, cut = found
                    low, high = list(size), list(size)
                    low[axis], high[axis] = cut, size[axis] - cut
                    start = list(first)
                    start[axis] += cut
                    todo += [(tuple(start), tuple(high), k + 1), (first, tuple(low), k + 1)]
                    if len(todo) + len(out) > MAX_HOLDINGS:
                        raise TraceError(f"a storage of {self.numel} elements is written in more than {MAX_HOLDINGS} parts")
                break
            else:
                out.append((first, size, None))
        return out


def _meet(at, counts, strides, w: Write):
    """A region against a write: the Write for exactly the region when it lies inside; "apart"; or (axis, cut) where the
    region has to be cut first."""
    axes = _sorted_axes(w.counts, w.strides, w.source_strides)
    rest, digits, pitch = at - w.offset, [], []
    for k, (n, s, _) in enumerate(axes):
        d = rest // s
        digits.append(d)
        rest -= d * s
        pitch.append(axes[k - 1][1] // s if k else None)
    # Which axis of the write each axis of the region runs along, and how many of its steps it takes at once.
    along, reach = {}, list(digits)
    for i, (n, s) in enumerate(zip(counts, strides)):
        if n == 1 or s == 0:
            continue
        k = next((k for k, (_, t, _) in enumerate(axes) if t <= s and s % t == 0), None)
        if k is None:
            return (i, n // 2) if axes or n > 1 else "apart"
        along[i] = (k, s // axes[k][1])
        reach[k] += (n - 1) * (s // axes[k][1])
    for k, (n, s, _) in enumerate(axes):
        mine = [i for i, (j, _) in along.items() if j == k]
        if k and reach[k] >= pitch[k]:  # runs over into the next step of the outer axis
            i = max(mine, key=lambda i: counts[i] * along[i][1])
            m = along[i][1]
            room = (pitch[k] - digits[k] + m - 1) // m
            return (i, room if len(mine) == 1 and 0 < room < counts[i] else counts[i] // 2)
    if rest != 0:
        return "apart"  # between the write's elements, wherever the region goes
    for k, (n, s, _) in enumerate(axes):
        if digits[k] >= n or reach[k] < 0:
            return "apart"
    for k, (n, s, _) in enumerate(axes):
        if digits[k] >= 0 and reach[k] < n:
            continue
        mine = [i for i, (j, _) in along.items() if j == k]
        i = max(mine, key=lambda i: counts[i] * along[i][1])
        if len(mine) > 1:
            return (i, counts[i] // 2)
        m = along[i][1]
        edge = (n - digits[k] + m - 1) // m if digits[k] >= 0 else (-digits[k] + m - 1) // m
        return (i, edge if 0 < edge < counts[i] else counts[i] // 2)
    source = tuple(along[i][1] * axes[along[i][0]][2] if i in along else 0 for i in range(len(counts)))
    begin = w.source_offset + sum(d * o for d, (_, _, o) in zip(digits, axes))
    return Write(at, tuple(counts), tuple(strides), w.tensor, begin, source, w.computed, w.among)


class WithoutMemory(TorchFunctionMode):
    """Within it, memory that is made uninitialised is made on the meta device, whatever device was asked for: that is what
    weights are made from. Tables with values (which experts lie here) stay real, since loaders look them up."""

    MADE = {torch.empty, torch.empty_like, torch.empty_strided, torch.Tensor.new_empty, torch.Tensor.new_empty_strided}

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func in self.MADE:
            kwargs["device"] = "meta"
            kwargs.pop("pin_memory", None)
        return func(*args, **kwargs)


# ---- the recorder ---------------------------------------------------------------------------------------------------------


def _key(t: torch.Tensor) -> int:
    return t.untyped_storage()._cdata


def _elements(t: torch.Tensor) -> int:
    return t.untyped_storage().nbytes() // t.element_size()


def _tensors(values) -> Iterable[torch.Tensor]:
    for v in values:
        if isinstance(v, torch.Tensor):
            yield v
        elif isinstance(v, (list, tuple)):
            yield from _tensors(v)


LOOKS = {aten._local_scalar_dense.default, aten.equal.default, aten.nonzero.default, aten.is_nonzero.default, aten.masked_select.default}
COPIES = {aten._to_copy.default, aten.clone.default, aten.detach.default, aten.alias.default}
SHAPED = {"empty", "zeros", "ones", "full", "empty_like", "zeros_like", "new_empty", "new_zeros", "empty_strided", "new_empty_strided"}
ZEROS = {"zeros", "zeros_like", "new_zeros", "zero_"}


class Recorder(TorchDispatchMode):
    def __init__(self, model: torch.nn.Module, checkpoint: Mapping[str, torch.Tensor]):
        super().__init__()
        self.stores: dict[int, Store] = {}
        self.kept: list[torch.Tensor] = []  # a storage that is freed could be met again under the same key
        for t in [*model.parameters(), *model.buffers()]:
            self.stores.setdefault(_key(t), Store(_elements(t)))
            self.kept.append(t)
        for name, t in checkpoint.items():
            self._hold(t).write(Write(0, tuple(t.shape), t.stride(), name, 0, t.stride()))

    def _hold(self, t: torch.Tensor) -> Store:
        self.kept.append(t)
        self.stores[_key(t)] = Store(_elements(t))
        return self.stores[_key(t)]

    def origins(self, t: torch.Tensor) -> list[str]:
        store = self.stores.get(_key(t))
        return sorted({n for w in store.writes for n in (w.tensor, *w.among) if n}) if store else []

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """`target`'s elements become `source`'s."""
        if source.shape != target.shape:
            source = source.expand(target.shape)
        into = self.stores.get(_key(target)) or self._hold(target)
        if target.numel() == 0:
            return
        store = self.stores.get(_key(source))
        if store is None:
            into.write(Write(target.storage_offset(), tuple(target.shape), target.stride(), source_strides=(0,) * target.dim(), computed="a tensor that is not of the checkpoint"))
            return
        for first, counts, w in store.pieces(source.storage_offset(), tuple(source.shape), source.stride()):
            at = target.storage_offset() + sum(f * s for f, s in zip(first, target.stride()))
            if w is None:
                w = Write(0, (), (), source_strides=(0,) * len(counts), computed="memory that nothing was written to")
            into.write(dataclasses.replace(w, offset=at, counts=counts, strides=target.stride()))

    def write_all(self, t: torch.Tensor, **origin) -> None:
        store = self.stores.get(_key(t)) or self._hold(t)
        if t.numel():
            store.write(Write(t.storage_offset(), tuple(t.shape), t.stride(), source_strides=(0,) * t.dim(), **origin))

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        watched = [t for t in _tensors([*args, *kwargs.values()]) if _key(t) in self.stores]
        names = sorted({n for t in watched for n in self.origins(t)})
        if func in LOOKS and names:
            raise LooksAtValues(names[0], str(func))
        base = func._schema.name.split("::")[1]
        if func is aten.copy_.default:
            # A parameter with memory of its own (made for an explicit device) keeps it: there is nothing to copy from.
            out = args[0] if args[1].is_meta and not args[0].is_meta else func(*args, **kwargs)
            if watched:
                self.copy(args[0], args[1])
            return out
        out = func(*args, **kwargs)
        if base in SHAPED and isinstance(out, torch.Tensor):
            self._hold(out)
            if base in ZEROS:
                self.write_all(out)
            return out
        if not watched:
            return out
        written = [a for a, spec in zip(args, func._schema.arguments) if spec.alias_info is not None and spec.alias_info.is_write]
        for t in _tensors(written):
            zero = base == "zero_" or base == "fill_" and args[1] == 0
            self.write_all(t, **({} if zero else self._by(func, names)))
        if written:
            return out
        if base in ("cat", "stack") and isinstance(out, torch.Tensor):
            self._join(out, args[0], (args[1] if len(args) > 1 else kwargs.get("dim", 0)) % out.dim(), base == "stack")
            return out
        for t in _tensors([out]):
            if _key(t) in self.stores:
                continue  # a view
            self._hold(t)
            if func in COPIES and t.shape == args[0].shape:
                self.copy(t, args[0])
            else:
                self.write_all(t, **self._by(func, names))
        return out

    def _by(self, func, names) -> dict:
        return {"computed": f"{func}" + (f" of {', '.join(names[:4])}" if names else ""), "tensor": names[0] if len(names) == 1 else "", "among": tuple(names)}

    def _join(self, out, parts, dim, stacked) -> None:
        self._hold(out)
        at = 0
        for part in parts:
            part = part.unsqueeze(dim) if stacked else part
            if part.numel():
                self.copy(out.narrow(dim, at, part.shape[dim]), part)
                at += part.shape[dim]


# ---- one rank -------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Holding:
    """Elements of one checkpoint tensor in one buffer: `box` and `strides` (elements) have an entry per factor of `view`."""

    tensor: str
    view: tuple[tuple[int, ...], ...]
    box: tuple[tuple[int, int], ...]
    buffer: str
    offset: int
    strides: tuple[int, ...]


@dataclasses.dataclass
class Buffer:
    numel: int
    dtype: torch.dtype
    names: list[str]  # the parameters that lie in it; the first one names it
    unwritten: int = 0  # elements that the loader leaves as they are made: padding


@dataclasses.dataclass
class Trace:
    buffers: dict[str, Buffer]
    holdings: list[Holding]
    problems: dict[str, str]  # checkpoint tensor or parameter -> why it has no holding
    unused: list[str]  # checkpoint tensors of which nothing landed and that no problem names


def boxes_of(shape: Sequence[int], offset: int, counts: Sequence[int], strides: Sequence[int], other: Sequence[int]):
    """A region of a contiguous tensor of `shape` as boxes of factored views: [(view, box, start in `other`, strides of
    `other` per factor)]. `other` strides run along in another storage. All in elements."""
    out = []
    todo = [(offset, 0, tuple(zip(counts, strides, other)))]
    while todo:
        at, begin, axes = todo.pop()
        found = _factored(shape, at, [a for a in axes if a[0] != 1])
        if not isinstance(found[0], str):
            view, box, along = found
            out.append((view, box, begin, along))
        elif found[0] == "split":
            _, axis, inner = found
            n, s, o = axis
            rest = list(axes)
            rest.remove(axis)
            todo.append((at, begin, (*rest, (n // inner, s * inner, o * inner), (inner, s, o))))
        else:
            _, axis, cut = found
            n, s, o = axis
            rest = list(axes)
            rest.remove(axis)
            todo += [(at + cut * s, begin + cut * o, (*rest, (n - cut, s, o))), (at, begin, (*rest, (cut, s, o)))]
        if len(out) + len(todo) > MAX_HOLDINGS:
            raise TraceError(f"more than {MAX_HOLDINGS} boxes")
    return out


def _factored(shape, at, axes):
    """(view, box, strides along), or ("split", axis, inner count) or ("cut", axis, position) to be done first."""
    view, box, along = [], [], []
    pitch = math.prod(shape)
    for size in shape:
        whole, pitch = pitch, pitch // size if size else 1
        mine = sorted((a for a in axes if pitch <= a[1] < whole), key=lambda a: -a[1])
        here = at % whole // pitch
        outer, radices, place = whole, [], []
        for k, (n, s, o) in enumerate(mine):
            lower = mine[k + 1][1] if k + 1 < len(mine) else pitch
            if outer % s or s % lower or s == lower and k + 1 < len(mine):
                return "cut", mine[k], 1 if n == 2 else n // 2
            digit, radix = here * pitch % outer // s, outer // s
            if digit + n > radix:
                room = radix - digit
                if room < n and digit:
                    return "cut", mine[k], room
                if n % radix:
                    return "cut", mine[k], n - n % radix
                return "split", mine[k], radix
            radices.append(radix)
            place.append(((digit, digit + n), o))
            outer = s
        if not mine or outer != pitch:
            digit = here * pitch % outer // pitch
            radices.append(outer // pitch)
            place.append(((digit, digit + 1), 0))
        view.append(tuple(radices))
        box += [p for p, _ in place]
        along += [o for _, o in place]
    return tuple(view), tuple(box), tuple(along)


def trace(build: Callable[[], torch.nn.Module], checkpoint: Mapping[str, tuple[Sequence[int], torch.dtype]],
          load: Callable[[torch.nn.Module, Iterable], object] = lambda model, weights: model.load_weights(weights)) -> Trace:
    """Where the elements of a checkpoint land in one rank's model.

    `build` makes the model, within `WithoutMemory` or `torch.device("meta")`; it is called again for each tensor whose values the loader
    looks at, since that tensor is then left out. `checkpoint` maps names to (shape, dtype). Whatever else the loader raises
    is passed on."""
    problems: dict[str, str] = {}
    for _ in range(len(checkpoint) + 1):
        model = build()
        given = {n: torch.empty(tuple(s), dtype=d, device="meta") for n, (s, d) in checkpoint.items() if n not in problems}
        recorder = Recorder(model, given)
        try:
            with recorder, torch.no_grad():
                load(model, iter(given.items()))
        except LooksAtValues as e:
            problems[e.tensor] = str(e)
            continue
        return _read(model, recorder, given, problems)
    raise TraceError("the loader looks at the values of every tensor")


def _read(model, recorder, given, problems) -> Trace:
    out = Trace({}, [], problems, [])
    used: set[str] = set()
    names: dict[int, list[str]] = {}
    tensors = {}
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for name, t in [*parameters.items(), *model.named_buffers(remove_duplicate=False)]:
        names.setdefault(_key(t), []).append(name)
        tensors.setdefault(_key(t), t)
    for key, t in tensors.items():
        store = recorder.stores.get(key)
        if store is None:
            problems[names[key][0]] = "replaced by a tensor that is not of the checkpoint"
            continue
        if not store.writes and names[key][0] not in parameters:
            continue  # tables that the model computes
        buffer = Buffer(store.numel, t.dtype, names[key])
        out.buffers[names[key][0]] = buffer
        _read_store(store, t, buffer, given, out, used)
    out.unused = sorted(n for n in given if n not in used and n not in problems)
    return out


def _read_store(store, t, buffer, given, out, used) -> None:
    label = buffer.names[0]
    for counts, w in _contents(store, t):
        if w is None:
            buffer.unwritten += math.prod(counts)
        elif w.computed:
            out.problems.setdefault(w.tensor or label, f"{label} gets {w.computed}")
            used.update(w.among)
        elif w.tensor:
            used.add(w.tensor)
            shape = tuple(given[w.tensor].shape)
            repeated = [(n, d) for n, s, d in zip(w.counts, w.source_strides, w.strides) if s == 0 and n > 1]
            if math.prod(n for n, _ in repeated) > MAX_REPEATS:
                out.problems.setdefault(w.tensor, f"{label} repeats its elements {math.prod(n for n, _ in repeated)} times")
                continue
            axes = [(n, s, d) for n, s, d in zip(w.counts, w.source_strides, w.strides) if s != 0]
            boxes = boxes_of(shape, w.source_offset, *zip(*axes)) if axes else boxes_of(shape, w.source_offset, (), (), ())
            for copy in itertools.product(*(range(n) for n, _ in repeated)):
                at = w.offset + sum(k * d for k, (_, d) in zip(copy, repeated))
                out.holdings += [Holding(w.tensor, view, box, label, at + begin, along) for view, box, begin, along in boxes]


def _contents(store, t):
    """[(counts, Write or None)]: as the loader wrote it where its writes do not overlap, else cut along the parameter's axes."""
    kept = Store(store.numel)
    for w in store.writes:
        met = [p for _, _, p in kept.pieces(w.offset, w.counts, w.strides) if p is not None]
        if met:
            kept.writes = [k for k in kept.writes if not _covers(w, k, store.numel)]
            met = [p for _, _, p in kept.pieces(w.offset, w.counts, w.strides) if p is not None]
        if met:
            whole = t.numel() == store.numel
            return [(c, p) for _, c, p in store.pieces(0, tuple(t.shape) if whole else (store.numel,), t.stride() if whole else (1,))]
        kept.writes.append(w)
    left = store.numel - sum(math.prod(w.counts) for w in kept.writes)
    return [(w.counts, w) for w in kept.writes] + ([((left,), None)] if left else [])


def _covers(later, earlier, numel) -> bool:
    over = Store(numel)
    over.writes.append(later)
    return all(p is not None for _, _, p in over.pieces(earlier.offset, earlier.counts, earlier.strides))


# ---- layout files ---------------------------------------------------------------------------------------------------------


def layout_of(ranks: Sequence[Trace], checkpoint: Mapping[str, tuple[Sequence[int], torch.dtype]], host: str | None = None,
              tied: Sequence[tuple[str, str]] = ()) -> dict:
    """A layout file (explicit holdings) of traced ranks, in rank order.

    Raises TraceError when a trace has problems: a layout with gaps would be taken for a whole one."""
    for rank, found in enumerate(ranks):
        if found.problems:
            shown = [f"{name}: {why}" for name, why in sorted(found.problems.items())[:8]]
            raise TraceError(f"rank {rank}: {'; '.join(shown)} ({len(found.problems)} such in all)")
    out = {"tensors": {n: {"shape": list(s), "dtype": DTYPES[d]} for n, (s, d) in sorted(checkpoint.items())}, "ranks": [], "tied": [list(t) for t in tied]}
    for rank, found in enumerate(ranks):
        one = {"rank": rank, "buffers": {}, "holdings": []}
        if host is not None:
            one["host"] = host
        for name, b in found.buffers.items():
            one["buffers"][name] = {"bytes": b.numel * b.dtype.itemsize, "fill": 0}
        for h in found.holdings:
            dtype = found.buffers[h.buffer].dtype
            entry = {"tensor": h.tensor, "box": [list(b) for b in h.box], "buffer": h.buffer, "offset": h.offset * dtype.itemsize,
                     "strides": [s * dtype.itemsize for s in h.strides]}
            if any(len(v) > 1 for v in h.view):
                entry["view"] = [list(v) for v in h.view]
            if dtype != checkpoint[h.tensor][1]:
                entry["dtype"] = DTYPES[dtype]
            one["holdings"].append(entry)
        out["ranks"].append(one)
    return out


def differences(ruled: dict, traced: dict, *, apart: Iterable[str] = ()) -> dict[str, str]:
    """Where a rule-made layout and a traced one disagree: {tensor or parameter: why}; empty where every element of every
    parameter is the same one in both, however their boxes are cut.

    ruled: {"tensors": {…}, "ranks": [{"rank", "holdings", "parameters": [{"name", "shape", "dtype", "buffer", "offset"}]}]}, as
    Layout.describe() gives; traced: of layout_of(). Tensors in `apart` (value transforms of the rules, which a trace cannot
    follow) are left out."""
    out: dict[str, str] = {}
    apart = set(apart)
    for name in sorted(ruled["tensors"].keys() | traced["tensors"].keys()):
        a, b = (side["tensors"].get(name) for side in (ruled, traced))
        if a != b:
            out[name] = f"the rules have {a}, the trace {b}"
    if out:
        return out
    shapes = {n: t["shape"] for n, t in ruled["tensors"].items()}
    dtypes = {n: t["dtype"] for n, t in ruled["tensors"].items()}
    if len(ruled["ranks"]) != len(traced["ranks"]):
        return {"": f"the rules have {len(ruled['ranks'])} ranks, the trace {len(traced['ranks'])}"}
    for a, b in zip(ruled["ranks"], traced["ranks"]):
        _rank_differences(_by_parameter(a, shapes, dtypes, apart), _by_parameter(b, shapes, dtypes, apart), f"rank {b['rank']}", out)
    return out


def _by_parameter(rank, shapes, dtypes, apart):
    """{parameter: (dtype, [Write])}: a layout's holdings as writes into its parameters, in elements. Without parameters each
    buffer is one."""
    places = sorted((p["buffer"], p["offset"], p["name"]) for p in rank.get("parameters", []))
    out = {}
    for h in rank["holdings"]:
        if h["tensor"] in apart or any(lo == hi for lo, hi in h["box"]):
            continue
        name, begin = h["buffer"], 0
        if places:
            _, begin, name = max(p for p in places if p[0] == h["buffer"] and p[1] <= h["offset"])
        shape, dtype = shapes[h["tensor"]], h.get("dtype") or dtypes[h["tensor"]]
        item = next(d for d, n in DTYPES.items() if n == dtype).itemsize
        steps, pitch = [], 1  # elements of the tensor per step of each factor, innermost first
        for digit in reversed([r for axis in h.get("view") or [[n] for n in shape] for r in axis]):
            steps.insert(0, pitch)
            pitch *= digit
        source = sum(lo * s for (lo, _), s in zip(h["box"], steps))
        counts = tuple(hi - lo for lo, hi in h["box"])
        write = Write((h["offset"] - begin) // item, counts, tuple(s // item for s in h["strides"]), h["tensor"], source, tuple(steps))
        out.setdefault(name, (dtype, []))[1].append(write)
    return out


def _rank_differences(ruled, traced, where, out) -> None:
    for name in sorted(ruled.keys() | traced.keys()):
        if name not in ruled or name not in traced:
            out.setdefault(name, f"{where}: only {'the rules' if name in ruled else 'the trace'} put anything into this parameter")
            continue
        (dtype, mine), (other, theirs) = ruled[name], traced[name]
        if dtype != other:
            out.setdefault(name, f"{where}: stored as {dtype} by the rules, as {other} by the trace")
            continue
        elements = [sum(math.prod(w.counts) for w in ws) for ws in (mine, theirs)]
        if elements[0] != elements[1]:
            out.setdefault(mine[0].tensor, f"{where}: the rules put {elements[0]} elements into {name}, the trace {elements[1]}")
            continue
        store = Store(max(w.last() for w in mine) + 1)
        for w in mine:
            store.write(w)
        for w in theirs:
            if any(_elsewhere(w, first, counts, part) for first, counts, part in store.pieces(w.offset, w.counts, w.strides)):
                out.setdefault(w.tensor, f"{where}: the rules and the trace put other elements into {name}")
                break


def _elsewhere(w: Write, first, counts, part: Write | None) -> bool:
    """Is `part` of a rule-made parameter anything but the elements of `w` from index `first` on?"""
    if part is None or part.tensor != w.tensor:
        return True
    begin = w.source_offset + sum(f * s for f, s in zip(first, w.source_strides))
    return part.source_offset != begin or any(n > 1 and a != b for n, a, b in zip(counts, part.source_strides, w.source_strides))
