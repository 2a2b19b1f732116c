"""What these tests share: models of transformers on disk, engine ranks in this process, and their bytes beside the checkpoint's."""

import multiprocessing
import os
import pathlib
import socket
import subprocess
import sys
import traceback

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "tests/live"), str(ROOT / "tests/torch")]
os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false")
BINARY = pathlib.Path(os.environ.get("REFIT", ROOT / "build/release/cli/refit"))
FAST = {"stall_timeout_s": 20, "total_timeout_s": 60, "join_timeout_s": 30, "bucket_bytes": 65536}


def saved(name, folder, **changes):
    """A tiny random model of transformers, and its checkpoint's tensors as safetensors reads them."""
    import models

    model = models.build(name, **changes)
    models.save(model, folder)
    return model, tensors_of(folder)


def tensors_of(folder):
    from safetensors.torch import load_file

    tensors = {}
    for path in sorted(pathlib.Path(folder).glob("*.safetensors")):
        tensors |= load_file(path)
    return tensors


def convert(model, spec, out):
    done = subprocess.run([BINARY, "convert", "--model", model, "--from", "hf", "--to", spec, "--out", out], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


WAIT_S = 120


def serve(rank, world, port, pipe, make, arguments):
    """A trainer rank's process: what `make` returns, steered by (method, arguments…)."""
    import torch.distributed

    try:
        torch.set_num_threads(1)
        torch.distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
        here = make(rank, *arguments)
        pipe.send(("", None))
        while (call := pipe.recv()) is not None:
            try:
                pipe.send(("", getattr(here, call[0])(*call[1:])))
            except Exception as e:  # noqa: BLE001 - told to the test
                pipe.send((f"{type(e).__name__}: {e}", None))
    except BaseException:  # noqa: BLE001
        pipe.send((traceback.format_exc(), None))
        os._exit(1)
    os._exit(0)


class Trainers:
    """The ranks of a torch trainer, each a process (gloo). Forked: make them before this process has threads of Refit's."""

    def __init__(self, test, world, make, *arguments):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        context = multiprocessing.get_context("fork")
        self.world, self.pipes, self.processes = world, [], []
        test.addCleanup(self.end)
        for rank in range(world):
            mine, theirs = context.Pipe()
            process = context.Process(target=serve, args=(rank, world, port, theirs, make, arguments))
            process.start()
            theirs.close()
            self.pipes.append(mine)
            self.processes.append(process)
        self.hear()

    def end(self):
        for p in self.processes:
            p.kill()
            p.join()

    def hear(self, fails=False):
        out = []
        for rank, pipe in enumerate(self.pipes):
            if not pipe.poll(WAIT_S):
                raise TimeoutError(f"rank {rank} did not answer within {WAIT_S} s")
            out.append(pipe.recv())
        if fails:
            return [why for why, _ in out]
        for rank, (why, _) in enumerate(out):
            if why:
                raise AssertionError(f"rank {rank}: {why}")
        return [value for _, value in out]

    def all(self, *call, fails=False):
        """One call on every rank, at the same time: what each returned, or with `fails` the text of what each raised."""
        for pipe in self.pipes:
            pipe.send(call)
        return self.hear(fails)


class Engines:
    """Every rank of a target, each a receiver with a thread."""

    def __init__(self, test, address, layout):
        import refit

        self.test, self.layout = test, layout
        self.ranks = [refit.Receiver(address, layout, r) for r in range(layout.world)]
        for r in self.ranks:
            r.start()
            test.addCleanup(r.close)

    def equal(self, tensors):
        """Every box of every rank is what the checkpoint has there, bit for bit; no tensor is left out."""
        import torch

        seen = set()
        for r in self.ranks:
            for t in r.tensors:
                want = tensors[t.name]
                if t.factors:
                    want = want.reshape([n for axis in t.factors for n in axis])
                want = want[tuple(slice(lo, hi) for lo, hi in t.box)]
                held = t.torch()
                if held.dtype == torch.float32 and want.dtype == torch.bfloat16:
                    want = want.float()  # engines keep some routers so
                self.test.assertEqual((held.dtype, held.shape), (want.dtype, want.shape), t.name)
                same = torch.equal(held.contiguous().reshape(-1).view(torch.uint8), want.contiguous().reshape(-1).view(torch.uint8))
                self.test.assertTrue(same, f"{t.name} {t.box} on rank {r.rank}")
                seen.add(t.name)
        self.test.assertEqual(seen & tensors.keys(), tensors.keys())
