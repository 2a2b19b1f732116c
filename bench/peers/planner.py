"""Planning with megatron-core's resharding planner, no process group: planner.py --mcore FOLDER --model NAME --ranks N --repeats K.
Trainer PP16 x EP16 (256 ranks, TP1), engine TP32 x DP8 (256 other ranks). Every rank replays the schedule of all destinations, so
cost grows with them: --ranks 256 plans the world, fewer are scaled to 256 and say so.

The planner's files come from the wheel as they are. Its packages' __init__ files import GPU extras, so that empty packages stand in
for them. Parameter metadata is what its own extraction would gather from such models; it is made outside the clock."""

import argparse
import functools
import gc
import importlib
import json
import os
import statistics
import sys
import time
import types

STAGES, EXPERT_RANKS, TP, REPLICAS, WORLD = 16, 16, 32, 8, 256


def qwen3_30b_a3b():
    """(name, whole shape, cut axis, parts that are cut apart, layer, expert)"""
    hidden, layers, experts, inner, vocabulary = 2048, 48, 128, 768, 151936
    yield "embedding.word_embeddings.weight", (vocabulary, hidden), 0, 1, 0, None
    for i in range(layers):
        at = f"decoder.layers.{i}."
        for name, shape, axis in (
            ("self_attention.linear_qkv.layer_norm_weight", (hidden,), None),
            ("self_attention.linear_qkv.weight", (5120, hidden), 0),
            ("self_attention.q_layernorm.weight", (128,), None),
            ("self_attention.k_layernorm.weight", (128,), None),
            ("self_attention.linear_proj.weight", (hidden, 4096), 1),
            ("pre_mlp_layernorm.weight", (hidden,), None),
            ("mlp.router.weight", (experts, hidden), None),
        ):
            yield at + name, shape, axis, 1, i, None
        for e in range(experts):
            yield f"{at}mlp.experts.linear_fc1.weight{e}", (2 * inner, hidden), 0, 2, i, e
            yield f"{at}mlp.experts.linear_fc2.weight{e}", (hidden, inner), 1, 1, i, e
    yield "decoder.final_layernorm.weight", (hidden,), None, 1, layers - 1, None
    yield "output_layer.weight", (vocabulary, hidden), 0, 1, layers - 1, None


def deepseek_v3():
    hidden, layers, experts, inner, vocabulary = 7168, 61, 256, 2048, 129280
    yield "embedding.word_embeddings.weight", (vocabulary, hidden), 0, 1, 0, None
    for i in range(layers):
        at = f"decoder.layers.{i}."
        for name, shape, axis in (
            ("input_layernorm.weight", (hidden,), None),
            ("self_attention.linear_q_down_proj.weight", (1536, hidden), None),
            ("self_attention.linear_q_up_proj.layer_norm_weight", (1536,), None),
            ("self_attention.linear_q_up_proj.weight", (24576, 1536), 0),
            ("self_attention.linear_kv_down_proj.weight", (576, hidden), None),
            ("self_attention.linear_kv_up_proj.layer_norm_weight", (512,), None),
            ("self_attention.linear_kv_up_proj.weight", (32768, 512), 0),
            ("self_attention.linear_proj.weight", (hidden, 16384), 1),
            ("pre_mlp_layernorm.weight", (hidden,), None),
        ):
            yield at + name, shape, axis, 1, i, None
        if i < 3:
            yield at + "mlp.linear_fc1.weight", (36864, hidden), 0, 2, i, None
            yield at + "mlp.linear_fc2.weight", (hidden, 18432), 1, 1, i, None
            continue
        yield at + "mlp.router.weight", (experts, hidden), None, 1, i, None
        yield at + "mlp.router.expert_bias", (experts,), None, 1, i, None
        yield at + "mlp.shared_experts.linear_fc1.weight", (2 * inner, hidden), 0, 2, i, None
        yield at + "mlp.shared_experts.linear_fc2.weight", (hidden, inner), 1, 1, i, None
        for e in range(experts):
            yield f"{at}mlp.experts.linear_fc1.weight{e}", (2 * inner, hidden), 0, 2, i, e
            yield f"{at}mlp.experts.linear_fc2.weight{e}", (hidden, inner), 1, 1, i, e
    yield "decoder.final_layernorm.weight", (hidden,), None, 1, layers - 1, None
    yield "output_layer.weight", (vocabulary, hidden), 0, 1, layers - 1, None


MODELS = {"qwen3-30b-a3b": (qwen3_30b_a3b, 48, 128), "deepseek-v3": (deepseek_v3, 61, 256)}


def load(folder):
    """(planner, utils) of the unpacked wheel."""
    for name in ("megatron", "megatron.core", "megatron.core.resharding"):
        package = types.ModuleType(name)
        package.__path__ = [os.path.join(folder, *name.split("."))]
        sys.modules[name] = package
    return tuple(importlib.import_module(f"megatron.core.resharding.{m}") for m in ("planner", "utils"))


def rosters(make, parameters, layers, experts, ranks):
    """(metadata of destinations by rank, of sources by name). `make` is the planner's ParameterMetadata without its dtype."""
    shared = {}

    def group(members):  # equal groups are one list, as they are where one process gathers them
        return shared.setdefault(tuple(members), list(members))

    sources = {}
    for name, shape, _, parts, layer, expert in parameters:
        first = layer * STAGES // layers * EXPERT_RANKS
        stage = range(first, first + EXPERT_RANKS)
        for owner in stage if expert is None else [first + expert * EXPERT_RANKS // experts]:
            alone = group([owner])
            gated = {"is_tp": True, "partition_dim": 0, "partition_stride": parts} if parts > 1 else {}
            sources.setdefault(name, []).append(
                make(
                    name=name, shape=shape, is_ep=expert is not None, num_experts=experts, owner_rank=owner, tensor_parallel_group_ranks=alone,
                    expert_parallel_group_ranks=alone if expert is None else group(stage),
                    data_parallel_group_ranks=group(stage) if expert is None else alone, resolved_name=name, **gated,
                )
            )  # fmt: skip
    destinations = {}
    for k in range(ranks):
        rank = WORLD + k * (WORLD // ranks)
        replica = (rank - WORLD) // TP
        row = {}
        for name, shape, axis, parts, _, expert in parameters:
            local = [n // TP if i == axis else n for i, n in enumerate(shape)]
            row[name] = make(
                name=name, shape=tuple(local), is_tp=axis is not None, partition_dim=axis or 0, partition_stride=parts, is_ep=expert is not None,
                num_experts=experts, owner_rank=rank, tensor_parallel_group_ranks=group(range(WORLD + replica * TP, WORLD + replica * TP + TP)),
                expert_parallel_group_ranks=group([rank]), data_parallel_group_ranks=group(range(WORLD + rank % TP, 2 * WORLD, TP)), resolved_name=name,
            )  # fmt: skip
        destinations[rank] = row
    return destinations, sources


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mcore", required=True, help="folder of the unpacked megatron_core wheel")
    parser.add_argument("--model", choices=MODELS, required=True)
    parser.add_argument("--ranks", type=int, default=8, help="destination ranks planned, a divisor of 256")
    parser.add_argument("--repeats", type=int, default=3)
    o = parser.parse_args()
    import torch

    gc.disable()  # millions of objects live at once: walking them would be no part of planning
    planner, utils = load(o.mcore)
    generate, layers, experts = MODELS[o.model]
    parameters = list(generate())
    make = functools.partial(utils.ParameterMetadata, dtype=torch.bfloat16, element_size=2)
    destinations, sources = rosters(make, parameters, layers, experts, o.ranks)
    rows = {}
    for who, rank in (("rank", max(destinations)), ("source_rank", 5)):
        seconds = []
        for r in range(o.repeats + (o.repeats > 1)):
            start = time.monotonic()
            plan = planner.build_plan_from_rosters(destinations, sources, rank)
            seconds.append(time.monotonic() - start)
        # All that a destination rank needs, and nothing twice: elements of its receives against elements that it holds.
        if who == "rank":
            need = {n: m.shape for n, m in destinations[rank].items()}
            have = {}
            for op in plan.recv_ops:
                sizes = [len(range(*s.indices(need[op.param_name][i]))) for i, s in enumerate(op.my_slice)]
                have[op.param_name] = have.get(op.param_name, 0) + _product(sizes)
            if wrong := [n for n, shape in need.items() if have.get(n) != _product(shape)]:
                raise RuntimeError(f"the plan covers {len(wrong)} of {len(need)} parameters wrongly, {wrong[0]} first")
        seconds = seconds[1:] or seconds
        rows[who] = {"seconds": seconds, "whole_s": statistics.median(seconds) * WORLD / o.ranks, "receives": len(plan.recv_ops), "sends": len(plan.send_ops)}
    print(json.dumps({"parameters": len(parameters), "ranks": o.ranks, "extrapolated": o.ranks != WORLD, "rows": rows}))


def _product(numbers):
    out = 1
    for n in numbers:
        out *= n
    return out


if __name__ == "__main__":
    main()
