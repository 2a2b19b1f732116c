"""vLLM: where a checkpoint lands on each tensor-parallel rank, from the model class's own `load_weights`.

All ranks are played in one process: a process group of one member says it is member `rank` of `tp`, which is all that
parameters and their loaders ask. Nothing is sent and no kernel runs. Traced before the engine's post-processing, so the
layout is that of the parameters as loaders see them (what a layerwise reload takes), not of kernels' private copies.
"""
from __future__ import annotations

import contextlib
import glob
import json
import os
import struct
import tempfile

import torch

DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "F8_E4M3": torch.float8_e4m3fn, "U8": torch.uint8, "I64": torch.int64, "I32": torch.int32}


def checkpoint_of(directory):
    """{name: (shape, dtype)} from the headers of a checkpoint's safetensors files."""
    out = {}
    for path in sorted(glob.glob(os.path.join(directory, "*.safetensors"))):
        with open(path, "rb") as f:
            header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        header.pop("__metadata__", None)
        for name, t in header.items():
            if t["dtype"] not in DTYPES:
                raise ValueError(f"{path}: {name}: dtype {t['dtype']} is not known here")
            out[name] = (tuple(t["shape"]), DTYPES[t["dtype"]])
    if not out:
        raise ValueError(f"{directory}: no safetensors file")
    return out


class Engine:
    """A configuration of vLLM for one checkpoint, and its model as any of `dp * tp` ranks has it (rank = dp * TP + tp); with
    `draft` the model of the checkpoint's draft layers instead, which is a class of its own."""

    def __init__(self, directory, tp=1, dp=1, dtype="bfloat16", expert_parallel=False, draft=False):
        from vllm.engine.arg_utils import EngineArgs

        self.tp, self.dp, self.dtype, self.draft = tp, dp, getattr(torch, dtype), draft
        speculative = {"method": "mtp", "num_speculative_tokens": 1} if draft else None
        self.config = EngineArgs(model=str(directory), dtype=dtype, enforce_eager=True, max_model_len=32, skip_tokenizer_init=True, speculative_config=speculative).create_engine_config()
        self.config.parallel_config.enable_expert_parallel = expert_parallel

    @contextlib.contextmanager
    def as_rank(self, rank):
        from vllm.config import set_current_vllm_config
        from vllm.distributed import init_distributed_environment, initialize_model_parallel
        from vllm.distributed import parallel_state

        with set_current_vllm_config(self.config):
            if not torch.distributed.is_initialized():
                store = tempfile.NamedTemporaryFile(prefix="refit-trace-", delete=False)
                store.close()
                os.unlink(store.name)
                init_distributed_environment(1, 0, f"file://{store.name}", 0, "gloo")
            parallel_state.destroy_model_parallel()  # an earlier model's: only those with experts get an expert group
            initialize_model_parallel(1, 1)
            played = [(parallel_state._TP, self.tp, rank % self.tp), (parallel_state._DP, self.dp, rank // self.tp), (parallel_state._EP, self.dp * self.tp, rank)]
            played = [(group, size, own) for group, size, own in played if group is not None]
            for group, size, own in played:
                group.world_size, group.rank_in_group = size, own
            self.config.parallel_config.tensor_parallel_size, self.config.parallel_config.rank = self.tp, rank % self.tp
            try:
                yield
            finally:
                self.config.parallel_config.tensor_parallel_size, self.config.parallel_config.rank = 1, 0
                for group, _, _ in played:
                    group.world_size, group.rank_in_group = 1, 0

    def build(self, without_memory=True):
        """The model, within `as_rank`."""
        from vllm.model_executor.model_loader.utils import initialize_model
        from vllm.utils.torch_utils import set_default_torch_dtype

        from . import trace as tracing

        self.config.compilation_config.static_forward_context.clear()
        with set_default_torch_dtype(self.dtype), tracing.WithoutMemory() if without_memory else contextlib.nullcontext():
            return initialize_model(self.config, model_config=self.config.speculative_config.draft_model_config if self.draft else None)


def trace_ranks(directory, tp=1, dp=1, dtype="bfloat16", expert_parallel=False, draft=False):
    """A `trace.Trace` for each of `dp * tp` ranks, and the checkpoint's {name: (shape, dtype)}."""
    from . import trace as tracing

    engine, checkpoint, out = Engine(directory, tp, dp, dtype, expert_parallel, draft), checkpoint_of(directory), []
    for rank in range(dp * tp):
        with engine.as_rank(rank):
            out.append(tracing.trace(engine.build, checkpoint))
    return out, checkpoint


def layout(directory, tp=1, dp=1, dtype="bfloat16", expert_parallel=False, replicas=1, leave_out=()):
    """The layout file of `replicas` equal engines, rank by rank, traced from the engine's own loader. `leave_out`: tensors
    that may be computed or looked at on the way, because somebody else answers for them. TraceError names all others."""
    from . import trace as tracing

    found, checkpoint = trace_ranks(directory, tp, dp, dtype, expert_parallel)
    for one in found:
        for name in leave_out:
            one.problems.pop(name, None)
        one.holdings = [h for h in one.holdings if h.tensor not in set(leave_out)]
    out = tracing.layout_of(found, checkpoint)
    own = out["ranks"]
    out["ranks"] = [dict(rank, rank=i * len(own) + rank["rank"]) for i in range(replicas) for rank in own]
    if replicas > 1:
        out["instances"] = replicas
    return out


def main():
    """python -m refit.trace_vllm MODEL --out FILE [--tp N] [--dp N] [--expert-parallel] [--dtype T] [--replicas N] [--leave-out NAME …]

    A process of its own: tracing plays all ranks, for which a running engine's own process is no place."""
    import argparse
    import sys

    parser = argparse.ArgumentParser(prog="refit.trace_vllm", description="Traces where a checkpoint lands on each rank of a vLLM engine")
    parser.add_argument("model")
    parser.add_argument("--out", required=True)
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--dp", type=int, default=1)
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--expert-parallel", action="store_true")
    parser.add_argument("--leave-out", nargs="*", default=[])
    a = parser.parse_args()
    from . import trace as tracing

    try:
        made = layout(a.model, a.tp, a.dp, a.dtype, a.expert_parallel, a.replicas, a.leave_out)
    except (tracing.TraceError, ValueError, OSError) as e:
        sys.exit(f"cannot trace: {e}")
    with open(a.out, "w") as f:
        json.dump(made, f)


if __name__ == "__main__":
    main()
