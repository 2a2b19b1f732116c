"""JAX trainers: layouts from the shardings of jax.Arrays, and their own memory lent as it lies."""

from __future__ import annotations

import fnmatch
import json
import logging
import math
import sys
from dataclasses import dataclass
from typing import Any, Iterable, Mapping

from .. import _arrays
from .._errors import Error, InvalidError, UnsupportedError
from ..layout import Layout
from ..members import Publisher
from . import rules as _rules

log = logging.getLogger("refit")

Box = tuple[tuple[int, int], ...]


def leaves(model: Any) -> dict[str, Any]:
    """{path joined with dots: jax.Array} of an NNX module or state, or of any tree of arrays. State of random number
    generators stays at home."""
    nnx = sys.modules.get("flax.nnx")
    if nnx is not None and isinstance(model, nnx.Module):
        model = nnx.state(model)
    if nnx is not None and isinstance(model, nnx.State):
        flat = [(path, leaf) for path, leaf in nnx.to_flat_state(model) if not isinstance(leaf, nnx.RngState)]
        return {".".join(map(str, path)): leaf.get_value() if isinstance(leaf, nnx.Variable) else leaf for path, leaf in flat}
    import jax

    flat, _ = jax.tree_util.tree_flatten_with_path(model)
    return {".".join(str(getattr(k, "key", getattr(k, "idx", getattr(k, "name", k)))) for k in path): leaf for path, leaf in flat}


def shards(name: str, array: Any) -> dict[Box, Any]:
    """The distinct boxes that this process holds of an array, and the array of one device for each. Sorted."""
    out: dict[Box, Any] = {}
    for shard in array.addressable_shards:
        if shard.data.device.platform != "cpu":
            raise UnsupportedError(f"the array is on {shard.data.device}; this build moves host memory only", tensor=name)
        box = tuple((i.start or 0, n if i.stop is None else i.stop) for i, n in zip(shard.index, array.shape, strict=True))
        out.setdefault(box, shard.data)
    return dict(sorted(out.items()))


@dataclass
class Entry:
    """One array of the model as the layout has it."""

    name: str
    shape: tuple[int, ...]
    given: Any  # dtype in the model
    dtype: str  # where it is lent from and on the wire, in the names of layout files
    boxes: list[Box]

    def buffers(self) -> list[str]:
        """A buffer for each box."""
        return [f"{self.name}@{k}" if k else self.name for k in range(len(self.boxes))]


class Described:
    """What this process holds of a model. Errors as for torch: InvalidError listing unknown names."""

    def __init__(self, model: Any, *, config: Any, ignore: Iterable[str], dtypes: Mapping[str, str] | None) -> None:
        self.ignore, self.wanted = list(ignore), dict(dtypes or {})
        unknown = [d for d in self.wanted.values() if d not in _arrays.NUMPY]
        if unknown:
            raise InvalidError(f"dtypes: '{unknown[0]}' is no dtype of layout files")
        arrays = self.arrays(model)
        self.rules = None if config is None else _rules.without_drafts(_rules.config_text(config), "jax", arrays)
        if not arrays:
            raise InvalidError("the model has no array to publish")
        if self.rules:
            _rules.refuse_unknown(self.rules, arrays)
        said = {n: d for n in arrays for pattern, d in reversed(self.wanted.items()) if fnmatch.fnmatchcase(n, pattern)}
        self.entries = []
        for name, a in arrays.items():
            dtype = said.get(name) or _dtype(name, a)
            if self.rules:
                self.rules.find(name, a.shape)
            self.entries.append(Entry(name, tuple(a.shape), a.dtype, dtype, list(shards(name, a))))

    def arrays(self, model: Any) -> dict[str, Any]:
        import jax

        out = {n: a for n, a in leaves(model).items() if not _rules.ignored(n, self.ignore)}
        for name, a in out.items():
            if not isinstance(a, jax.Array):
                raise InvalidError(f"is a {type(a).__name__}, not a jax.Array", tensor=name)
        return out

    def part(self, rank: int) -> dict[str, Any]:
        """The content of a layout file with this rank alone."""
        tensors, buffers, held = {}, {}, []
        for e in self.entries:
            own = self.rules.parameters[e.name] if self.rules else None
            if own is None:
                tensors[e.name] = {"shape": list(e.shape), "dtype": e.dtype}
            for piece in own.pieces if own else ():
                tensors[piece.tensor] = {"shape": list(self.rules.tensors[piece.tensor][0]), "dtype": e.dtype}
            for buffer, box in zip(e.buffers(), e.boxes, strict=True):
                local = [hi - lo for lo, hi in box]
                item = _arrays.SIZES[e.dtype]
                strides = [n * item for n in _rules.row_major(local)]
                buffers[buffer] = {"bytes": math.prod(local) * item}
                if 0 in local:
                    continue
                there = _rules.holdings(own, box, strides, 0) if own else [{"tensor": e.name, "box": [list(i) for i in box], "offset": 0, "strides": strides}]
                held += [dict(h, buffer=buffer) for h in there]
        ties = [list(pair) for pair in self.rules.tied] if self.rules else []
        return {"tensors": tensors, "tied": ties, "ranks": [{"rank": rank, "buffers": buffers, "holdings": held}]}

    def memory(self, model: Any) -> dict[str, Any]:
        """buffer -> Lent of the arrays as they are now. InvalidError naming one that the layout no longer describes."""
        import jax

        arrays = self.arrays(model)
        odd = arrays.keys() ^ {e.name for e in self.entries}
        if odd:
            raise InvalidError(f"{len(odd)} arrays came or went since the layout was made: make a new publisher: {_rules.listed(odd)}")
        out = {}
        for e in self.entries:
            a = arrays[e.name]
            now = shards(e.name, a)
            if (tuple(a.shape), a.dtype, list(now)) != (e.shape, e.given, e.boxes):
                raise InvalidError(
                    f"was {e.given} {e.shape} in {len(e.boxes)} parts here, and is {a.dtype} {tuple(a.shape)} in {len(now)}, or cut elsewhere: make a new publisher",
                    tensor=e.name,
                )
            for buffer, data in zip(e.buffers(), now.values(), strict=True):
                if e.dtype != _arrays.layout_dtype(a.dtype):
                    data = data.astype(_NAMED[e.dtype])
                jax.block_until_ready(data)  # it may still be computed: what is lent is read by others than JAX
                try:
                    out[buffer] = _arrays.lend(data, writable=False)
                except (InvalidError, UnsupportedError) as error:
                    raise type(error)(error.message, tensor=e.name) from None
        return out


_NAMED = {v: k for k, v in _arrays.NAMES.items()}


def _dtype(name: str, array: Any) -> str:
    try:
        return _arrays.dtype_name(array)
    except UnsupportedError as e:
        raise UnsupportedError(e.message, tensor=name) from None


def _gathered(mine: Any) -> list[Any]:
    """Every process' object."""
    import jax

    if jax.process_count() == 1:
        return [mine]
    import numpy as np
    from jax.experimental import multihost_utils

    text = np.frombuffer(json.dumps(mine).encode(), np.uint8)
    sizes = np.asarray(multihost_utils.process_allgather(np.array([text.size])))
    padded = np.zeros(int(sizes.max()), np.uint8)
    padded[: text.size] = text
    rows = np.asarray(multihost_utils.process_allgather(padded))
    return [json.loads(row[: int(n)].tobytes()) for row, n in zip(rows.reshape(len(sizes), -1), sizes.reshape(-1), strict=True)]


def agree(model: Any, *, config: Any = None, ignore: Iterable[str] = (), dtypes: Mapping[str, str] | None = None) -> tuple[Described, Layout, int]:
    """What this process holds, the layout of all processes, and this process' rank in it. Collective over them."""
    import jax

    rank = jax.process_index()
    failed: Error | None = None
    mine: list[Any] = ["", {}, []]
    try:
        described = Described(model, config=config, ignore=ignore, dtypes=dtypes)
        mine = ["", described.part(rank), [e.name for e in described.entries]]
    except Exception as e:  # noqa: BLE001 - raised by together(), once the others know of it
        failed = _rules.telling(e, f"source rank {rank}")
        mine = [str(failed), {}, []]
    parts = _gathered(mine)
    _rules.together(parts, failed)
    if described.rules:
        _rules.whole_or_refuse(described.rules, (n for _, _, names in parts for n in names))
    return described, Layout.merge(part for _, part, _ in parts), rank


class JaxPublisher(Publisher):
    """What Publisher.from_jax() returns. Lends the arrays' own memory; has no views of it (`tensors` is empty), since they
    would keep the arrays of former steps alive."""

    _views = False

    def __init__(self, address: str, model: Any, agreed: tuple[Described, Layout, int], *, threads: int, join_timeout_s: float) -> None:
        self._described, layout, rank = agreed
        self._model = model
        super().__init__(address, layout, rank, memory=self._described.memory(model), threads=threads, join_timeout_s=join_timeout_s)

    def guard(self, timeout_s: float = 30) -> None:
        """Before arrays are donated: waits until no round reads them (BusyError at the deadline), and lets them go. JAX
        copies what it cannot take over while it is lent."""
        super().guard(timeout_s)
        self._native.forget()

    def publish(self, step: int, weight_set: str = "policy", timeout_s: float = 30, *, model: Any = None) -> None:
        """The arrays that the model has now are those of `step`; the former ones are let go once no round reads them
        (BusyError at the deadline).

        model: the new state, where the one given first is no module that changes in place.
        """
        self._model = self._model if model is None else model
        self.rebind(self._described.memory(self._model), timeout_s)
        super().publish(step, weight_set)


def publisher(
    address: str,
    model: Any,
    *,
    config: Any = None,
    ignore: Iterable[str] = (),
    dtypes: Mapping[str, str] | None = None,
    threads: int = 1,
    join_timeout_s: float = 60,
) -> JaxPublisher:
    """This process of a JAX trainer, which is one rank: all its devices' shards, each distinct box once.

    model: an NNX module, or a state or tree of jax.Arrays on CPU devices. Their memory is lent as it lies (bf16 too) and
    never written: over ``tcp`` nothing is copied, over ``shm`` once into shared memory at each seal. Arrays are replaced at
    every step: publish() takes those that the model has then.

    config: the Hugging Face configuration (path, text, mapping, object). With it the paths are those of Refit's `jax` side
    (``model.layers.0.mlp.experts.w1_EFD``, kernels turned), and parameters that are unknown, missing or of another shape are
    refused in a list. Without it the paths themselves are the tensors' names.
    ignore: patterns of paths that stay at home. dtypes: pattern -> dtype of layout files, cast as JAX casts, into new arrays.
    Collective over the processes of jax.distributed.
    """
    agreed = agree(model, config=config, ignore=ignore, dtypes=dtypes)
    return JaxPublisher(address, model, agreed, threads=threads, join_timeout_s=join_timeout_s)
