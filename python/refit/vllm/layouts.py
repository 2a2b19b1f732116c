"""Which layout an engine's ranks join with: from rules, or traced from the engine's own loader."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from typing import Any

import torch

from .._errors import DeadlineError, InvalidError, MismatchError, UnsupportedError
from ..layout import Layout
from ..trace import DTYPES, differences
from .loading import loaded_forms

KINDS = ("auto", "rules", "traced")


def choose_layout(model: str, tp: int, dp: int, ep: int, replicas: int, dtype: str, kind: str, timeout_s: float) -> Layout:
    """UnsupportedError where rules are asked for and do not cover the model, or where the loader computes or looks at
    values (it names the tensors). MismatchError naming tensors that the rules and the trace put at different places."""
    if kind not in KINDS:
        raise InvalidError(f"init_info.layout must be one of {', '.join(KINDS)}, not {kind!r}")
    try:
        ruled = Layout.from_model(model, f"vllm:tp={tp},dp={dp},ep={ep},replicas={replicas}")
    except UnsupportedError as e:
        if kind == "rules":
            raise
        try:
            return Layout.from_json(_trace(model, tp, dp, ep, replicas, dtype, (), timeout_s))
        except UnsupportedError as t:
            raise UnsupportedError(f"no rule covers the model ({e.message}), and its loader could not be traced: {t.message}", tensor=t.tensor) from e
    if kind != "traced":
        return ruled
    described = ruled.describe()
    apart = sorted(described["values"])
    text = _trace(model, tp, dp, ep, replicas, dtype, apart, timeout_s)
    found = differences(described, json.loads(text), apart=apart)
    if found:
        shown = "; ".join(f"{name}: {why}" for name, why in sorted(found.items())[:8])
        raise MismatchError(f"the engine's loader does not do what the rules say: {shown} ({len(found)} such in all)", tensor=min(found))
    # The same elements at the same places either way; only rules can name the transforms of what the trace left out.
    return ruled if apart else Layout.from_json(text)


def _trace(model: str, tp: int, dp: int, ep: int, replicas: int, dtype: str, leave_out: Any, timeout_s: float) -> str:
    """The text of the traced layout, made in a process of its own."""
    if not os.path.isdir(model):
        raise InvalidError(f"a traced layout needs a checkpoint directory, not {model!r}: init_info.model")
    with tempfile.TemporaryDirectory(prefix="refit-trace-") as folder:
        out = os.path.join(folder, "layout.json")
        command = [sys.executable, "-m", "refit.trace_vllm", model, "--out", out, "--tp", str(tp), "--dp", str(dp), "--replicas", str(replicas), "--dtype", dtype]
        command += ["--expert-parallel"] * (ep > 1) + (["--leave-out", *leave_out] if leave_out else [])
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise DeadlineError(f"tracing the engine's loader took more than {timeout_s} s (init_info.trace_timeout_s)") from None
        if done.returncode != 0:
            last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
            raise UnsupportedError(last.removeprefix("cannot trace: "))
        with open(out) as f:
            return f.read()


def traced_weights(receiver: Any, model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Of a traced layout, whose buffers are the engine's parameters: name -> view, in the form that weights are loaded in.
    MismatchError naming a parameter of another size or dtype."""
    forms = loaded_forms(model)
    stored = {h.buffer: h.dtype for h in receiver.layout.holdings(receiver.rank)}
    out = {}
    for name, memory in receiver.buffers.items():
        if name not in stored:
            continue  # nothing of the checkpoint lies in it
        if name not in forms:
            raise MismatchError("the engine's model has no such parameter", tensor=name)
        shape, dtype = forms[name]
        if DTYPES.get(dtype) != stored[name] or torch.Size(shape).numel() * dtype.itemsize != len(memory):
            raise MismatchError(f"the engine's parameter is {dtype} {tuple(shape)}, the traced one {stored[name]} of {len(memory)} bytes", tensor=name)
        out[name] = torch.frombuffer(memory, dtype=dtype).view(shape)
    return out
