"""A process group between the driver (rank 0) and an engine's workers, for SGLang's distributed updates."""

from __future__ import annotations

import datetime
import logging
import socket
import threading
from typing import Any, Callable, Sequence

from .._errors import DeadlineError, Error, PeerLostError

log = logging.getLogger("refit.sglang")

Post = Callable[..., Any]


class Group:
    """Made by open(); anything that fails ends it for good: make another under another name."""

    def __init__(self, name: str, backend: str, address: str, world: int) -> None:
        self.name, self._backend, self._address, self._world = name, backend, address, world
        self._group: Any = None

    def open(self, post: Post, left: Callable[[], float]) -> None:
        with socket.socket() as s:
            s.bind((self._address, 0))
            port = s.getsockname()[1]
        body = {"master_address": self._address, "master_port": port, "rank_offset": 1, "world_size": self._world, "group_name": self.name, "backend": self._backend}
        self._both(lambda: self._meet(port, left()), lambda: post("/init_weights_update_group", body, left()), left)

    def _meet(self, port: int, timeout_s: float) -> None:
        # As SGLang's own helper does: a group beside the default one needs torch's private constructor.
        from torch.distributed import distributed_c10d as c10d

        limit = datetime.timedelta(seconds=timeout_s)
        store, rank, world = next(c10d.rendezvous(f"tcp://{self._address}:{port}", 0, self._world, timeout=limit))
        store.set_timeout(limit)
        group, _ = c10d._new_process_group_helper(world, rank, [], c10d.Backend(self._backend), c10d.PrefixStore(self.name, store), group_name=self.name, backend_options=None, timeout=limit)
        c10d._world.pg_group_ranks[group] = {i: i for i in range(world)}
        self._group = group

    def broadcast(self, tensors: Sequence[tuple[str, Any]], post: Post, left: Callable[[], float]) -> None:
        """Sends named tensors, in that order; every worker loads them."""
        body = {
            "names": [name for name, _ in tensors],
            "dtypes": [str(t.dtype).removeprefix("torch.") for _, t in tensors],
            "shapes": [list(t.shape) for _, t in tensors],
            "group_name": self.name,
            "flush_cache": False,
            "selector": "target",
        }

        def send() -> None:
            import torch.distributed as dist

            for _, tensor in tensors:
                dist.broadcast(tensor.contiguous(), src=0, group=self._group)

        self._both(send, lambda: post("/update_weights_from_distributed", body, left()), left)

    def _both(self, mine: Callable[[], None], theirs: Callable[[], Any], left: Callable[[], float]) -> None:
        """Our half on a thread beside the call that makes the workers do theirs. The call's error comes first: it knows why."""
        failed: list[BaseException] = []

        def run() -> None:
            try:
                mine()
            except BaseException as e:  # noqa: BLE001 - raised below
                failed.append(e)

        half = threading.Thread(target=run, name=f"refit-{self.name}", daemon=True)
        half.start()
        theirs()
        half.join(left())
        if half.is_alive():
            raise DeadlineError("the workers answered and our half of the exchange did not end", peer=self.name)
        if failed:
            raise PeerLostError(f"{type(failed[0]).__name__}: {failed[0]}", peer=self.name) from failed[0]

    def close(self, post: Post) -> None:
        """Ends it on both sides, as far as they still answer."""
        try:
            post("/destroy_weights_update_group", {"group_name": self.name}, 10)
        except Error as e:
            log.info("the engine's half of group %s: %s", self.name, e)
        if self._group is not None:
            import torch.distributed as dist

            try:
                dist.destroy_process_group(self._group)
            except Exception as e:  # noqa: BLE001 - it is given up either way
                log.info("our half of group %s: %s", self.name, e)
            self._group = None
