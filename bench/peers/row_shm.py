"""Trainer's weights as torch tensors in shared memory, copied slice by slice by the rollout ranks: the least that a colocated job
can do with torch."""

import os

import numpy as np

from group import Rank
from model import Rollout, Trainer


def _path(folder, rank):
    return os.path.join(folder, f"trainer{rank}")


def _shared(torch, model, folder, rank):
    elements = Trainer.elements(model)
    return torch.from_file(_path(folder, rank), shared=True, size=elements, dtype=torch.int16)


class ShmTrainer(Rank):
    def __init__(self, model, rank, folder):
        import torch

        torch.set_num_threads(1)
        self.flat = _shared(torch, model, folder, rank)
        self.side = Trainer(model, rank, self.flat.numpy().view(np.uint16))
        self.step = self.side.step

    def go(self):
        pass


class ShmRollout(Rank):
    def __init__(self, model, rank, folder):
        import torch

        torch.set_num_threads(1)
        self.torch, self.model, self.folder, self.side = torch, model, folder, Rollout(model, rank)
        self.wrong = self.side.wrong

    def connect(self, published):
        self.copies = []
        for s in range(self.model.trainers):
            flat, at = _shared(self.torch, self.model, self.folder, s), 0
            for i, t in enumerate(self.side.tensors):
                rows = t.rows // self.model.trainers
                shard = flat[at : at + rows * t.cols].view(rows, t.cols)
                at += rows * t.cols
                if box := self.model.piece(t, s, self.side.rank):
                    low = self.model.source_rows(t, s)[0]
                    target = self.torch.from_numpy(self.side.place(i, box).view(np.int16))
                    self.copies.append((target, shard[box[0] - low : box[1] - low, box[2] : box[3]]))

    def go(self):
        for target, source in self.copies:
            target.copy_(source)
