"""A rank under torchrun: half of a PEFT model under FSDP2, and half of an engine. Each version that comes is compared with PEFT's
merge of the whole model. Prints what was compared."""

import copy
import json
import sys

import models
import refit
import torch
import torch.distributed as dist
from refit import launch, spmd
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import distribute_tensor


def main():
    torch.set_num_threads(1)
    dtype = getattr(torch, sys.argv[1])
    at = launch.place()
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (at.world,))
    whole, model = (models.adapted(dtype, r=5, lora_alpha=12, modules_to_save=["lm_head"]) for _ in range(2))
    for m in list(model.modules()):
        if isinstance(m, models.peft.tuners.lora.Linear):  # FSDP2 wants one dtype in a unit, and adapters are in float32
            for part in (m.base_layer, m.lora_A["default"], m.lora_B["default"]) if dtype != torch.float32 else (m,):
                fully_shard(part, mesh=mesh)
    if dtype == torch.float32:
        fully_shard(model, mesh=mesh)
    target = refit.Layout.from_config(model.config.to_json_string(), f"vllm:tp={at.world}")
    coordinator = {"stall_timeout_s": 30, "total_timeout_s": 60, "join_timeout_s": 60}
    with spmd.start(lambda: refit.WeightSynchronizer(refit.Coordinator(at.world, 1, at.world, **coordinator)), at=at) as sync:
        with refit.Publisher.from_torch(sync.address, model) as publisher, refit.Receiver(sync.address, target, at.rank) as receiver:
            receiver.start()
            sync.init_communicator()
            base = {n: (t.to_local() if hasattr(t, "to_local") else t).clone() for n, t in model.state_dict().items() if "base_layer" in n}
            compared = equal = 0
            worst = 0.0
            for step in (1, 2):
                models.noisy(whole, 10 + step)
                with torch.no_grad():
                    new = dict(whole.named_parameters())
                    for name, p in model.named_parameters():
                        if "lora_" in name or "modules_to_save" in name:
                            p.copy_(distribute_tensor(new[name].detach(), p.device_mesh, p.placements) if hasattr(p, "placements") else new[name])
                publisher.publish(step)
                sync.mark_stale()
                report = sync.sync_weights(step)
                receiver.wait_version(report["version"], 30)
                want = copy.deepcopy(whole).merge_and_unload().state_dict()
                for t in receiver.tensors:
                    full = want[t.name] if not t.factors else want[t.name].reshape([n for axis in t.factors for n in axis])
                    box, held = full[tuple(slice(lo, hi) for lo, hi in t.box)], t.torch()
                    assert box.dtype == held.dtype, t.name
                    scale = want[t.name].float().abs().max()
                    worst = max(worst, float((box.float() - held.float()).abs().max() / scale))
                    compared, equal = compared + box.numel(), equal + int((box == held).sum())
            now = {n: (t.to_local() if hasattr(t, "to_local") else t) for n, t in model.state_dict().items() if "base_layer" in n}
            written = [n for n, t in base.items() if not torch.equal(t, now[n])]
            sharded = sum(hasattr(t, "placements") for t in model.state_dict().values())
            print(json.dumps({"rank": at.rank, "compared": compared, "equal": equal, "worst": worst, "written": written, "sharded": sharded}), flush=True)
            sync.is_stale()  # nobody leaves before all have compared
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
