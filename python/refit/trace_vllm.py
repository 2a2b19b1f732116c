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
    """A configuration of vLLM for one checkpoint, and its model as any of `dp * tp` ranks has it (rank = dp * TP + tp)."""

    def __init__(self, directory, tp=1, dp=1, dtype="bfloat16", expert_parallel=False):
        from vllm.engine.arg_utils import EngineArgs

        self.tp, self.dp, self.dtype = tp, dp, getattr(torch, dtype)
        self.config = EngineArgs(model=str(directory), dtype=dtype, enforce_eager=True, max_model_len=32, skip_tokenizer_init=True).create_engine_config()
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
            return initialize_model(self.config)


def trace_ranks(directory, tp=1, dp=1, dtype="bfloat16", expert_parallel=False):
    """A `trace.Trace` for each of `dp * tp` ranks, and the checkpoint's {name: (shape, dtype)}."""
    from . import trace as tracing

    engine, checkpoint, out = Engine(directory, tp, dp, dtype, expert_parallel), checkpoint_of(directory), []
    for rank in range(dp * tp):
        with engine.as_rank(rank):
            out.append(tracing.trace(engine.build, checkpoint))
    return out, checkpoint
