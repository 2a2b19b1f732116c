"""PEFT's LoRA on torch modules. Merged: what travels is base + scaling · B·A, computed where it is lent from; base bytes are never
written, and an adapter that PEFT merged itself is not added again. Alone: the adapter's own tensors travel, under the names that
PEFT saves, and the engine applies alpha."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import dataclass, field
from typing import Any, Callable, Mapping

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
                own = plain + own[len(prefix) :]
        return own


def find(model: Any, names: Any, ignore: list[str]) -> Adapters | None:
    """The adapters of a module as they are now; None where PEFT is not there or has touched nothing. names: of its tensors.
    UnsupportedError naming the layer for what is no plain LoRA."""
    if "peft" not in sys.modules or "torch" not in sys.modules:
        return None
    import torch

    from peft.tuners.lora import layer as lora
    from peft.tuners.tuners_utils import BaseTuner, BaseTunerLayer
    from peft.utils import other

    if isinstance(model, Mapping):
        for name, module in model.items():
            for path, m in module.named_modules() if isinstance(module, torch.nn.Module) else ():
                if isinstance(m, (BaseTunerLayer, other.AuxiliaryTrainingWrapper)):
                    raise UnsupportedError("PEFT in one of several modules: merge it yourself, or publish its module alone", tensor=f"{name}.{path}".strip("."))
    if not isinstance(model, torch.nn.Module):
        return None
    out = Adapters()
    prefixes = {}
    for path, module in model.named_modules():
        dot = path + "." if path else ""
        if isinstance(module, BaseTuner):
            prefixes[dot + "model."] = dot.removesuffix("base_model.")
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
        if module.merged_adapters:
            raise InvalidError("its adapter is merged into it and switched off, so its base is not there: unmerge_adapter() first", tensor=path)
        return
    for adapter in module.active_adapters:
        if adapter in module.merged_adapters or adapter not in module.scaling:
            continue
        embedding = isinstance(module, lora.Embedding)
        stem = "lora_embedding_{}." if embedding else "lora_{}."
        a, b = (f"{path}.{stem.format(x)}{adapter}" + ("" if embedding else ".weight") for x in "AB")
        if _rules.ignored(a, ignore):
            if _rules.ignored(base + "weight", ignore):
                continue
            raise InvalidError(f"`ignore` leaves out adapter '{adapter}' and not what it changes: its tensors never travel by themselves, and disable_adapter() switches it off", tensor=path)
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
    where there is no such adapter, or its scaling is not what its configuration says: engines know only that. UnsupportedError
    naming what the adapter trains beside A and B, and what is no plain LoRA."""
    import torch
    from peft.tuners.lora import layer as lora
    from peft.utils import other

    if not isinstance(model, torch.nn.Module):
        raise InvalidError(f"adapter='{adapter}' needs a PEFT module, not a {type(model).__name__}")

    def now() -> dict[str, Any]:
        out = {}
        tensors = model.state_dict(keep_vars=True)
        for path, module in model.named_modules():
            config = getattr(module, "peft_config", None)
            if isinstance(config, Mapping) and adapter in config and getattr(config[adapter], "bias", "none") != "none":
                raise UnsupportedError(f"adapter '{adapter}' trains biases of the base too (bias='{config[adapter].bias}')", tensor=path)
            if isinstance(module, other.AuxiliaryTrainingWrapper) and adapter in module._get_available_adapters():
                raise UnsupportedError(f"adapter '{adapter}' trains it beside LoRA ({type(module).__name__}), and engines take A and B alone", tensor=path)
            if not isinstance(module, lora.LoraLayer) or adapter not in module.scaling:
                continue
            # A ParamWrapper adapts a parameter, several of them one inside the other: without names of their own in an engine.
            plain = not isinstance(module, getattr(lora, "ParamWrapper", ())) and adapter in module.use_rslora
            if not plain or adapter in module.lora_variant or module.lora_bias.get(adapter):
                raise UnsupportedError(f"adapter '{adapter}' is no plain LoRA here", tensor=path)
            r, alpha = module.r[adapter], module.lora_alpha[adapter]
            meant = alpha / (math.sqrt(r) if module.use_rslora[adapter] else r)
            if module.scaling[adapter] != meant:
                raise InvalidError(f"the scaling of adapter '{adapter}' is {module.scaling[adapter]}, and alpha {alpha} with rank {r} means {meant}", tensor=path)
            for kind, end in (("lora_A", ".weight"), ("lora_B", ".weight"), ("lora_embedding_A", ""), ("lora_embedding_B", "")):
                own = f"{path}.{kind}.{adapter}{end}"
                if own in tensors and out.setdefault(saved := plain_name(f"{path}.{kind}{end}"), tensors[own]) is not tensors[own]:
                    raise UnsupportedError(f"two tensors of adapter '{adapter}' have this name", tensor=saved)
        if not out:
            raise InvalidError(f"the model has no LoRA adapter '{adapter}'")
        return out

    return now


def adapter_info(model: Any, adapter: str = "default", dtypes: Mapping[str, str] | None = None) -> dict[str, Any]:
    """What an engine must know of an adapter before its versions come: PEFT's configuration, and each tensor's whole shape and
    dtype on the wire. dtypes: as the publisher is given. JSON; for ``init_info={"adapter": …}`` of a synchronizer of engines."""
    from .torch import describe

    described = describe(model, adapter=adapter, dtypes=dtypes)
    holder = model
    while not isinstance(configs := getattr(holder, "peft_config", None), Mapping) and hasattr(holder, "module"):
        holder = holder.module  # DDP and the like
    if not isinstance(configs, Mapping) or adapter not in configs:
        raise InvalidError(f"the model has no configuration of adapter '{adapter}': give the PEFT module")
    config = json.loads(json.dumps(configs[adapter].to_dict(), default=lambda v: sorted(v) if isinstance(v, (set, frozenset)) else str(v)))
    tensors = {e.name: [list(e.shape), e.dtype] for e in described.entries}
    tensors.update({copy: tensors[name] for name, copy in described.tied})
    return {"config": config, "tensors": tensors}
