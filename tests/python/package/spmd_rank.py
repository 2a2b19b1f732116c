"""A rank that holds half of a trainer's weights and half of an engine's: its launcher tells it which. One refit, then it prints
its rank, the outcome, the step and the value that came."""

import numpy as np
import refit
from refit import launch, spmd
from test_layouts import rows


def main():
    at = launch.place()
    source, target = refit.Layout.merge([rows(0, 3), rows(3, 6, 1)]), refit.Layout.merge([rows(0, 2), rows(2, 6, 1)])
    with spmd.start(lambda: refit.WeightSynchronizer(refit.Coordinator.of(source, target)), at=at, timeout_s=30) as sync:
        with refit.Publisher(sync.address, source, at.rank) as publisher, refit.Receiver(sync.address, target, at.rank) as receiver:
            receiver.start()
            sync.init_communicator()
            with publisher.writing(3):
                publisher.tensor("w").assign(np.full((3, 4), 7, np.uint8))
            sync.mark_stale()
            report = sync.sync_weights(3)
            receiver.wait_version(report["version"], 10)
            values = {int(v) for v in np.unique(receiver.tensor("w").numpy())}
            print(at.rank, report["outcome"], report["step"], *values, flush=True)
            sync.is_stale()  # all have printed: nobody leaves before


if __name__ == "__main__":
    main()
