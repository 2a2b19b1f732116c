"""PEFT's LoRA on torch modules. Merged: what travels is base + scaling · B·A, computed where it is lent from; base bytes are never
written, and an adapter that PEFT merged itself is not added again. Alone: the adapter's own tensors travel, under the names that
PEFT saves, and the engine applies alpha."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import dataclass, field
from typing import Any, Callable, Mapping

from .. import _arrays
from .._errors import InvalidError, UnsupportedError
from . import rules as _rules


@dataclass
class Update:
    """What one adapter adds to one tensor. a, b: names in the model; a is empty where B's bias is what is added."""

    layer: Any
    adapter: str
    a: str
    b: str
    transposed: bool  # the tensor is (B·A)ᵀ
    rounded: bool  # to the base's dtype before it is added, as PEFT does for embeddings

    def values(self, tensors: Mapping[str, Any], runs: list[list[tuple[int, int]]]) -> Any:
        """The part that lies in `runs` of each axis. Collective where the adapter is sharded."""
        scaling = self.layer.scaling[self.adapter]
        b = _whole(tensors[self.b])
        if not self.a:
            return _taken(b, runs[0]) * scaling
        a = _whole(tensors[self.a])
        rows, columns = reversed(runs) if self.transposed else runs
        dtype = b.dtype
        a, b = _taken(a.t(), columns).t(), _taken(b, rows)
        narrow = b.device.type == "cpu" and str(dtype) in ("torch.float16", "torch.bfloat16")  # PEFT multiplies these in float32
        product = b.float() @ a.float() if narrow else b @ a
        product = (product.t() if self.transposed else product) * scaling
        return product.to(dtype) if narrow else product


def _whole(tensor: Any) -> Any:
    tensor = tensor.detach()
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def _taken(tensor: Any, runs: list[tuple[int, int]]) -> Any:
    """The rows of `runs`; the tensor itself where these are all of it."""
    if runs == [(0, tensor.shape[0])]:
        return tensor
    import torch

    return torch.cat([tensor[lo:hi] for lo, hi in runs]) if runs else tensor[:0]


@dataclass
class Adapters:
    """What PEFT put into a model."""

    updates: dict[str, list[Update]] = field(default_factory=dict)  # a tensor's name in the model -> what comes to it
    left_out: set[str] = field(default_factory=set)  # names in the model that do not travel
    renamed: dict[str, str] = field(default_factory=dict)  # beginnings of names -> what replaces them, the longest first

    def name(self, own: str) -> str:
        """A name in the model without what PEFT put into it."""
        for prefix, plain in self.renamed.items():
            if own.startswith(prefix):
                return self.name(plain + own[len(prefix) :]) if plain else own[len(prefix) :]
        return own


def find(model: Any, names: Any, ignore: list[str]) -> Adapters | None:
    """The adapters of a module as they are now; None where PEFT is not there or has touched nothing. names: of its tensors.
    UnsupportedError naming the layer for what is no plain LoRA."""
    if "peft" not in sys.modules or "torch" not in sys.modules:
        return None
    import torch

    if not isinstance(model, torch.nn.Module):
        return None
    from peft.tuners.lora import layer as lora
    from peft.tuners.tuners_utils import BaseTuner, BaseTunerLayer
    from peft.utils import other

    out = Adapters()
    prefixes = {}
    for path, module in model.named_modules():
        dot = path + "." if path else ""
        if isinstance(module, BaseTuner):
            prefixes[dot + "model."] = ""
        elif isinstance(module, other.ModulesToSaveWrapper):
            _saved(out, prefixes, module, dot, names)
        elif isinstance(module, other.AuxiliaryTrainingWrapper):
            raise UnsupportedError(f"{type(module).__name__} of PEFT is not merged out of place", tensor=path)
        elif isinstance(module, BaseTunerLayer):
            _layer(out, module, path, names, ignore, lora)
    if not (prefixes or out.updates or out.left_out):
        return None
    out.renamed = dict(sorted(prefixes.items(), key=lambda p: -len(p[0])))
    return out


def _saved(out: Adapters, prefixes: dict[str, str], module: Any, dot: str, names: Any) -> None:
    """A module that PEFT trains as a copy: the active copy is the weights."""
    active = [] if module.disable_adapters else [a for a in module.active_adapters if a in module.modules_to_save]
    kept = f"modules_to_save.{active[0]}." if active else "original_module."
    prefixes[dot + kept] = dot
    out.left_out.update(n for n in names if n.startswith(dot) and not n.startswith(dot + kept))


def _layer(out: Adapters, module: Any, path: str, names: Any, ignore: list[str], lora: Any) -> None:
    if not isinstance(module, lora.LoraLayer):
        raise UnsupportedError(f"{type(module).__name__} of PEFT is no LoRA, and not merged out of place: merge it yourself", tensor=path)
    own = {n for n in names if n.startswith(path + ".")}
    base = path + ".base_layer."
    out.left_out.update(n for n in own if not n.startswith(base))
    if module.disable_adapters:
        return
    for adapter in module.active_adapters:
        if adapter in module.merged_adapters or adapter not in module.scaling:
            continue
        embedding = isinstance(module, lora.Embedding)
        stem = "lora_embedding_{}." if embedding else "lora_{}."
        a, b = (f"{path}.{stem.format(x)}{adapter}" + ("" if embedding else ".weight") for x in "AB")
        if _rules.ignored(a, ignore):
            continue
        # Its own class in PEFT: FSDP2 derives another one from it.
        kind = next(c for c in type(module).__mro__ if c.__module__.startswith("peft."))
        if adapter in module.lora_variant or kind not in (lora.Linear, lora.Embedding):
            kind = type(module.lora_variant[adapter]).__name__ if adapter in module.lora_variant else kind.__name__
            raise UnsupportedError(f"{kind} of PEFT is not merged out of place: only plain LoRA on linear layers and embeddings is", tensor=path)
        if base + "weight" not in own or a not in own or b not in own:
            raise InvalidError(f"adapter '{adapter}' has no {[n for n in (base + 'weight', a, b) if n not in own][0]}", tensor=path)
        out.updates.setdefault(base + "weight", []).append(Update(module, adapter, a, b, embedding or bool(module.fan_in_fan_out), embedding))
        if module.lora_bias[adapter]:
            if base + "bias" not in own:
                raise InvalidError(f"adapter '{adapter}' has a bias, and its base layer has none", tensor=path)
            out.updates.setdefault(base + "bias", []).append(Update(module, adapter, "", f"{path}.lora_B.{adapter}.bias", False, False))


def alone(model: Any, adapter: str, plain_name: Callable[[str], str]) -> Callable[[], dict[str, Any]]:
    """What gives one adapter's tensors as they are now, by the names that PEFT saves them under. Each call raises InvalidError
    where there is no such adapter, or its scaling is not what its configuration says: engines know only that."""
    import torch
    from peft.tuners.lora import layer as lora

    if not isinstance(model, torch.nn.Module):
        raise InvalidError(f"adapter='{adapter}' needs a PEFT module, not a {type(model).__name__}")

    def now() -> dict[str, Any]:
        out = {}
        tensors = model.state_dict(keep_vars=True)
        for path, module in model.named_modules():
            if not isinstance(module, lora.LoraLayer) or adapter not in module.scaling:
                continue
            if adapter in module.lora_variant or module.lora_bias[adapter]:
                raise UnsupportedError(f"adapter '{adapter}' is no plain LoRA here", tensor=path)
            r, alpha = module.r[adapter], module.lora_alpha[adapter]
            meant = alpha / (math.sqrt(r) if module.use_rslora[adapter] else r)
            if module.scaling[adapter] != meant:
                raise InvalidError(f"the scaling of adapter '{adapter}' is {module.scaling[adapter]}, and alpha {alpha} with rank {r} means {meant}", tensor=path)
            for n in (f"{path}.{kind}.{adapter}{end}" for kind, end in (("lora_A", ".weight"), ("lora_B", ".weight"), ("lora_embedding_A", ""), ("lora_embedding_B", ""))):
                if n in tensors:
                    out[plain_name(n).replace(f".{adapter}", "")] = tensors[n]
        if not out:
            raise InvalidError(f"the model has no LoRA adapter '{adapter}'")
        return out

    return now


def adapter_info(model: Any, adapter: str = "default") -> dict[str, Any]:
    """What an engine must know of an adapter before its versions come: PEFT's configuration, and each tensor's whole shape and
    dtype. JSON; for ``init_info={"adapter": …}`` of a synchronizer of engines."""
    from .torch import plain_name

    config = json.loads(json.dumps(model.peft_config[adapter].to_dict(), default=lambda v: sorted(v) if isinstance(v, (set, frozenset)) else str(v)))
    tensors = {n: [list(t.shape), _arrays.layout_dtype(t.dtype)] for n, t in alone(model, adapter, plain_name)().items()}
    return {"config": config, "tensors": tensors}
