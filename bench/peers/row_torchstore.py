"""torchstore, in an environment of its own (it pins an older torch): one process puts every trainer's shards through the storage
volume's actor and gets them whole. The best case for it: no two sides, no cutting."""

import asyncio
import time

import numpy as np

from model import Trainer, values


async def _run(model, count, seconds):
    import torch
    import torchstore

    torch.set_num_threads(1)
    deadline = time.monotonic() + seconds

    async def within(work):
        return await asyncio.wait_for(work, max(1, deadline - time.monotonic()))

    await within(torchstore.initialize())
    trainers = [Trainer(model, i) for i in range(model.trainers)]
    shards = {f"{t.name}.{s.rank}": torch.from_numpy(s.shards[i].view(np.int16)) for s in trainers for i, t in enumerate(s.tensors)}
    walls, cpus, wrong = [], [], 0
    for n in range(count + 1):
        for s in trainers:
            s.step()
        begin, cpu = time.monotonic(), time.process_time()
        for name, shard in shards.items():
            await within(torchstore.put(name, shard))
        got = {name: await within(torchstore.get(name)) for name in shards}
        if n:
            walls.append(time.monotonic() - begin)
            cpus.append(time.process_time() - cpu)
        for s in trainers:
            for i, t in enumerate(s.tensors):
                want = values(i, (*model.source_rows(t, s.rank), 0, t.cols), n + 1)
                wrong += not np.array_equal(got[f"{t.name}.{s.rank}"].numpy().view(np.uint16), want)
        del got
    await within(torchstore.shutdown())
    return walls, cpus, wrong


def run(model, count, seconds):
    return asyncio.run(_run(model, count, seconds))
