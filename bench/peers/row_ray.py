"""Ray's object store: each trainer puts its shards as one object, each rollout rank maps all objects and copies its pieces."""

import os
import time

import numpy as np

from model import Rollout, Trainer


class _Trainer:
    def __init__(self, model, rank):
        self.side = Trainer(model, rank)

    def step(self):
        self.side.step()

    def publish(self):
        import ray

        start, cpu = time.monotonic(), time.process_time()
        reference = ray.put(self.side.shards)
        return [reference], start, time.process_time() - cpu  # in a list: a bare reference would be resolved


class _Rollout:
    def __init__(self, model, rank):
        self.side = Rollout(model, rank)

    def pull(self, references):
        import ray

        cpu = time.process_time()
        for s, (reference,) in enumerate(references):
            shards = ray.get(reference)
            for i, t in enumerate(self.side.tensors):
                if box := self.side.model.piece(t, s, self.side.rank):
                    low = self.side.model.source_rows(t, s)[0]
                    np.copyto(self.side.place(i, box), shards[i][box[0] - low : box[1] - low, box[2] : box[3]])
        return time.monotonic(), time.process_time() - cpu

    def wrong(self, version):
        return self.side.wrong(version)


def run(model, count, folder, seconds):
    os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_DEDUP_LOGS="0", OMP_NUM_THREADS="1", RAY_enable_metrics_collection="0")
    import ray

    deadline = time.monotonic() + seconds

    def get(references):
        return ray.get(references, timeout=max(1, deadline - time.monotonic()))

    ray.init(
        num_cpus=model.trainers + model.rollouts, object_store_memory=max(256 << 20, int(3.5 * model.useful_bytes())), include_dashboard=False,
        _node_ip_address="127.0.0.1", _temp_dir=os.path.join(folder, "ray"), logging_level="ERROR", log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": os.path.dirname(os.path.abspath(__file__)), "OMP_NUM_THREADS": "1"}},
    )  # fmt: skip
    try:
        trainers = [ray.remote(num_cpus=1)(_Trainer).remote(model, i) for i in range(model.trainers)]
        rollouts = [ray.remote(num_cpus=1)(_Rollout).remote(model, i) for i in range(model.rollouts)]
        walls, cpus, wrong = [], [], 0
        for n in range(count + 1):
            get([t.step.remote() for t in trainers])
            published = get([t.publish.remote() for t in trainers])
            pulled = get([r.pull.remote([p[0] for p in published]) for r in rollouts])
            wrong += sum(get([r.wrong.remote(n + 1) for r in rollouts]))
            if n:
                walls.append(max(p[0] for p in pulled) - min(p[1] for p in published))
                cpus.append(sum(p[2] for p in published) + sum(p[1] for p in pulled))
            del published
        return walls, cpus, wrong
    finally:
        ray.shutdown()
