#!/usr/bin/env python3
"""SGLang's own model classes on CPU, one process a rank (gloo, TP, EP, DP attention): for every rank, what `refit convert --to
sglang:…` writes = what `load_weights` writes into real parameters, and the rule-made layout = the layout traced from
`load_weights`, element by element.

usage: sglang_layouts.py [--refit BINARY] [--only FAMILY] [--rows FILE]      (needs .cache/venv-sglang)
"""
import json
import multiprocessing
import os
import pathlib
import shutil
import socket
import sys
import traceback
import types
import warnings

import support

warnings.filterwarnings("ignore")
os.environ.update(OMP_NUM_THREADS="1", SGLANG_DISABLE_SHARED_EXPERTS_FUSION="1", GLOO_SOCKET_IFNAME="lo")
# Two operators of another engine that SGLang's layers import where neither a GPU nor its CPU kernels are found. Nothing here
# runs a layer, so names without bodies will do.
operators = types.ModuleType("vllm._custom_ops")
operators.rotary_embedding = operators.rms_norm = operators.fused_add_rms_norm = None
sys.modules["vllm"], sys.modules["vllm._custom_ops"] = types.ModuleType("vllm"), operators
sys.modules["vllm"]._custom_ops = operators
support.need("torch", "transformers", "safetensors", "sglang.srt.model_loader.loader")
import torch  # noqa: E402

import layouts  # noqa: E402
import models  # noqa: E402

from refit import trace as tracing  # noqa: E402

torch.set_num_threads(1)
DEADLINE = 180
# Asked for while models are made: a stream for overlap, and the current device.
torch.cuda.Stream = lambda *_, **__: None
torch.cuda.current_device = lambda: torch.device("cpu")

# SPEC of Refit, and keys of SGLang's configuration.
DENSE = [("sglang:tp=2", dict(tp_size=2)), ("sglang:tp=4", dict(tp_size=4))]
EXPERTS = DENSE + [("sglang:tp=4,ep=2", dict(tp_size=4, ep_size=2))]
# Which models have DP attention is SGLang's choice, model by model.
SHARED = [("sglang:tp=2,dp=2", dict(tp_size=4, dp_size=2, enable_dp_attention=True, enable_dp_lm_head=True))]
WITH_DP = ("qwen3", "glm4_moe")
# Its Qwen3-MoE makes every layer one of experts; gpt-oss counts its width in blocks of 32.
CHANGES = {"qwen3_moe": dict(mlp_only_layers=[]), "gpt_oss": dict(intermediate_size=128)}
# gpt-oss: a backend that knows sinks (never run here), and experts as they are loaded, not as its default kernels turn them.
KEYS = {"gpt_oss": dict(attention_backend="triton", moe_runner_backend="triton")}
REFUSED = {("gpt_oss", "sglang:tp=4,ep=2")}  # its own loader ends there with mismatched sizes (4 experts, not 8)
# Families that SGLang 0.5.23 has no such model of, and why.
MISSING = {"llama, biases": "its Llama has no biases in the MLP", "deepseek_v3": "its latent attention is not made without a GPU", "deepseek_v3, no q-LoRA": "its latent attention is not made without a GPU", "gemma4": "its configuration does not load with this transformers", "gemma4, experts, k = v": "its configuration does not load with this transformers",
           "nemotron_h": "Refit has no rules for it", "nemotron_h, one group": "Refit has no rules for it"}


def build(source, keys, rank, port):
    """A function that makes this rank's model, after the process has joined its groups."""
    from sglang.srt.configs.load_config import LoadConfig
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.distributed import bootstrap
    from sglang.srt.distributed.device_communicators import pynccl
    from sglang.srt.layers.moe import initialize_moe_config
    from sglang.srt.model_loader import loader
    from sglang.srt.model_loader.utils import set_default_torch_dtype
    from sglang.srt.runtime_context import SpawnRanks, publish
    from sglang.srt.server_args import ServerArgs

    pynccl.PyNcclCommunicator = lambda **_: types.SimpleNamespace(disabled=True, available=False)  # groups of more than one ask for it

    server = ServerArgs(**dict(model_path=str(source), device="cpu", dtype="bfloat16", attention_backend="torch_native", sampling_backend="pytorch", disable_cuda_graph=True, disable_shared_experts_fusion=True,
                               skip_tokenizer_init=True, disable_radix_cache=True, mem_fraction_static=0.1) | keys)
    publish(server, role="scheduler", ranks=SpawnRanks(world_rank=rank, gpu_id=0))
    initialize_moe_config()
    bootstrap._init_parallel_groups(backend="gloo", dist_init_method=f"tcp://127.0.0.1:{port}", server_args=server, gpu_id=0)
    config = ModelConfig.from_server_args(server)
    bootstrap.init_layer_runtime(model_config=config)

    def make():
        with set_default_torch_dtype(torch.bfloat16):
            return loader._initialize_model(config, LoadConfig())

    return make


def child(rank, port, source, keys, out):
    from safetensors.torch import load_file
    try:
        make = build(source, keys, rank, port)
        saved = {}
        for path in sorted(source.glob("*.safetensors")):
            saved |= load_file(path)
        checkpoint = {n: (tuple(t.shape), t.dtype) for n, t in saved.items()}

        def without_memory():
            with tracing.WithoutMemory():
                return make()

        found = tracing.trace(without_memory, checkpoint)
        # A norm keeps 1 + weight beside its weight, for its kernel: computed, so the trace says, and made anew after each load.
        for name in [n for n in found.buffers if n.endswith(".gemma_weight")]:
            del found.problems[next(t for t, why in found.problems.items() if why.startswith(f"{name} gets"))]
            del found.buffers[name]
        layout = tracing.layout_of([found], checkpoint)
        layout["ranks"][0]["rank"] = rank
        model = make()
        with torch.no_grad():
            for p in model.parameters():
                p.zero_()
            model.load_weights((n, t.clone()) for n, t in saved.items())
        own = {n: t.detach().clone() for n, t in [*model.named_parameters(), *model.named_buffers()] if n in found.buffers}
        torch.save({"layout": layout, "own": own, "untraced": [n for n, _ in model.named_parameters() if n not in own]}, out)
        torch.distributed.barrier()
    except BaseException:
        pathlib.Path(f"{out}.failed").write_text(traceback.format_exc())
        os._exit(1)
    os._exit(0)


def on_ranks(desk, source, keys):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    results = desk.base / "results"
    shutil.rmtree(results, ignore_errors=True)
    results.mkdir()
    world = keys["tp_size"]
    context = multiprocessing.get_context("fork")
    all_ranks = [context.Process(target=child, args=(r, port, source, keys, results / f"{r}")) for r in range(world)]
    for p in all_ranks:
        p.start()
    for p in all_ranks:
        p.join(DEADLINE)
        if p.exitcode is None or p.exitcode:
            for q in all_ranks:
                q.kill()
                q.join()
            texts = sorted(results.glob("*.failed"))
            raise AssertionError("\n".join(texts[0].read_text().splitlines()[-16:]) if texts else f"a rank ended with {p.exitcode} or passed {DEADLINE} s")
    return [torch.load(results / f"{r}", weights_only=True) for r in range(world)]


def compare(desk, source, spec, keys):
    there = desk.base / "there"
    desk.convert(source, spec, there)
    results = on_ranks(desk, source, keys)
    traced = dict(results[0]["layout"], ranks=[r["layout"]["ranks"][0] for r in results])
    ruled = layouts.by_parameter(json.loads((there / "layout.json").read_text()), there)
    assert ruled["tensors"] == traced["tensors"], "tensors differ"
    sizes = {}
    for rank, r in enumerate(results):
        assert not r["untraced"], f"parameters without a trace: {r['untraced'][:4]}"
        support.equal(support.tensors(there, f"rank{rank}"), r["own"], f"{spec} rank {rank}: files and load_weights")
        sizes |= {(rank, n): (t.numel(), t.element_size()) for n, t in r["own"].items()}
    a, b = layouts.element_ids(ruled, sizes), layouts.element_ids(traced, sizes)
    for key in sizes:
        assert torch.equal(a[key], b[key]), f"{spec}: {key}: rules and trace differ in {int((a[key] != b[key]).sum())} of {a[key].numel()} elements"
    return len(sizes)


def main():
    desk = support.Desk("sglang", ["sglang", "transformers", "torch"])
    for name in desk.wanted(models.FAMILIES):
        if name in MISSING:
            print(f"SKIPPED: {name}: {MISSING[name]}", flush=True)
            continue
        source = desk.base / "hf"
        models.save(models.build(name, **CHANGES.get(name, {})), source)
        if name.startswith(("qwen3_next", "qwen3_5")):  # a key of published checkpoints that transformers no longer writes
            config = json.loads((source / "config.json").read_text())
            (source / "config.json").write_text(json.dumps(config | dict(full_attention_interval=2)))
        if desk.knows(source, name):
            for spec, keys in (EXPERTS if models.has_experts(name) else DENSE) + SHARED * (name in WITH_DP):
                if (name, spec) in REFUSED:
                    continue
                with desk.row(name, "files = bytes of load_weights, padding included; rule-made layout = traced layout", spec) as row:
                    row["checked"] = compare(desk, source, spec, keys | KEYS.get(name, {}))
        shutil.rmtree(source)
    desk.finish()


if __name__ == "__main__":
    main()
