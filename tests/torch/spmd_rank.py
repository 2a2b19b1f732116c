"""A rank under torchrun that trains and serves: half of an FSDP2 model, half of an engine. spmd_rank.py early|late: where the
ranks meet before torch.distributed is initialised (torchrun's own store), or after. Prints what it found."""

import json
import sys

import models
import refit
import torch
import torch.distributed as dist
from refit import launch, spmd
from torch.distributed.device_mesh import init_device_mesh

CONFIG = {**models.CONFIG, "num_key_value_heads": 2}  # which two engine ranks share


def main():
    torch.set_num_threads(1)
    at = launch.place()
    target = refit.Layout.from_config(CONFIG, f"vllm:tp={at.world}")
    options = {"stall_timeout_s": 20, "total_timeout_s": 60, "join_timeout_s": 60}

    def make():
        return refit.WeightSynchronizer(refit.Coordinator(at.world, 1, at.world, **options))

    early = sys.argv[1] == "early"
    sync = spmd.start(make, at=at) if early else None
    dist.init_process_group("gloo")
    sync = sync or spmd.start(make, at=at)
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(3)
    model = models.Llama(CONFIG).to(torch.bfloat16)
    fully_shard(model, mesh=init_device_mesh("cpu", (at.world,)))
    with sync, refit.Publisher.from_torch(sync.address, model) as publisher, refit.Receiver(sync.address, target, at.rank) as receiver:
        receiver.start()
        sync.init_communicator()
        compared = 0
        for step in (1, 2):
            with torch.no_grad():
                for p in model.parameters():
                    p.add_(step)
            publisher.publish(step)
            sync.mark_stale()
            report = sync.sync_weights(step)
            receiver.wait_version(report["version"], 30)
            whole = {n: t.full_tensor() for n, t in model.state_dict().items()}
            for t in receiver.tensors:
                full = whole[t.name] if not t.factors else whole[t.name].reshape([n for axis in t.factors for n in axis])
                box = full[tuple(slice(lo, hi) for lo, hi in t.box)]
                assert torch.equal(box, t.torch()), (t.name, at.rank, step)
                compared += box.numel()
        error = ""
        try:
            sync.sync_weights(8 + at.rank)
        except refit.Error as e:
            error = f"{type(e).__name__} {e}"
        print(json.dumps({"rank": at.rank, "launcher": at.launcher, "job": at.job, "local": at.local_world, "compared": compared, "stale": sync.is_stale(), "error": error}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
