"""torch.distributed over gloo: what frameworks do (gather whole tensors at the trainer, broadcast buckets to the engine, cut there), and
the least that gloo can do (each pair of ranks exchanges exactly its pieces)."""

import datetime

import numpy as np

from group import Rank
from model import Rollout, Trainer

BUCKET = 512 << 20


def _join(model, rank, store):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=model.trainers + model.rollouts, timeout=datetime.timedelta(seconds=120)
    )
    return torch, dist


def _bytes(torch, array):
    return torch.from_numpy(array.reshape(-1).view(np.uint8))


class _Gather(Rank):
    def __init__(self, model, rank, store, global_rank):
        self.model, self.tensors = model, model.tensors()
        self.torch, self.dist = _join(model, global_rank, store)
        self.gathering = self.dist.new_group(list(range(model.trainers)))
        self.sending = self.dist.new_group([0, *range(model.trainers, model.trainers + model.rollouts)])
        self.buckets, size = [[]], 0  # lists of (tensor, offset, bytes)
        for i, t in enumerate(self.tensors):
            n = 2 * t.rows * t.cols
            if self.buckets[-1] and size + n > BUCKET:
                self.buckets.append([])
                size = 0
            self.buckets[-1].append((i, size, n))
            size += n
        self.buffer = None
        if global_rank == 0 or global_rank >= model.trainers:
            self.buffer = self.torch.zeros(max(b[-1][1] + b[-1][2] for b in self.buckets), dtype=self.torch.uint8)

    def broadcast(self, bucket):
        self.dist.broadcast(self.buffer[: bucket[-1][1] + bucket[-1][2]], src=0, group=self.sending)


class GatherTrainer(_Gather):
    def __init__(self, model, rank, store):
        super().__init__(model, rank, store, rank)
        self.side = Trainer(model, rank)
        self.step = self.side.step

    def go(self):
        for bucket in self.buckets:
            for i, offset, n in bucket:
                whole = self.torch.empty(n, dtype=self.torch.uint8)
                self.dist.all_gather_into_tensor(whole, _bytes(self.torch, self.side.shards[i]), group=self.gathering)
                if self.buffer is not None:
                    self.buffer[offset : offset + n].copy_(whole)
            if self.buffer is not None:
                self.broadcast(bucket)


class GatherRollout(_Gather):
    def __init__(self, model, rank, store):
        super().__init__(model, rank, store, model.trainers + rank)
        self.side = Rollout(model, rank)
        self.wrong = self.side.wrong

    def go(self):
        for bucket in self.buckets:
            self.broadcast(bucket)
            for i, offset, n in bucket:
                t = self.tensors[i]
                row, end, col, col_end = self.model.target_box(t, self.side.rank)
                whole = self.buffer[offset : offset + n].view(self.torch.int16).view(t.rows, t.cols)
                self.torch.from_numpy(self.side.views[i].view(np.int16)).copy_(whole[row:end, col:col_end])


class ExactTrainer(Rank):
    def __init__(self, model, rank, store):
        self.torch, self.dist = _join(model, rank, store)
        self.side, self.model = Trainer(model, rank), model
        self.step = self.side.step

    def go(self):
        operations = []
        for i, t in enumerate(self.side.tensors):
            for r in range(self.model.rollouts):
                if box := self.model.piece(t, self.side.rank, r):
                    part = np.ascontiguousarray(self.side.part(i, box))
                    operations.append(self.dist.P2POp(self.dist.isend, _bytes(self.torch, part), self.model.trainers + r))
        for work in self.dist.batch_isend_irecv(operations):
            work.wait()


class ExactRollout(Rank):
    def __init__(self, model, rank, store):
        self.torch, self.dist = _join(model, model.trainers + rank, store)
        self.side, self.model = Rollout(model, rank), model
        self.wrong = self.side.wrong

    def go(self):
        operations = []
        for i, t in enumerate(self.side.tensors):
            for s in range(self.model.trainers):
                if box := self.model.piece(t, s, self.side.rank):
                    operations.append(self.dist.P2POp(self.dist.irecv, _bytes(self.torch, self.side.place(i, box)), s))
        for work in self.dist.batch_isend_irecv(operations):
            work.wait()
