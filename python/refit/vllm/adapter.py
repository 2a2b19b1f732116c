"""Versions of one LoRA adapter in vLLM's own adapter manager; the base weights are never touched.

The adapter has a number of its own. Requests name it by that number (``LoRARequest(name, number, "refit")``): the manager has it
already, so vLLM opens no path for it.
"""

from __future__ import annotations

from typing import Any, Mapping

import torch
from vllm.lora.lora_model import LoRAModel
from vllm.lora.peft_helper import PEFTHelper

from .._arrays import SIZES
from .._errors import InvalidError, MismatchError, UnsupportedError
from .._whole import repeated
from ..layout import Layout


def adapter_layout(info: Mapping[str, Any], ranks: int) -> Layout:
    """Every rank holds the adapter whole, under the names that PEFT saves: vLLM's layers cut it. info: what
    ``refit.trainers.lora.adapter_info()`` told."""
    tensors, buffers, holdings = {}, {}, []
    for name, (shape, dtype) in info["tensors"].items():
        strides, step = [], SIZES[dtype]
        for n in reversed(shape):
            strides.insert(0, step)
            step *= n
        tensors[name] = {"shape": list(shape), "dtype": dtype}
        buffers[name] = {"bytes": step}
        holdings.append({"tensor": name, "box": [[0, n] for n in shape], "buffer": name, "offset": 0, "strides": strides})
    return repeated(Layout.from_json({"tensors": tensors, "tied": [], "ranks": [{"rank": 0, "buffers": buffers, "holdings": holdings}]}), ranks)


class Adapter:
    """info: of adapter_info(), and `id`, the adapter's number in requests. UnsupportedError where the engine has no LoRA or
    cannot take this adapter; nothing is changed then."""

    def __init__(self, model: torch.nn.Module, info: Mapping[str, Any]) -> None:
        manager = getattr(model, "lora_manager", None)
        if manager is None:
            raise UnsupportedError("init_info.adapter: the engine was started without enable_lora")
        if not hasattr(manager, "pin_adapter") or not hasattr(manager, "remove_all_adapters"):
            raise UnsupportedError(f"init_info.adapter: {type(manager).__name__} keeps no adapters in place")
        self._manager, self._id = manager, int(info.get("id", 1))
        if self._id < 1:
            raise InvalidError(f"init_info.adapter.id must be 1 or more, not {self._id}")
        try:
            self._peft = PEFTHelper.from_dict(dict(info["config"]))
            self._peft.validate_legal(manager.lora_config)
        except (KeyError, TypeError, ValueError) as e:
            raise UnsupportedError(f"init_info.adapter: vLLM does not take it: {e}") from e
        mapper = getattr(model, "hf_to_vllm_mapper", None)
        self._mapper = mapper.get_rename_mapper() if mapper is not None else None
        self._current: LoRAModel | None = None
        known = set(manager.supported_lora_modules) | {m for parts in manager.packed_modules_mapping.values() for m in parts}
        for name in info["tensors"]:
            if not any(part in known for part in name.split(".")):
                raise MismatchError("the engine's model has no module that takes it", tensor=name)
        # vLLM empties its manager after every weight update, since the base may have changed; ours has not.
        self._emptied = manager.remove_all_adapters
        manager.remove_all_adapters = self._empty

    def _empty(self) -> None:
        self._emptied()
        if self._current is not None:
            self._put(self._current)

    def _put(self, adapter: LoRAModel) -> None:
        """Registered, active, and pinned: no other adapter takes its place."""
        self._manager.remove_adapter(adapter.id)
        self._manager.add_adapter(adapter)
        # vLLM has packed what its modules take together under their names; what is left over it would pass over.
        if lost := sorted(set(adapter.loras) - set(self._manager.modules)):
            self._manager.remove_adapter(adapter.id)
            raise MismatchError(f"the engine's model has no module that takes it, nor {len(lost) - 1} others", tensor=lost[0])
        self._manager.pin_adapter(adapter.id)

    def install(self, weights: Mapping[str, torch.Tensor]) -> None:
        """One whole version. vLLM keeps what it is given: copies, since Refit's memory takes the next version."""
        self._before = self._current
        copies = {name: t.clone() for name, t in weights.items()}
        self._current = made = LoRAModel.from_lora_tensors(
            self._id, copies, self._peft, device="cpu", dtype=self._manager.lora_config.lora_dtype, model_vocab_size=self._manager.vocab_size, weights_mapper=self._mapper,
        )  # fmt: skip
        self._put(made)

    def restore(self) -> None:
        """After a failed install: the former version."""
        self._current = self._before
        if self._current is not None:
            self._put(self._current)
        else:
            self._manager.remove_adapter(self._id)

    def close(self) -> None:
        """The adapter stays as it is, and vLLM's manager is its own again."""
        self._manager.remove_all_adapters = self._emptied
