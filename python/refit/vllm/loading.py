"""Putting one rank's parameters, as the loader would have left them, into a live vLLM model.

vLLM's layer-wise reload session does the work: it puts each layer back into the form that weights are loaded in, and once
all of a layer's elements have come, runs the layer's own processing and copies the result into the storage that kernels
and CUDA graphs know. Refit already has each parameter in the rank's local form, so the session's loaders are replaced
by a plain copy: no tensor is handed over whole, none is cut again.
"""

from __future__ import annotations

from typing import Any, Iterator, Mapping

import torch
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload, layerwise, meta
from vllm.platforms import current_platform

from .._errors import MismatchError

# dtypes of the wire that a wider parameter takes without loss.
_EXACT = {torch.float32: (torch.bfloat16, torch.float16), torch.float64: (torch.float32, torch.bfloat16, torch.float16)}


def _tensors(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    for tensors in (module._parameters, module._buffers):
        yield from ((name, t) for name, t in tensors.items() if t is not None)


def _loaded_form(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """name -> tensor in the form that weights are loaded in; only shape and dtype count."""
    parameters, buffers = layerwise.get_layerwise_info(module).restore_metadata
    return {**dict(_tensors(module)), **parameters, **buffers}


def loaded_forms(model: torch.nn.Module) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Every parameter and buffer by its full name, as weights are loaded: shape and dtype."""
    out = {}
    for path, module in model.named_modules():
        for name, form in _loaded_form(module).items():
            out[f"{path}.{name}".lstrip(".")] = (tuple(form.shape), form.dtype)
    return out


class Model:
    """A live model and the names under which its parameters are installed.

    names: parameter name -> (shape, dtype) of what will come. MismatchError lists what the model lacks, what nobody
    sends, and what has another shape or a dtype that the value would not survive.
    """

    def __init__(self, model: torch.nn.Module, model_config: Any, names: Mapping[str, tuple[tuple[int, ...], torch.dtype]]) -> None:
        self.model, self.model_config = model, model_config
        self._kernels: list[tuple[Any, Any]] = []
        owner: dict[int, str] = {}
        for path, module in model.named_modules():
            for name, tensor in _tensors(module):
                if (full := f"{path}.{name}".lstrip(".")) in names:
                    owner.setdefault(id(tensor), full)
        # Every place that a name is installed at: its own, and modules that share the tensor (a tied lm_head keeps a
        # processed copy of its own, which only an installation of its own renews).
        self.places: dict[torch.nn.Module, dict[str, str]] = {}
        wrong, unsent, found = [], [], set()
        for path, module in model.named_modules():
            live = dict(_tensors(module))
            for name, form in _loaded_form(module).items():
                full = f"{path}.{name}".lstrip(".")
                sent = full if full in names else owner.get(id(live.get(name)), "")
                if not sent:
                    if name in module._parameters:
                        unsent.append(full)
                    continue
                found.add(sent)
                self.places.setdefault(module, {})[name] = sent
                shape, dtype = names[sent]
                if tuple(form.shape) != tuple(shape):
                    wrong.append(f"{full} has shape {tuple(form.shape)}, the layout {tuple(shape)}")
                elif form.dtype != dtype and dtype not in _EXACT.get(form.dtype, ()):
                    wrong.append(f"{full} is {form.dtype}, the layout {dtype}: a cast that may lose values")
        absent = sorted(set(names) - found)
        problems = wrong + [f"{n}: the model has no such parameter" for n in absent] + [f"{n}: no source sends it" for n in sorted(unsent)]
        if problems:
            more = f" (and {len(problems) - 8} more)" if len(problems) > 8 else ""
            raise MismatchError("the engine's model differs from the layout: " + "; ".join(problems[:8]) + more, tensor=(absent + unsent + [""])[0])

    @torch.no_grad()
    def install(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Loads one whole version. After an exception the model is a mixture: see restore()."""
        self._kernels = self._without_kernels()
        loaders: list[tuple[torch.Tensor, Any]] = []
        initialize_layerwise_reload(self.model)
        try:
            for module, names in self.places.items():
                self._fill(module, {name: weights[sent] for name, sent in names.items()}, loaders)
            finalize_layerwise_reload(self.model, self.model_config)
        finally:
            for tensor, loader in loaders:
                if loader is None:
                    del tensor.weight_loader
                else:
                    tensor.weight_loader = loader
        self._with_kernels()

    def _fill(self, module: torch.nn.Module, weights: Mapping[str, torch.Tensor], loaders: list[tuple[torch.Tensor, Any]]) -> None:
        waiting = {}
        for name, tensor in _tensors(module):
            if name not in weights:
                continue
            if name in meta.SKIP_LOAD_TENSORS:  # the session never touches these: they lie as they are loaded
                tensor.copy_(weights[name])
                continue
            loaders.append((tensor, tensor.__dict__.get("weight_loader")))
            tensor.weight_loader = _copy_whole
            waiting[name] = tensor
        layerwise._wrap_parameters_weight_loader(module)
        for name, tensor in waiting.items():
            tensor.weight_loader(tensor, weights[name])

    def restore(self) -> None:
        """After a failed install: layers that are not complete get their former tensors back, so that the next
        session can begin. The others keep the new weights: the model is a mixture until a whole version is installed."""
        for module in self.model.modules():
            info = layerwise.get_layerwise_info(module)
            if info.can_load():
                if info.kernel_tensors is not None:
                    layerwise._place_kernel_tensors(module, info)
                info.reset()
        layerwise.LOADING_LAYERS.clear()
        self._with_kernels()

    def _without_kernels(self) -> list[tuple[Any, Any]]:
        # On CPU a mixture of experts that has its kernel is taken for already packed, and unpacked bytes are copied into
        # packed storage; without its kernel it goes the way of a first load.
        if not current_platform.is_cpu():
            return []
        methods = [m.quant_method for m in self.model.modules() if getattr(getattr(m, "quant_method", None), "moe_kernel", None) is not None]
        kept = [(method, method.moe_kernel) for method in methods]
        for method in methods:
            method.moe_kernel = None
        return kept

    def _with_kernels(self) -> None:
        for method, kernel in self._kernels:
            if method.moe_kernel is None:
                method.moe_kernel = kernel
        self._kernels = []


def _copy_whole(param: torch.Tensor, loaded_weight: torch.Tensor) -> None:
    param.data.copy_(loaded_weight)
