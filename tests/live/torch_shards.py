#!/usr/bin/env python3
"""torch's own sharded modules over three gloo processes: transformers models of every family wrapped by FSDP2, and by FSDP1
with and without its original parameters; what each rank holds = the files of `fsdp=3` and of its flat forms, padding aside.

usage: torch_shards.py [--refit BINARY] [--only FAMILY] [--rows FILE]
"""
import json
import os
import pathlib
import shutil

import support

os.environ.update(GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1")
support.need("torch", "transformers", "safetensors")
import models  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.multiprocessing  # noqa: E402

torch.set_num_threads(1)
RANKS = 3
FORMS = {"fsdp1": "FSDP1's flat parameters", "fsdp1_orig": "FSDP1's flat parameters, use_orig_params=True", "": "FSDP2's local shards"}


def plain(name):
    name = name.replace("_fsdp_wrapped_module.", "")
    return name.replace("model.", "backbone.", 1) if "backbone" in NAMES else name


NAMES = set()


def held(name, form):
    """{name: local tensor} of this rank."""
    model = models.build(name)
    state = set(model.state_dict())
    layers = {type(layer) for layer in model.model.layers}
    if form:
        from torch.distributed.fsdp import FullyShardedDataParallel
        from torch.distributed.fsdp.wrap import ModuleWrapPolicy
        model = FullyShardedDataParallel(model, auto_wrap_policy=ModuleWrapPolicy(layers), use_orig_params=form == "fsdp1_orig", device_id=torch.device("cpu"))
        out = {(n + "." if n else "") + "_flat_param": m._handle.flat_param for n, m in model.named_modules() if isinstance(m, FullyShardedDataParallel)}
    else:
        from torch.distributed.fsdp import fully_shard
        for layer in model.model.layers:
            fully_shard(layer)
        fully_shard(model)
        out = {n: p.to_local() for n, p in model.named_parameters()}
    out = {plain(n).replace("..", "."): p.detach() for n, p in out.items()}
    return out | {plain(n): b for n, b in model.named_buffers() if n.replace("_fsdp_wrapped_module.", "") in state}


def worker(rank, name, form, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=RANKS)
    torch.save({n: t.clone() for n, t in held(name, form).items()}, folder / f"held{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def covered(directory, rank):
    """For each tensor of a rank's file, which of its elements hold something."""
    path = directory / f"rank{rank}.safetensors"
    raw = path.read_bytes()
    header = json.loads(raw[8:8 + int.from_bytes(raw[:8], "little")])
    layout = json.loads((directory / "layout.json").read_text())["ranks"][rank]
    mask = torch.zeros(max(t["data_offsets"][1] for n, t in header.items() if n != "__metadata__"), dtype=torch.bool)
    for h in layout["holdings"]:
        shape = [hi - lo for lo, hi in h["box"]]
        mask.as_strided(shape, h["strides"], h["offset"]).fill_(True)
    out = {}
    for n, t in header.items():
        if n != "__metadata__":
            lo, hi = t["data_offsets"]
            count = max(1, torch.Size(t["shape"]).numel())
            out[n] = mask[lo:hi:(hi - lo) // count] if hi > lo else mask[:0]
    return out


def compare(desk, name, form, source, row):
    there = desk.base / "there"
    naming = ",naming=fused" if models.has_experts(name) else ""
    desk.convert(source, f"fsdp={RANKS}" + (f",flat={form}" if form else "") + naming, there)
    (desk.base / "meet").unlink(missing_ok=True)
    torch.multiprocessing.start_processes(worker, (name, form, pathlib.Path(desk.base)), nprocs=RANKS, start_method="fork")
    seen = {}
    for rank in range(RANKS):
        want, mask = support.tensors(there, f"rank{rank}"), covered(there, rank)
        got = torch.load(desk.base / f"held{rank}.pt")
        tied = {"lm_head.weight"} - want.keys()
        assert got.keys() - tied == want.keys(), sorted(got.keys() ^ want.keys())[:8]
        for n, t in want.items():
            assert got[n].shape == t.shape and got[n].dtype == t.dtype, f"rank {rank}: {n}: {got[n].dtype} {list(got[n].shape)} is not {t.dtype} {list(t.shape)}"
            assert torch.equal(got[n].flatten()[mask[n]], t.flatten()[mask[n]]), f"rank {rank}: {n}: values differ"
            seen[n] = seen.get(n, 0) + int(mask[n].sum())
    assert all(seen.values()), "a parameter of which nothing was compared"
    row["checked"] = sum(seen.values())


def main():
    desk = support.Desk("torch", ["torch", "transformers", "safetensors"])
    for name in desk.wanted(models.FAMILIES):
        source = desk.base / "hf"
        NAMES.clear()
        if name.startswith("nemotron"):
            NAMES.add("backbone")  # transformers 5 renames it on the way in
        models.save(models.build(name), source)
        if desk.knows(source, name):
            for form, what in FORMS.items():
                naming = ",naming=fused" if models.has_experts(name) else ""
                with desk.row(name, f"{what} on {RANKS} gloo ranks = files, by element", f"fsdp={RANKS}" + (f",flat={form}" if form else "") + naming) as row:
                    compare(desk, name, form, source, row)
        shutil.rmtree(source)
    desk.finish()


if __name__ == "__main__":
    main()
