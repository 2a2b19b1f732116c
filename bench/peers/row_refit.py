"""Refit through its Python package, one publisher or receiver a process, as a training loop would: the same model, processes and
check as the peers. A repeat is sync_weights(): digests of the source, transfer, proof, commit into the live weights."""

import time

import numpy as np

from group import Rank
from model import STEP, values


class RefitTrainer(Rank):
    def __init__(self, model, rank, address):
        import refit

        self.publisher = refit.Publisher(address, refit.Layout.from_config(model.config(), f"fsdp={model.trainers}"), rank)
        index = {t.name: i for i, t in enumerate(model.tensors())}
        for t in self.publisher.tensors:
            t.numpy().reshape(t.shape[0], -1)[...] = values(index[t.name], _box(t), 0)
        self.flats = [np.frombuffer(memory, np.uint16) for memory in self.publisher.buffers.values()]
        self.version = 0

    def step(self):
        self.version += 1
        with self.publisher.writing(self.version):
            for flat in self.flats:
                flat += np.uint16(STEP)

    def usage(self):
        return time.process_time(), self.publisher.report().seal_s

    def close(self):
        self.publisher.close()


class RefitRollout(Rank):
    def __init__(self, model, rank, address):
        import refit

        self.receiver = refit.Receiver(address, refit.Layout.from_config(model.config(), f"vllm:tp={model.rollouts}"), rank)
        self.receiver.start()
        self.index = {t.name: i for i, t in enumerate(model.tensors())}

    def usage(self):
        return time.process_time(), self.receiver.report().stage_s

    def wrong(self, version):
        held = self.receiver.tensors
        if {t.name for t in held} != set(self.index):
            return len(self.index)
        return sum(not np.array_equal(t.numpy().reshape(t.shape[0], -1), values(self.index[t.name], _box(t), version)) for t in held)

    def close(self):
        self.receiver.close()


def _box(tensor):
    (row, end), (col, col_end) = [*tensor.box, (0, 1)][:2]
    return row, end, col, col_end


def run(model, count, start, options):
    """As group.repeats(), and besides: what else a row of Refit says. start(address) makes the group."""
    import refit

    walls, cpus, wrong = [], [], 0
    more = {"publish_s": [], "transfer_s": [], "pause_s": []}
    with refit.Coordinator(model.trainers, 1, model.rollouts, **options) as coordinator:
        with start(coordinator.address) as group:
            coordinator.init_communicator()
            # The first version is proven by reading it again and touches every page; the second warms the rest up.
            for n in range(count + 2):
                group.ask("step", only="trainer")
                coordinator.mark_stale()
                before = group.ask("usage")
                begin = time.monotonic()
                report = coordinator.sync_weights()
                wall = time.monotonic() - begin
                after = group.ask("usage")
                wrong += sum(group.ask("wrong", n + 1, only="rollout").values())
                if n < 2:
                    continue
                walls.append(wall)
                cpus.append(sum(after[name][0] - before[name][0] for name in after))
                more["publish_s"].append(max(v[1] for name, v in after.items() if name.startswith("trainer")))
                more["transfer_s"].append(max(v[1] for name, v in after.items() if name.startswith("rollout")))
                more["pause_s"].append(report.pause_seconds)
    return walls, cpus, wrong, more
