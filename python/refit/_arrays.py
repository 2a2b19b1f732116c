"""Arrays of any framework: lending their memory, and views of Refit's. No framework is imported unless it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Mapping

from . import _native
from ._errors import InvalidError, UnsupportedError

if TYPE_CHECKING:
    import numpy as np
    import torch

# dtype of layout files -> what NumPy calls it. NumPy has no bf16 and no fp8 of its own: their bits lie in integers.
NUMPY = {
    "bool": "bool",
    "u8": "uint8",
    "i8": "int8",
    "i16": "int16",
    "i32": "int32",
    "i64": "int64",
    "f16": "float16",
    "bf16": "uint16",
    "f32": "float32",
    "f64": "float64",
    "f8_e4m3": "uint8",
    "f8_e5m2": "uint8",
}
# Names of dtypes as frameworks print them (torch, ml_dtypes, JAX, NumPy) -> layout files.
NAMES = {
    "bool": "bool",
    "uint8": "u8",
    "int8": "i8",
    "int16": "i16",
    "int32": "i32",
    "int64": "i64",
    "float16": "f16",
    "bfloat16": "bf16",
    "float32": "f32",
    "float64": "f64",
    "float8_e4m3fn": "f8_e4m3",
    "float8_e5m2": "f8_e5m2",
}
SIZES = {"bool": 1, "u8": 1, "i8": 1, "i16": 2, "i32": 4, "i64": 8, "f16": 2, "bf16": 2, "f32": 4, "f64": 8, "f8_e4m3": 1, "f8_e5m2": 1}
_CARRIED = ("bf16", "f8_e4m3", "f8_e5m2")


def framework(array: Any) -> str:
    """The top package of an array's type: "numpy", "torch", "jax", …"""
    top = type(array).__module__.split(".")[0]
    return "jax" if top == "jaxlib" else top


def layout_dtype(dtype: Any) -> str:
    """A framework's dtype in the names of layout files. UnsupportedError for one that Refit does not move."""
    name = str(dtype).removeprefix("torch.")
    if name not in NAMES:
        raise UnsupportedError(f"dtype {dtype} is none that Refit moves")
    return NAMES[name]


def dtype_name(array: Any) -> str:
    """layout_dtype() of an array."""
    return layout_dtype(array.dtype)


def bits(array: Any) -> Any:
    """A NumPy array as one that can be exported: bf16 and fp8 as the integers that carry their bits."""
    if framework(array) == "numpy" and array.dtype.name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        return array.view(NUMPY[dtype_name(array)])
    return array


def lend(array: Any, *, writable: bool) -> _native.Lent:
    """An array's own memory (address, bytes), alive as long as what is returned, whatever becomes of the array.

    Takes whatever speaks DLPack or the buffer protocol, in host memory and row-major without gaps. With `writable`, a
    JAX array is refused: it is immutable, though its memory could be reached.
    """
    if isinstance(array, _native.Lent):
        return array
    if writable and framework(array) == "jax":
        raise InvalidError("a JAX array is immutable: Refit never writes into one; give NumPy or torch memory")
    if framework(array) == "torch":
        if array.device.type != "cpu":
            raise UnsupportedError(f"the tensor is on {array.device}; this build moves host memory only")
        array = array.detach()
    elif framework(array) == "numpy":
        array = bits(array)
        if writable and not array.flags.writeable:
            raise InvalidError("the NumPy array is read-only")
    elif isinstance(array, memoryview) and writable and array.readonly:
        raise InvalidError("the memoryview is read-only")
    elif writable and isinstance(array, bytes):
        raise InvalidError("bytes are immutable")
    try:
        return _native.lend_writable(array) if writable else _native.lend_readable(array)
    except TypeError:
        raise InvalidError(f"{type(array).__name__} has neither DLPack nor a buffer that can be {'written' if writable else 'read'}") from None


def lend_all(memory: Mapping[str, Any] | None, *, writable: bool) -> list[tuple[str, _native.Lent]]:
    """lend() for each buffer; an error names it."""
    out = []
    for name, array in (memory or {}).items():
        try:
            out.append((name, lend(array, writable=writable)))
        except (InvalidError, UnsupportedError) as e:
            raise type(e)(f"memory['{name}']: {e.message}") from None
    return out


class Tensor:
    """A box of a logical tensor where it lies in this process: a view, never a copy. Speaks DLPack.

    name; box: [(lo, hi), …] per axis (per factor where the layout factors the axes: ``factors``); shape: of the box;
    strides: in bytes; dtype: of storage, in the names of layout files (``bf16``, ``f8_e4m3``, …).
    """

    __slots__ = ("name", "box", "factors", "shape", "strides", "dtype", "offset", "_memory")

    def __init__(self, holding: _native.HoldingInfo, memory: memoryview) -> None:
        self.name = holding.tensor
        self.box = [tuple(i) for i in holding.box]
        self.factors = holding.view or None
        self.shape = tuple(hi - lo for lo, hi in self.box)
        self.strides = tuple(holding.strides)
        self.dtype = holding.dtype
        self.offset = holding.offset
        self._memory = memory

    def __repr__(self) -> str:
        return f"Tensor({self.name!r}, box={self.box}, dtype={self.dtype!r})"

    def _view(self) -> Any:
        return _native.view(self._memory, self.offset, list(self.shape), list(self.strides), self.dtype)

    def __dlpack__(self, **how: Any) -> Any:
        return self._view().__dlpack__(**how)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)  # DLPack's number of host memory

    def numpy(self) -> "np.ndarray[Any, Any]":
        """A NumPy view. The bits of bf16 and fp8 come as uint16 and uint8 (view them as ml_dtypes' types if you like)."""
        import numpy as np

        if 0 in self.shape:
            return np.zeros(self.shape, NUMPY[self.dtype])
        return np.ndarray(self.shape, NUMPY[self.dtype], buffer=self._memory, offset=self.offset, strides=self.strides)

    def torch(self) -> "torch.Tensor":
        """A torch view."""
        import torch

        return torch.from_dlpack(self)

    def assign(self, array: Any) -> None:
        """Copies the values of an array of any framework here. InvalidError naming the tensor unless shape and dtype
        are the box's own."""
        import numpy as np

        shape = tuple(array.shape)
        if shape != self.shape:
            raise InvalidError(f"the array has shape {shape}, the box {self.shape}", tensor=self.name)
        kind = framework(array)
        carrier = kind == "numpy" and self.dtype in _CARRIED and array.dtype == NUMPY[self.dtype]
        if not carrier and NAMES.get(str(array.dtype).removeprefix("torch.")) != self.dtype:
            raise InvalidError(f"the array has dtype {array.dtype}, the box {self.dtype}", tensor=self.name)
        if kind == "torch":
            self.torch().copy_(array.detach())
        else:
            np.copyto(self.numpy(), bits(np.asarray(array)))


class Parameter(Tensor):
    """A parameter of the side's own model where it lies in this process, whole and row-major: a view. `name` is the
    side's own, e.g. ``model.layers.0.self_attn.qkv_proj.weight`` of a vLLM rank."""

    __slots__ = ()

    def __init__(self, info: _native.ParameterInfo, memory: memoryview) -> None:
        strides, step = [], SIZES[info.dtype]
        for n in reversed(info.shape):
            strides.insert(0, step)
            step *= n
        self.name, self.shape, self.dtype, self.offset = info.name, tuple(info.shape), info.dtype, info.offset
        self.box, self.factors, self.strides = [(0, n) for n in info.shape], None, tuple(strides)
        self._memory = memory

    def __repr__(self) -> str:
        return f"Parameter({self.name!r}, shape={self.shape}, dtype={self.dtype!r})"


def tensors(rank: _native.RankInfo, buffers: list[tuple[str, memoryview]]) -> list[Tensor]:
    """Views of everything that a rank holds."""
    memory = dict(buffers)
    return [Tensor(h, memory[h.buffer]) for h in rank.holdings]


def parameters(rank: _native.RankInfo, buffers: list[tuple[str, memoryview]]) -> list[Parameter]:
    """Views of a rank's parameters."""
    memory = dict(buffers)
    return [Parameter(p, memory[p.buffer]) for p in rank.parameters]
