"""A trainer rank: trainer.py ADDRESS STORE SCENARIO RANK. Four of them are a mesh of 2 x 2."""

import logging
import sys

import models
import refit
import torch
import torch.distributed as dist
from processes import answer, commands
from torch.distributed.device_mesh import init_device_mesh


def full(named):
    """Every tensor whole, on all ranks: what torch itself says the weights are."""
    return {n: (t.detach().full_tensor() if hasattr(t, "full_tensor") else t.detach().clone()) for n, t in named}


def main():
    address, store, scenario, rank = sys.argv[1:]
    torch.set_num_threads(1)
    logging.getLogger("torch.distributed.tensor").setLevel(logging.ERROR)  # advice on the speed of full_tensor()
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=int(rank), world_size=4)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model, step = getattr(models, scenario)(mesh)
    publisher = refit.Publisher.from_torch(address, model)
    answer(layout=publisher.layout.to_json() if rank == "0" else "")
    for c in commands():
        if c["verb"] == "publish":
            publisher.publish(c["step"])
            answer()
        elif c["verb"] == "step":
            step(c["step"])
            publisher.publish(c["step"])
            answer()
        elif c["verb"] == "full":
            state = model.state_dict() if hasattr(model, "state_dict") else model
            tensors = full(state.items())
            if rank == "0":
                torch.save(tensors, c["path"])
            answer()
    publisher.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    try:
        main()
    except Exception as e:  # noqa: BLE001 - told to the test, which fails with it
        answer(error=f"{type(e).__name__}: {e}")
        sys.exit(1)
