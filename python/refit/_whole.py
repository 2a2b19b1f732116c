"""Layouts of whole tensors on each of several ranks, as an engine's own loader takes them."""

from __future__ import annotations

from ._errors import UnsupportedError
from .layout import Layout


def whole_layout(model: str, ranks: int, replicas: int) -> Layout:
    """Every rank of every replica holds all of a checkpoint, under its names. model: its directory, or a configuration."""
    if ranks == 1:
        return Layout.from_model(model, f"hf:replicas={replicas}" if replicas > 1 else "hf")
    if replicas > 1:
        raise UnsupportedError(f"{replicas} replicas of {ranks} ranks with whole tensors on each rank: layouts of that form have one replica")
    return repeated(Layout.from_model(model, "hf"), ranks)


def repeated(one: Layout, ranks: int) -> Layout:
    """Ranks that each hold what rank 0 of `one` does."""
    buffers = {name: {"bytes": size} for name, size in one.buffers(0).items()}
    holdings = [{"tensor": h.tensor, "box": h.box, "buffer": h.buffer, "offset": h.offset, "strides": h.strides, "dtype": h.dtype} | ({"view": h.view} if h.view else {}) for h in one.holdings(0)]
    return Layout.from_json({
        "tensors": {name: {"shape": shape, "dtype": dtype} for name, (shape, dtype) in one.tensors.items()},
        "tied": one.tied,
        "ranks": [{"rank": r, "buffers": buffers, "holdings": holdings} for r in range(ranks)],
    })
