"""Model rules (of the native part) on live parameters: where a box of a parameter lies among the logical tensors."""

from __future__ import annotations

import bisect
import fnmatch
import json
import math
import os
import pathlib
from dataclasses import dataclass
from itertools import product
from typing import Any, Iterable, Iterator, Mapping, Sequence

from .. import _arrays
from .._errors import Error, InternalError, InvalidError, MismatchError, UnsupportedError
from ..layout import Layout

Interval = tuple[int, int]  # half open
_LISTED = 12  # names in a message


def config_text(config: Any) -> str:
    """The text of config.json: of a path (file or checkpoint directory), a text, a mapping, or a configuration object of
    transformers."""
    if hasattr(config, "to_json_string"):
        return str(config.to_json_string())
    if isinstance(config, Mapping):
        return json.dumps(config)
    if isinstance(config, str) and config.lstrip().startswith("{"):
        return config
    if isinstance(config, (str, os.PathLike)):
        path = pathlib.Path(config)
        try:
            return (path / "config.json" if path.is_dir() else path).read_text()
        except OSError as e:
            raise InvalidError(f"config: {e}") from None
    raise InvalidError(f"config: a {type(config).__name__} is none: give a path, the text of config.json, a mapping or a transformers configuration")


def listed(names: Iterable[str]) -> str:
    """Sorted, with an end."""
    all_names = sorted(names)
    more = len(all_names) - _LISTED
    return ", ".join(all_names[:_LISTED]) + (f" and {more} more" if more > 0 else "")


def ignored(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, p) for p in patterns)


def widens(have: str, want: str) -> bool:
    """Every value of `have` is one of `want`."""
    return have == want or want in {"bf16": ("f32", "f64"), "f16": ("f32", "f64"), "f32": ("f64",)}.get(have, ())


@dataclass
class Factor:
    """How one factor of a logical tensor's view moves in the parameter."""

    axis: int
    step: int  # indices of that axis


@dataclass
class Piece:
    """A box of a logical tensor that lies in a parameter."""

    tensor: str
    view: list[list[int]] | None
    box: list[Interval]
    factors: list[Factor]
    base: list[int]  # index of the box's first element in the parameter


@dataclass
class Own:
    """A parameter of the side's own model, whole."""

    shape: tuple[int, ...]
    dtype: str
    pieces: list[Piece]


def within(factors: Sequence[tuple[int, int]], lo: int, hi: int) -> Iterator[tuple[Interval, ...]]:
    """Boxes of the indices i with lo <= sum(i_k * step_k) < hi, each once. factors: (extent, step), longest step first."""
    if not factors:
        if lo <= 0 < hi:
            yield ()
        return
    (extent, step), rest = factors[0], factors[1:]
    span = sum((n - 1) * s for n, s in rest)  # of the others, inclusive
    first, last = max(0, -(-(lo - span) // step)), min(extent, (hi - 1) // step + 1)  # in part, at least
    begin, end = max(0, -(-lo // step)), min(extent, (hi - 1 - span) // step + 1)  # whole
    if begin < end:
        yield ((begin, end), *((0, n) for n, _ in rest))
    else:
        begin = end = last
    for i in (*range(first, min(begin, last)), *range(max(end, first), last)):
        for inner in within(rest, lo - i * step, hi - i * step):
            yield ((i, i + 1), *inner)


def row_major(shape: Sequence[int]) -> list[int]:
    steps, step = [], 1
    for n in reversed(shape):
        steps.insert(0, step)
        step *= n
    return steps


class Rules:
    """A side's own parameters of one model, whole: `spec` is that side on one rank."""

    def __init__(self, config: str, spec: str) -> None:
        self.config, self.spec = config, spec
        layout = Layout.from_config(config, spec)
        if layout.world != 1:
            raise InvalidError(f"'{spec}' has {layout.world} ranks, and rules of whole parameters have one")
        self.tensors = layout.tensors
        self.tied = layout.tied
        info = layout._native.rank(0)
        self.parameters = {p.name: Own(tuple(p.shape), p.dtype, []) for p in info.parameters}
        places = sorted((p.buffer, p.offset, p.name) for p in info.parameters)
        starts = [(b, o) for b, o, _ in places]
        for h in info.holdings:
            if any(lo == hi for lo, hi in h.box):
                continue
            _, offset, name = places[bisect.bisect_right(starts, (h.buffer, h.offset)) - 1]
            self.parameters[name].pieces.append(_piece(self.parameters[name], name, h, h.offset - offset))

    def dtypes(self, base: str) -> dict[str, str]:
        """What every logical tensor has in a model of dtype `base`: families keep some in float32."""
        names = {v: k for k, v in _arrays.NAMES.items()}
        config = {k: v for k, v in json.loads(self.config).items() if k not in ("dtype", "torch_dtype")}
        made = Layout.from_config({**config, "torch_dtype": names[base]}, self.spec)
        return {n: d for n, (_, d) in made.tensors.items()}

    def find(self, name: str, shape: Sequence[int]) -> Own:
        """InvalidError for a parameter that the rules do not know, MismatchError for another shape."""
        own = self.parameters.get(name)
        if own is None:
            raise InvalidError(f"the rules of '{self.spec}' know no such parameter", tensor=name)
        if own.shape != tuple(shape):
            raise MismatchError(f"has shape {tuple(shape)}, by the configuration it has {own.shape}", tensor=name)
        return own


def _piece(own: Own, name: str, holding: Any, offset: int) -> Piece:
    item = _arrays.SIZES[own.dtype]
    steps, first = row_major(own.shape), offset // item
    base = []
    for n, step in zip(own.shape, steps, strict=True):
        base.append(first // step % n)
        first -= base[-1] * step
    factors = []
    for (lo, hi), stride in zip(holding.box, holding.strides, strict=True):
        moved = stride // item
        for axis, step in enumerate(steps):
            fits = moved % step == 0 and (hi - lo - 1) * (moved // step) < own.shape[axis] - base[axis]
            if hi - lo == 1 or (moved > 0 and moved >= step and fits):
                factors.append(Factor(axis, moved // step if hi - lo > 1 else 0))
                break
        else:
            if hi - lo != 1 or own.shape:
                raise UnsupportedError(f"a box of it lies across axes of '{name}'", tensor=holding.tensor)
            factors.append(Factor(-1, 0))
    return Piece(holding.tensor, holding.view or None, [tuple(i) for i in holding.box], factors, base)


def holdings(own: Own, box: Sequence[Interval], strides: Sequence[int], offset: int) -> Iterator[dict[str, Any]]:
    """The part of a parameter that lies in `box`, as holdings of a layout file (without their buffer).

    box: of the parameter, one interval per axis; its first element lies `offset` bytes into the buffer, and an index of
    axis a moves strides[a] bytes.
    """
    for piece in own.pieces:
        by_axis: list[list[int]] = [[] for _ in own.shape]
        for k, f in enumerate(piece.factors):
            if f.step:
                by_axis[f.axis].append(k)
        cuts = []
        for axis, (lo, hi) in enumerate(box):
            ks = sorted(by_axis[axis], key=lambda k: -piece.factors[k].step)
            sizes = [(piece.box[k][1] - piece.box[k][0], piece.factors[k].step) for k in ks]
            cuts.append([dict(zip(ks, found, strict=True)) for found in within(sizes, lo - piece.base[axis], hi - piece.base[axis])])
        for parts in product(*cuts):
            chosen = {k: interval for part in parts for k, interval in part.items()}
            at, inner, steps = offset, [], []
            for axis, (lo, _) in enumerate(box):
                at += (piece.base[axis] - lo) * strides[axis]
            for k, f in enumerate(piece.factors):
                a, b = chosen.get(k, (0, 1))
                step = f.step * strides[f.axis] if f.step else 0
                at += a * step
                inner.append([piece.box[k][0] + a, piece.box[k][0] + b])
                steps.append(step)
            out = {"tensor": piece.tensor, "box": inner, "offset": at, "strides": steps}
            if piece.view is not None:
                out["view"] = piece.view
            yield out


def without_drafts(config: str, spec: str, names: Iterable[str]) -> Rules:
    """The rules for a model with these parameters: without draft layers where it has none, which configurations count all
    the same."""
    full = Rules(config, spec)
    joined = spec + ("," if ":" in spec else ":") + "draft=skip"
    skipped = Rules(config, joined)
    drafts = full.parameters.keys() - skipped.parameters.keys()
    return full if drafts & set(names) or not drafts else skipped


def whole_or_refuse(rules: Rules, names: Iterable[str], ties: Iterable[tuple[str, str]] = ()) -> None:
    """InvalidError listing the parameters that the rules have and no rank of the trainer has."""
    have = set(names) | {n for pair in ties for n in pair}
    missing = rules.parameters.keys() - have
    if missing:
        raise InvalidError(f"{len(missing)} parameters of the configuration are missing in the trainer's model: {listed(missing)}")


def refuse_unknown(rules: Rules, names: Iterable[str]) -> None:
    """InvalidError listing the parameters that the rules do not have."""
    tied = {n for pair in rules.tied for n in pair}
    unknown = set(names) - rules.parameters.keys() - tied
    if unknown:
        raise InvalidError(
            f"{len(unknown)} names are no parameters of this configuration by the rules of '{rules.spec}' "
            f"(leave them out with `ignore`, or say config=False to go by the module's own names): {listed(unknown)}"
        )


def telling(e: Exception, rank: str) -> Error:
    """An exception as one that a rank can tell the others, before the collective call in which they wait for it."""
    if isinstance(e, Error):
        return e
    error = InternalError(f"{type(e).__name__}: {e}", peer=rank)
    error.__cause__ = e
    return error


def together(parts: Sequence[tuple[str, Any]], mine: Error | None, role: str = "source rank") -> None:
    """Raises this rank's error, or tells of another rank's. parts: (error or "", …) by rank."""
    if mine is not None:
        raise mine
    for other, (why, *_) in enumerate(parts):
        if why:
            raise MismatchError(f"its model cannot be published: {why}", peer=f"{role} {other}")


def elements(shape: Iterable[int]) -> int:
    return math.prod(shape)
