"""A whole refit in one file: two trainer ranks and two engine ranks, each a process of its own, over shared memory.

Run it with the package installed: python examples/numpy_refit.py
"""

import multiprocessing
import sys

import numpy as np

import refit

SMALL = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100, "rms_norm_eps": 1e-5, "torch_dtype": "float32",
}  # fmt: skip


def trainer(address, rank, steps, published):
    """Holds its part under fsdp=2 and changes it at each step."""
    layout = refit.Layout.from_config(SMALL, "fsdp=2")
    with refit.Publisher(address, layout, rank) as publisher:
        for step in iter(steps.get, None):
            with publisher.writing(step):
                for tensor in publisher.tensors:
                    tensor.numpy()[...] = step
            published.put(step)


def engine(address, rank, stop):
    """Holds its part as vLLM with two ranks does."""
    layout = refit.Layout.from_config(SMALL, "vllm:tp=2")
    with refit.Receiver(address, layout, rank) as receiver:
        while not stop.is_set():
            receiver.run(0.05)
        values = {float(v) for t in receiver.tensors for v in np.unique(t.numpy())}
        if values != {float(receiver.version.step)}:
            sys.exit(f"engine rank {rank} holds {values} at step {receiver.version.step}")
        print(f"engine rank {rank}: version {receiver.version.number} of step {receiver.version.step}, values {values}", flush=True)


def main():
    context = multiprocessing.get_context("spawn")
    coordinator = refit.Coordinator(source_ranks=2, targets=1, target_ranks=2)
    steps, published, stop = [context.Queue() for _ in range(2)], context.Queue(), context.Event()
    members = [context.Process(target=trainer, args=(coordinator.address, r, steps[r], published)) for r in range(2)]
    members += [context.Process(target=engine, args=(coordinator.address, r, stop)) for r in range(2)]
    for member in members:
        member.start()
    with refit.WeightSynchronizer(coordinator) as synchronizer:
        synchronizer.init_communicator()
        for step in (1, 2, 3):
            for queue in steps:
                queue.put(step)
            for _ in steps:
                published.get(timeout=60)
            synchronizer.mark_stale()
            report = synchronizer.sync_weights()
            print(f"step {step}: {report.outcome}, version {report.version.number}, {report.seconds:.3f} s", flush=True)
        stop.set()
        for queue in steps:
            queue.put(None)
        for member in members:
            member.join(30)
    return max(abs(member.exitcode) for member in members)


if __name__ == "__main__":
    sys.exit(main())
