"""One of two processes of a JAX trainer: nnx_rank.py PORT RANK ADDRESS CHECKPOINT. Two devices each; a line on standard input is a step."""

import os
import sys

os.environ.update(JAX_PLATFORMS="cpu", XLA_FLAGS="--xla_force_host_platform_device_count=2")
import jax  # noqa: E402

port, rank, address, checkpoint = sys.argv[1:]
jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=2, process_id=int(rank))
DEVICES = jax.devices()
import jobs  # noqa: E402
import refit  # noqa: E402
import test_nnx  # noqa: E402
import transformers  # noqa: E402


def main():
    config = transformers.AutoConfig.from_pretrained(checkpoint)
    model = test_nnx.tree(config, jobs.tensors_of(checkpoint))
    test_nnx.place(model, (2, 2), False)
    with refit.Publisher.from_jax(address, model, config=checkpoint) as publisher:
        held = {t for t, *_ in publisher.layout.holdings(int(rank))}
        print(">", len(DEVICES), len(held), flush=True)
        for step, _ in enumerate(sys.stdin):
            if step:
                test_nnx.double(model)
            publisher.publish(step)
            print(">", step, flush=True)


if __name__ == "__main__":
    main()
