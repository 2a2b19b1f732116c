#!/usr/bin/env python3
"""vLLM's own model classes: for every rank, what `refit convert --to vllm:…` writes = what `load_weights` writes into real
parameters (padding included), and the rule-made layout = the layout traced from `load_weights`, element by element. The
traced layout also drives `refit reshard` to the same bytes.

usage: vllm_layouts.py [--refit BINARY] [--only FAMILY] [--rows FILE]
"""
import json
import os
import shutil

import support

os.environ.update(VLLM_LOGGING_LEVEL="ERROR", VLLM_NO_USAGE_STATS="1", VLLM_CPU_KVCACHE_SPACE="1", OMP_NUM_THREADS="1")
support.need("torch", "transformers", "safetensors", "vllm")
import torch  # noqa: E402

import layouts  # noqa: E402
import models  # noqa: E402

from refit import trace as tracing  # noqa: E402
from refit import trace_vllm  # noqa: E402

torch.set_num_threads(1)

# SPEC of Refit, and tp, dp, expert parallel of vLLM.
DENSE = [("vllm:tp=1", 1, 1, False), ("vllm:tp=2", 2, 1, False), ("vllm:tp=4", 4, 1, False)]
EXPERTS = DENSE + [("vllm:tp=2,dp=2", 2, 2, False), ("vllm:tp=4,ep=4", 4, 1, True), ("vllm:tp=2,dp=2,ep=4", 2, 2, True)]
# Its expert kernels on CPU want multiples of 32; gpt-oss's attention cannot replicate KV heads (it counts 0 of them).
CHANGES = {"gpt_oss": dict(intermediate_size=128, num_key_value_heads=4)}
UNEVEN = {"qwen3_moe": dict(num_experts=10)}  # 10 experts over 4 ranks: 3, 3, 2, 2


def compare(desk, source, saved, spec, tp, dp, ep):
    """The number of parameters compared, over all ranks."""
    there = desk.base / "there"
    desk.convert(source, spec, there)
    found, checkpoint = trace_vllm.trace_ranks(source, tp, dp, expert_parallel=ep)
    traced = tracing.layout_of(found, checkpoint)
    ruled = layouts.by_parameter(json.loads((there / "layout.json").read_text()), there)
    assert ruled["tensors"] == traced["tensors"], "tensors differ"

    engine, sizes, parameters = trace_vllm.Engine(source, tp, dp, expert_parallel=ep), {}, {}
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
        support.equal(files, own, f"{spec} rank {rank}: files and load_weights")
        for n, t in own.items():
            sizes[rank, n] = t.numel(), t.element_size()
            parameters[rank, n] = t.contiguous()
    a, b = layouts.element_ids(ruled, sizes), layouts.element_ids(traced, sizes)
    for key in sizes:
        same = torch.equal(a[key], b[key])
        assert same, f"{spec}: {key}: rules and trace differ in {int((a[key] != b[key]).sum())} of {a[key].numel()} elements"

    # The traced layout is one that Refit itself reads and plans with.
    raw, out = desk.base / "raw", desk.base / "resharded"
    for path in (raw, out):
        shutil.rmtree(path, ignore_errors=True)
    layouts.checkpoint_layout(checkpoint, saved, raw)
    (desk.base / "traced.json").write_text(json.dumps(traced))
    desk.refit("reshard", "--source-layout", raw / "layout.json", "--source-data", raw, "--target-layout", desk.base / "traced.json", "--out", out)
    for (rank, name), t in parameters.items():
        assert (out / f"rank{rank}.{name}.bin").read_bytes() == t.reshape(-1).view(torch.uint8).numpy().tobytes(), f"reshard: rank {rank}: {name}"
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
    desk.finish()


if __name__ == "__main__":
    main()
