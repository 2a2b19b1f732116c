"""One row of the dense work in a process tree of its own: dense.py ROW --bytes N --repeats K. Prints one JSON object: seconds of each
repeat from the first trainer's start to the last rollout rank's end, and processor seconds. A row that cannot run, or that left a
wrong byte in any repeat or warm-up, is an object with its reason."""

import argparse
import json
import multiprocessing
import os
import shutil
import sys
import tempfile

import group
import row_gloo
import row_onesided
import row_refit
import row_shm
from model import Model


def gloo(trainer, rollout):
    def run(model, count, folder, seconds):
        with group.Group(group.ranks(model, trainer, rollout, os.path.join(folder, "store")), seconds) as g:
            return group.repeats(g, count)

    return run


def shared_memory(model, count, _, seconds):
    folder = tempfile.mkdtemp(prefix="refit-peers-", dir=os.environ.get("REFIT_PEERS_SHM", "/dev/shm"))
    try:
        with group.Group(group.ranks(model, row_shm.ShmTrainer, row_shm.ShmRollout, folder), seconds) as g:
            g.ask("connect", None, only="rollout")
            return group.repeats(g, count)
    finally:
        shutil.rmtree(folder)


def one_sided(trainer, rollout, transports=None):
    def run(model, count, _, seconds):
        packed = multiprocessing.get_context("spawn").Barrier(model.trainers + model.rollouts)
        with group.Group(group.ranks(model, trainer, rollout, packed, transports), seconds) as g:
            g.ask("connect", g.ask("publish", only="trainer"), only="rollout")
            return group.repeats(g, count)

    return run


def refit(**options):
    def run(model, count, folder, seconds):
        def start(address):
            return group.Group(group.ranks(model, row_refit.RefitTrainer, row_refit.RefitRollout, address), seconds)

        return row_refit.run(model, count, start, {**options, "runtime_dir": folder, "total_timeout_s": 120, "join_timeout_s": 120})

    return run


def ray(model, count, folder, seconds):
    import row_ray

    return row_ray.run(model, count, folder, seconds)


def torchstore(model, count, folder, seconds):
    import row_torchstore

    return row_torchstore.run(model, count, seconds)


ROWS = {
    "gloo_gather": gloo(row_gloo.GatherTrainer, row_gloo.GatherRollout),
    "gloo_exact": gloo(row_gloo.ExactTrainer, row_gloo.ExactRollout),
    "nixl": one_sided(row_onesided.NixlTrainer, row_onesided.NixlRollout, "tcp,sm,self"),
    "nixl_tcp": one_sided(row_onesided.NixlTrainer, row_onesided.NixlRollout, "tcp,self"),
    "mooncake_tcp": one_sided(row_onesided.MooncakeTrainer, row_onesided.MooncakeRollout),
    "ray": ray,
    "torchstore": torchstore,
    "torch_shm": shared_memory,
    "refit_shm": refit(transport="shm"),
    # Small buckets: what is under way stays near the last-level cache, as `refit bench tcp` has it.
    "refit_tcp": refit(transport="tcp", security_bulk="none", bucket_bytes=4 << 20),
    "refit_tcp_mac": refit(transport="tcp", security_bulk="mac", bucket_bytes=4 << 20),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("row", choices=ROWS)
    parser.add_argument("--bytes", type=int, default=2_430_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=240, help="deadline of the row")
    o = parser.parse_args()
    model = Model.of_bytes(o.bytes)
    folder = tempfile.mkdtemp(prefix="d-")  # short: Ray puts sockets there
    try:
        walls, cpus, wrong, *more = ROWS[o.row](model, o.repeats, folder, o.seconds)
        if wrong:
            raise group.Failure(f"{wrong} tensors held other bytes than were sent, over all repeats and ranks")
        out = {"layers": model.layers, "useful_bytes": model.useful_bytes(), "walls_s": walls, "cpu_s": cpus, **(more[0] if more else {})}
    except Exception as e:
        print(f"{o.row}: {type(e).__name__}: {e}", file=sys.stderr)
        out = {"error": f"{type(e).__name__}: {e}"}
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps(out), flush=True)


if __name__ == "__main__":
    main()
