"""Megatron-Core trainers: the `megatron` rules for a configuration, compared with the live modules name by name and shape by
shape, and the modules' weights packed into memory that Refit lends."""

from __future__ import annotations

import bisect
import itertools
import logging
import re
from dataclasses import dataclass
from typing import Any, Iterable, Mapping, Sequence

from .. import _arrays
from .._errors import Error, InvalidError, MismatchError, UnsupportedError
from ..layout import Layout
from ..members import Publisher
from . import rules as _rules
from . import torch as _torch

log = logging.getLogger("refit")

_LAYER = re.compile(r"\bdecoder\.layers\.(\d+)\.")
_HF_LAYER = re.compile(r"\.layers\.(\d+)\.")
_LETTERS = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}  # of Megatron's layouts
# What earlier releases call otherwise than later ones, and Refit, do.
_EARLIER = (
    (re.compile(r"^((?:chunk\d+\.)?mtp\.layers\.\d+\.)transformer_layer\."), r"\1mtp_model_layer."),
    (re.compile(r"\.mixer\.conv1d\.(weight|bias)$"), r".mixer.conv1d_\1"),
)
_PIPELINE_KEYS = ("first", "last", "account", "layout")


def chunks_of(model: Any) -> list[Any]:
    """The model's virtual chunks without their wrappers (DDP, Float16Module)."""
    out = []
    for chunk in model if isinstance(model, (list, tuple)) else [model]:
        while hasattr(chunk, "module"):
            chunk = chunk.module
        out.append(chunk)
    return out


def _wrappers(model: Any) -> Iterable[Any]:
    """Everything round the chunks, outermost first."""
    for chunk in model if isinstance(model, (list, tuple)) else [model]:
        while hasattr(chunk, "module"):
            yield chunk
            chunk = chunk.module


def named(model: Any) -> dict[str, Any]:
    """Parameters and persistent buffers under Refit's names: those of virtual chunk v begin with ``chunk<v>.``. Tied ones
    once."""
    chunks = chunks_of(model)
    out: dict[str, Any] = {}
    for v, chunk in enumerate(chunks):
        prefix = f"chunk{v}." if len(chunks) > 1 else ""
        for name, tensor in itertools.chain(chunk.named_parameters(), _buffers(chunk)):
            plain = prefix + _torch.plain_name(name)
            for earlier, later in _EARLIER:
                plain = earlier.sub(later, plain)
            out[plain] = tensor
    return out


def _buffers(module: Any) -> Iterable[tuple[str, Any]]:
    """Those that a state dict has."""
    for path, inner in module.named_modules():
        for name, tensor in inner.named_buffers(recurse=False):
            if name not in inner._non_persistent_buffers_set:
                yield (f"{path}.{name}" if path else name), tensor


@dataclass
class Place:
    """This process in Megatron's parallel groups."""

    tp: int
    pp: int
    cp: int
    dp: int
    ep: int
    etp: int
    vpp: int
    rank: int  # of Refit's layout
    vocabulary: int  # rows of the padded vocabulary, where this rank has some; else 0
    layers: int  # of this pipeline stage
    drafts: bool  # some lie on this rank
    pipeline: dict[str, Any]  # keys of the SPEC that the modules' configuration says

    def numbers(self) -> dict[str, int]:
        return {k: getattr(self, k) for k in ("tp", "pp", "cp", "dp", "ep", "etp", "vpp")}


def pipeline(config: Any) -> dict[str, Any]:
    """The SPEC's keys for the pipeline that a TransformerConfig describes; none for even stages."""
    layout = getattr(config, "pipeline_model_parallel_layout", None)
    if layout is not None:
        by_rank = layout.layout  # by pipeline rank and virtual chunk
        stages = [by_rank[p][v] for v in range(len(by_rank[0])) for p in range(len(by_rank))]
        unknown = sorted({kind.name for stage in stages for kind in stage} - _LETTERS.keys())
        if unknown:
            raise UnsupportedError(f"pipeline_model_parallel_layout has layers of kind {', '.join(unknown)}")
        return {"layout": "|".join("".join(_LETTERS[kind.name] for kind in stage) for stage in stages)}
    ends = [getattr(config, f"account_for_{end}_in_pipeline_split", False) for end in ("embedding", "loss")]
    if any(ends):
        return {"account": "both" if all(ends) else "embedding" if ends[0] else "loss"}
    sizes = {end: getattr(config, f"num_layers_in_{end}_pipeline_stage", None) for end in ("first", "last")}
    return {end: size for end, size in sizes.items() if size}


def place(model: Any) -> Place:
    """UnsupportedError when the groups are arranged otherwise than tp-cp-ep-dp-pp."""
    from megatron.core import parallel_state as groups

    tp, pp, cp = groups.get_tensor_model_parallel_world_size(), groups.get_pipeline_model_parallel_world_size(), groups.get_context_parallel_world_size()
    ep, etp = groups.get_expert_model_parallel_world_size(), groups.get_expert_tensor_parallel_world_size()
    dp = groups.get_data_parallel_world_size()
    t, p, c = groups.get_tensor_model_parallel_rank(), groups.get_pipeline_model_parallel_rank(), groups.get_context_parallel_rank()
    d, e, x = groups.get_data_parallel_rank(), groups.get_expert_model_parallel_rank(), groups.get_expert_tensor_parallel_rank()
    # tp and etp vary fastest, pipeline stages slowest.
    inside = (d * cp + c) * tp + t
    if (inside % etp, inside // etp % ep) != (x, e):
        raise UnsupportedError(
            f"parallel groups are arranged otherwise than tp-cp-ep-dp-pp: place {inside} of its stage (tp rank {t}, cp rank {c}, dp rank {d}) has "
            f"expert-tensor rank {x} of {etp} and expert rank {e} of {ep}, by that order {inside % etp} and {inside // etp % ep}"
        )
    chunks = chunks_of(model)
    vocabulary = 0
    for name, tensor in named(model).items():
        if name.endswith(("embedding.word_embeddings.weight", "output_layer.weight")):
            vocabulary = int(tensor.shape[0]) * tp
    layers = sum(len(chunk.decoder.layers) for chunk in chunks if getattr(chunk, "decoder", None) is not None)
    drafts = any(getattr(chunk, "mtp", None) is not None for chunk in chunks)
    said = pipeline(getattr(chunks[0], "config", None))
    return Place(tp, pp, cp, dp, ep, etp, len(chunks), p * dp * cp * tp + inside, vocabulary, layers, drafts, said)


def specs(mine: Place, all_places: Sequence[Place], given: Mapping[str, Any]) -> list[str]:
    """The SPECs that the live modules may have, equal on all ranks. MismatchError when ranks tell different things."""
    for other, one in enumerate(all_places):
        if one.numbers() | one.pipeline != mine.numbers() | mine.pipeline:
            raise MismatchError(f"its parallel sizes are {one.numbers() | one.pipeline}, here {mine.numbers() | mine.pipeline}", peer=f"trainer rank {other}")
    if sorted(one.rank for one in all_places) != list(range(len(all_places))):
        raise MismatchError(f"places of the trainer's ranks are {[one.rank for one in all_places]}: none may be missing or double")
    rows = {one.vocabulary for one in all_places if one.vocabulary}
    if len(rows) != 1:
        raise MismatchError(f"the padded vocabulary has {sorted(rows)} rows on different ranks")
    stages = {one.rank * mine.pp // len(all_places): one.layers for one in all_places}
    numbers: dict[str, Any] = mine.numbers() | {"vocab_multiple": rows.pop() // mine.tp}
    counts = [stages[p] for p in range(mine.pp)]
    if mine.pp > 1 and not given.keys() & set(_PIPELINE_KEYS):
        uneven = {"first": counts[0], "last": counts[-1]} if len(set(counts)) > 1 else {}
        numbers |= mine.pipeline or uneven
    if not any(one.drafts for one in all_places):
        numbers["draft"] = "skip"
    numbers |= given
    text = ",".join(f"{k}={v}" for k, v in numbers.items())
    forms = itertools.product(["te", "local"], [None, "grouped", "sequential", "stacked"])
    return [f"megatron:{text}" + "".join(f",{k}={v}" for k, v in (("spec", s), ("experts", x)) if v and k not in given) for s, x in forms]


@dataclass
class Found:
    """A SPEC's parameters beside the live ones of this rank."""

    spec: str
    layout: Layout | None = None
    refused: str = ""
    missing: tuple[str, ...] = ()  # the rules have it
    unknown: tuple[str, ...] = ()  # the module has it
    shapes: tuple[str, ...] = ()

    def differences(self) -> int:
        if self.layout is None:
            return 1 << 32
        return len(self.missing) + len(self.unknown) + len(self.shapes)

    def __str__(self) -> str:
        parts = (("missing in the modules", self.missing), ("unknown to the rules", self.unknown), ("of another shape", self.shapes))
        return f"{self.spec}: " + (self.refused or "; ".join(f"{len(names)} {what}: {_rules.listed(names)}" for what, names in parts if names))


def compare(config: str, spec: str, live: Mapping[str, Any], rank: int) -> Found:
    try:
        layout = Layout.from_config(config, spec)
        rules = {p.name: tuple(p.shape) for p in layout._native.rank(rank).parameters}
    except Error as e:
        return Found(spec, refused=e.message)
    shapes = [f"{n} is {tuple(live[n].shape)}, by the rules {s}" for n, s in rules.items() if n in live and tuple(live[n].shape) != s]
    return Found(spec, layout, "", tuple(rules.keys() - live.keys()), tuple(live.keys() - rules.keys()), tuple(shapes))


def check_layers(model: Any, layout: Layout, rank: int) -> None:
    """Each live layer's `layer_number` is the layer whose tensors the rules put there. MismatchError naming both."""
    chunks = chunks_of(model)
    info = layout._native.rank(rank)
    starts = sorted((p.offset, p.name) for p in info.parameters)
    offsets = [o for o, _ in starts]
    for h in info.holdings:
        name = starts[bisect.bisect_right(offsets, h.offset) - 1][1]
        own, logical = _LAYER.search(name), _HF_LAYER.search(h.tensor)
        if own is None or logical is None:
            continue
        chunk = int(name.split(".", 1)[0].removeprefix("chunk")) if len(chunks) > 1 else 0
        number = getattr(chunks[chunk].decoder.layers[int(own[1])], "layer_number", None)
        if number is not None and number != int(logical[1]) + 1:
            raise MismatchError(f"lies in '{name}', whose module has layer_number {number}: the pipeline is cut otherwise than '{layout}' says", tensor=h.tensor)


def agree(
    model: Any, config: Any, group: Any, *, ignore: Iterable[str] = (), spec: Mapping[str, Any] | None = None
) -> tuple[Layout, int]:
    """The layout of all ranks (equal on each), and this process' rank in it.

    Every rank compares the same SPECs; the one that fits all of them is taken. A rank that cannot tells the others.
    """
    own = f"trainer rank {_torch.own_rank(group)}"
    failed: Error | None = None
    text = ""
    mine: tuple[str, Any] = ("", None)
    live: dict[str, Any] = {}
    try:
        text, ignore = _rules.config_text(config), list(ignore)
        live = {n: t for n, t in named(model).items() if not _rules.ignored(n, ignore)}
        mine = ("", place(model))
    except Exception as e:  # noqa: BLE001 - raised by together(), once the others know of it
        failed = _rules.telling(e, own)
        mine = (str(failed), None)
    places = _torch.gathered(mine, group)
    _rules.together(places, failed, "trainer rank")
    here = mine[1]
    found: list[Found] = []
    try:
        found = [compare(text, s, live, here.rank) for s in dict.fromkeys(specs(here, [p for _, p in places], dict(spec or {})))]
        for one in found:
            try:
                if one.layout is not None and one.differences() == 0:
                    check_layers(model, one.layout, here.rank)
                    check(live, one.layout._native.rank(here.rank).parameters)
            except Error as e:
                one.refused = str(e)
    except Exception as e:  # noqa: BLE001 - raised by together(), once the others know of it
        failed = _rules.telling(e, own)
    answers = _torch.gathered((str(failed or ""), [(one.refused, one.differences(), str(one)) for one in found]), group)
    _rules.together(answers, failed, "trainer rank")
    told = [fits for _, fits in answers]
    for k, one in enumerate(found):
        if all(not rank[k][0] and rank[k][1] == 0 for rank in told) and one.layout is not None:
            log.info("the modules are '%s'", one.spec)
            return one.layout, here.rank
    # The SPEC that comes nearest, and what the first rank that differs has to say to it.
    best = min(range(len(found)), key=lambda k: sum(rank[k][1] for rank in told))
    other, line = next((r, rank[best][2]) for r, rank in enumerate(told) if rank[best][0] or rank[best][1])
    raise MismatchError(f"the live modules are not what the rules make of this configuration; {line}", peer=f"trainer rank {other}")


def settle(model: Any) -> None:
    """Brings every parameter up to date: with overlapped parameter gathers, what the optimizer wrote reaches the other
    ranks' copies only with the next forward pass. Collective."""
    for wrapper in _wrappers(model):
        settings = getattr(wrapper, "ddp_config", None)
        if settings is None:
            continue
        if getattr(settings, "reuse_grad_buf_for_mxfp8_param_ag", False):
            raise UnsupportedError("reuse_grad_buf_for_mxfp8_param_ag: gradients and parameters share a buffer, so that no parameter can be read between steps; turn it off")
        if getattr(settings, "use_distributed_optimizer", False) and getattr(settings, "overlap_param_gather", False):
            wrapper.start_param_sync(force_sync=True)


class MegatronPublisher(Publisher):
    """What Publisher.from_megatron() returns."""

    def __init__(self, address: str, model: Any, layout: Layout, rank: int, *, ignore: list[str], threads: int, join_timeout_s: float) -> None:
        super().__init__(address, layout, rank, threads=threads, join_timeout_s=join_timeout_s)
        self._model, self._ignore = model, ignore
        self._pairs = [(p, p.torch()) for p in self.parameters if 0 not in p.shape]

    def publish(self, step: int, weight_set: str = "policy", timeout_s: float = 30) -> None:
        """Brings the parameters up to date (see settle(): collective then), and copies them as they are now, once no round
        holds the former copy (BusyError at the deadline)."""
        settle(self._model)
        self.guard(timeout_s)
        live = {n: t for n, t in named(self._model).items() if not _rules.ignored(n, self._ignore)}
        check(live, self.parameters)
        for p, view in self._pairs:
            view.copy_(live[p.name].detach())
        super().publish(step, weight_set)


def check(live: Mapping[str, Any], parameters: Iterable[Any]) -> None:
    """InvalidError or MismatchError naming a parameter that cannot go where the layout has it."""
    for p in parameters:
        t = live.get(p.name)
        if t is None:
            raise InvalidError("is no longer in the modules: make a new publisher", tensor=p.name)
        if t.device.type != "cpu":
            raise UnsupportedError(f"the tensor is on {t.device}; this build moves host memory only", tensor=p.name)
        if tuple(t.shape) != tuple(p.shape):
            raise InvalidError(f"its shape was {tuple(p.shape)} and is {tuple(t.shape)}: make a new publisher", tensor=p.name)
        have = _arrays.layout_dtype(t.dtype)
        if not _rules.widens(have, p.dtype):
            raise MismatchError(f"is {have} in the modules and {p.dtype} by the configuration: that cast would lose values (torch_dtype of the configuration says otherwise)", tensor=p.name)


def publisher(
    address: str,
    model: Any,
    config: Any,
    *,
    group: Any = None,
    ignore: Iterable[str] = (),
    spec: Mapping[str, Any] | None = None,
    threads: int = 1,
    join_timeout_s: float = 60,
) -> MegatronPublisher:
    """This process' rank of a Megatron-Core trainer. Collective over `group` (default: all ranks).

    model: the GPTModel, or the list of virtual chunks, with their wrappers. config: the Hugging Face configuration (path,
    text, mapping, object) of the same model. The layout is that of Refit's `megatron` rules for the parallel groups of
    ``megatron.core.parallel_state``; which modules (Transformer Engine or local, grouped, sequential or stacked experts) is
    seen from the names. MismatchError lists parameters that are missing, unknown or of another shape, or a layer with another
    `layer_number`. ignore: patterns of names that stay at home. spec: keys of the SPEC to set by hand (``{"first": 3}``); the
    pipeline is else that of the modules' configuration (its custom layout, uneven ends, or embedding and loss counted in).

    Each publish() copies the weights into memory that Refit lends; training goes on at once. UnsupportedError while
    gradients and parameters share a buffer.
    """
    settle(model)
    ignore = list(ignore)
    layout, rank = agree(model, config, group, ignore=ignore, spec=spec)
    return MegatronPublisher(address, model, layout, rank, ignore=ignore, threads=threads, join_timeout_s=join_timeout_s)
