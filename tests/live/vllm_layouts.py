#!/usr/bin/env python3
"""vLLM's own model classes: for every rank, what `refit convert --to vllm:…` writes = what `load_weights` writes into real
parameters (padding included), and the rule-made layout = the layout traced from `load_weights`, element by element. The
traced layout also drives `refit reshard` to the same bytes.

usage: vllm_layouts.py [--refit BINARY] [--only FAMILY] [--rows FILE]
"""
import dataclasses
import json
import os
import shutil

import support

os.environ.update(VLLM_LOGGING_LEVEL="ERROR", VLLM_NO_USAGE_STATS="1", VLLM_CPU_KVCACHE_SPACE="1", OMP_NUM_THREADS="1")
support.need("torch", "transformers", "safetensors", "vllm")
import torch  # noqa: E402

import layouts  # noqa: E402
import models  # noqa: E402

from vllm.model_executor.layers.fused_moe import config as moe_config  # noqa: E402
from vllm.model_executor.layers.fused_moe.experts import cpu_moe  # noqa: E402

from refit import trace as tracing  # noqa: E402
from refit import trace_vllm  # noqa: E402

torch.set_num_threads(1)


class Accelerator:
    """The platform, saying that it runs experts without gates: CPU kernels do not, and none is run here."""

    def __init__(self, real):
        self.real = real

    def __getattr__(self, name):
        return (lambda: True) if name == "is_xpu" else getattr(self.real, name)


moe_config.current_platform = Accelerator(moe_config.current_platform)
for experts in vars(cpu_moe).values():
    if isinstance(experts, type) and hasattr(experts, "_supports_no_act_and_mul"):
        experts._supports_no_act_and_mul = staticmethod(lambda: True)
        experts._supports_activation = staticmethod(lambda activation: True)

# SPEC of Refit, and tp, dp, expert parallel of vLLM.
DENSE = [("vllm:tp=1", 1, 1, False), ("vllm:tp=2", 2, 1, False), ("vllm:tp=4", 4, 1, False)]
EXPERTS = DENSE + [("vllm:tp=2,dp=2", 2, 2, False), ("vllm:tp=4,ep=4", 4, 1, True), ("vllm:tp=2,dp=2,ep=4", 2, 2, True)]
# Its expert kernels on CPU want multiples of 32; gpt-oss's attention cannot replicate KV heads (it counts 0 of them).
CHANGES = {"gpt_oss": dict(intermediate_size=128, num_key_value_heads=4)}
DRAFTS = ("deepseek_v3", "glm4_moe", "qwen3_next", "qwen3_5", "qwen3_5_moe")
UNEVEN = {"qwen3_moe": dict(num_experts=10)}  # 10 experts over 4 ranks: 3, 3, 2, 2


def primary(name):
    """What a copy in the draft layer repeats."""
    if name.endswith("shared_head.head.weight"):
        return "lm_head.weight"
    return "model.embed_tokens.weight" if name.endswith("embed_tokens.weight") else name


def compare(desk, source, saved, spec, tp, dp, ep, draft=False):
    """The number of parameters compared, over all ranks."""
    there = desk.base / "there"
    desk.convert(source, spec, there)
    found, checkpoint = trace_vllm.trace_ranks(source, tp, dp, expert_parallel=ep, draft=draft)
    if draft:  # the checkpoint's second copies are what they repeat
        for f in found:
            f.holdings = [dataclasses.replace(h, tensor=primary(h.tensor)) for h in f.holdings]
        checkpoint = {n: t for n, t in checkpoint.items() if primary(n) == n}
    ruled = layouts.by_parameter(json.loads((there / "layout.json").read_text()), there)
    # What Refit puts through a value transform, the trace reports as computed; all else is copied.
    values = set(ruled["recipe"]["values"])
    for f in found:
        assert set(f.problems) == values, f"{spec}: reported {f.problems}, transformed {values}"
        f.problems.clear()
    traced = tracing.layout_of(found, checkpoint)
    assert ruled["tensors"] == traced["tensors"], "tensors differ"
    transformed = {h["buffer"] for r in ruled["ranks"] for h in r["holdings"] if h["tensor"] in values}
    for r in ruled["ranks"]:
        r["holdings"] = [h for h in r["holdings"] if h["tensor"] not in values]

    engine, sizes, parameters = trace_vllm.Engine(source, tp, dp, expert_parallel=ep, draft=draft), {}, {}
    for rank in range(tp * dp):
        files = support.tensors(there, f"rank{rank}")
        with engine.as_rank(rank):
            model = engine.build(without_memory=False)
            with torch.no_grad():
                for p in model.parameters():
                    p.zero_()
                model.load_weights((n, t.clone()) for n, t in saved.items())
            own = {n: t.detach() for n, t in [*model.named_parameters(), *model.named_buffers()] if n in found[rank].buffers}
        assert not [n for n, _ in model.named_parameters() if n not in own], "parameters without a trace"
        for n in transformed:
            near = torch.nextafter(own[n], files[n])  # exp of two libraries may differ in the last bit
            assert own[n].dtype == files[n].dtype and torch.equal(torch.where(own[n] == files[n], own[n], near), files[n]), f"{spec} rank {rank}: {n}"
        support.equal({n: t for n, t in files.items() if n not in transformed}, {n: t for n, t in own.items() if n not in transformed}, f"{spec} rank {rank}: files and load_weights")
        for n, t in own.items():
            sizes[rank, n] = t.numel(), t.element_size()
            parameters[rank, n] = t.contiguous()
    # The symbolic comparison that a live engine makes, and the one that looks at every element.
    assert tracing.differences(ruled, traced, apart=values) == {}, tracing.differences(ruled, traced, apart=values)
    a, b = layouts.element_ids(ruled, sizes), layouts.element_ids(traced, sizes)
    for key in sizes:
        same = torch.equal(a[key], b[key])
        assert same, f"{spec}: {key}: rules and trace differ in {int((a[key] != b[key]).sum())} of {a[key].numel()} elements"

    # The traced layout is one that Refit itself reads and plans with.
    raw, out = desk.base / "raw", desk.base / "resharded"
    for path in (raw, out):
        shutil.rmtree(path, ignore_errors=True)
    layouts.checkpoint_layout(checkpoint, {n: saved[n] for n in checkpoint}, raw)
    (desk.base / "traced.json").write_text(json.dumps(traced))
    desk.refit("reshard", "--source-layout", raw / "layout.json", "--source-data", raw, "--target-layout", desk.base / "traced.json", "--out", out)
    for (rank, name), t in parameters.items():
        assert name in transformed or (out / f"rank{rank}.{name}.bin").read_bytes() == t.reshape(-1).view(torch.uint8).numpy().tobytes(), f"reshard: rank {rank}: {name}"
    return len(sizes)


def main():
    desk = support.Desk("vllm", ["vllm-cpu", "transformers", "torch"])
    for name in desk.wanted(models.FAMILIES):
        for changes, specs in [({}, EXPERTS if models.has_experts(name) else DENSE), (UNEVEN.get(name), [("vllm:tp=4,ep=4", 4, 1, True)])]:
            if changes is None:
                continue
            source = desk.base / "hf"
            model = models.build(name, **({} if name == "qwen2" else dict(hidden_size=96)) | CHANGES.get(name, {}) | changes)
            models.save(model, source)
            if not desk.knows(source, name):
                shutil.rmtree(source)
                break
            saved = support.tensors(source, "model")
            for spec, tp, dp, ep in specs:
                label = name + "".join(f", {k}={v}" for k, v in changes.items())
                with desk.row(label, "files = bytes of load_weights, padding included; rule-made layout = traced layout; reshard by the traced layout", spec) as row:
                    row["checked"] = compare(desk, source, saved, spec, tp, dp, ep)
            shutil.rmtree(source)
    for name in desk.wanted(DRAFTS):
        source = desk.base / "hf"
        model = models.build(name, hidden_size=96)
        models.save(model, source)
        models.add_drafts(model, source, copies=True)
        saved = support.tensors(source, "model")
        for spec, tp, dp, ep in EXPERTS if models.has_experts(name) else DENSE:
            with desk.row(name + ", draft model", "files = bytes of load_weights, padding included; rule-made layout = traced layout; reshard by the traced layout", spec + ",draft=own") as row:
                row["checked"] = compare(desk, source, saved, spec + ",draft=own", tp, dp, ep, draft=True)
        shutil.rmtree(source)
    desk.finish()


if __name__ == "__main__":
    main()
