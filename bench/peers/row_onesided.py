"""NIXL over UCX and Mooncake's transfer engine over TCP: rollout ranks read from registered memory of the trainers. Column pieces
are packed by the trainer first, inside the clock: one descriptor a row is several times slower for both."""

import os
import time

from group import Rank
from model import Rollout, Trainer

_POLL_S = 0.0005
_BARRIER_S = 120
_MOONCAKE_BATCH = 512  # more requests a call end in connection resets


class Side(Rank):
    """A trainer's registered memory: its shards, and the packed column pieces."""

    def __init__(self, model, rank, packed, *_):
        import numpy as np

        self.side, self.packed = Trainer(model, rank), packed
        self.step = self.side.step
        self.addresses, self.copies, at = {}, [], 0
        pieces = [(i, r, model.piece(t, rank, r)) for i, t in enumerate(self.side.tensors) for r in range(model.rollouts)]
        columns = [(i, r, box) for i, r, box in pieces if box and self.side.tensors[i].cut == "columns"]
        self.stage = np.zeros(max(1, sum((b[1] - b[0]) * (b[3] - b[2]) for _, _, b in columns)), np.uint16)
        for i, r, box in columns:
            part = self.side.part(i, box)
            room = self.stage[at : at + part.size].reshape(part.shape)
            self.copies.append((room, part))
            self.addresses[i, r] = room.ctypes.data
            at += part.size
        for i, r, box in pieces:
            if box and (i, r) not in self.addresses:
                self.addresses[i, r] = self.side.part(i, box).ctypes.data
        self.memory = [(a.ctypes.data, a.nbytes) for a in (self.side.flat, self.stage)]

    def go(self):
        for room, part in self.copies:
            room[...] = part
        self.packed.wait(_BARRIER_S)


def _reads(side, source, addresses):
    """(local address, remote address, bytes) of what a rollout rank reads from one trainer."""
    out = []
    for i, t in enumerate(side.tensors):
        if box := side.model.piece(t, source, side.rank):
            place = side.place(i, box)
            out.append((place.ctypes.data, addresses[i, side.rank], place.nbytes))
    return out


def _nixl(name, transports):
    os.environ.update(UCX_TLS=transports, UCX_NET_DEVICES="lo")
    os.environ.setdefault("UCX_LOG_LEVEL", "error")
    os.environ.setdefault("NIXL_LOG_LEVEL", "ERROR")
    from nixl_cu12._api import nixl_agent, nixl_agent_config

    return nixl_agent(name, nixl_agent_config(backends=["UCX"]))


class NixlTrainer(Side):
    def __init__(self, model, rank, packed, transports):
        super().__init__(model, rank, packed)
        self.agent = _nixl(f"trainer{rank}", transports)
        self.agent.register_memory([(address, n, 0, "") for address, n in self.memory], "DRAM")

    def publish(self):
        return self.agent.get_agent_metadata(), self.addresses


class NixlRollout(Rank):
    def __init__(self, model, rank, packed, transports):
        self.side, self.packed = Rollout(model, rank), packed
        self.wrong = self.side.wrong
        self.agent = _nixl(f"rollout{rank}", transports)
        self.agent.register_memory([(p.ctypes.data, p.nbytes, 0, "") for p in self.side.parameters.values()], "DRAM")

    def connect(self, published):
        self.transfers = []
        for s in range(self.side.model.trainers):
            metadata, addresses = published[f"trainer{s}"]
            peer = self.agent.add_remote_agent(metadata)
            peer = peer.decode() if isinstance(peer, bytes) else peer
            reads = _reads(self.side, s, addresses)
            local = self.agent.prep_xfer_dlist("NIXL_INIT_AGENT", [(mine, n, 0) for mine, _, n in reads], "DRAM")
            remote = self.agent.prep_xfer_dlist(peer, [(theirs, n, 0) for _, theirs, n in reads], "DRAM")
            every = list(range(len(reads)))
            self.transfers.append(self.agent.make_prepped_xfer("READ", local, every, remote, every))

    def go(self):
        self.packed.wait(_BARRIER_S)
        deadline = time.monotonic() + _BARRIER_S
        states = {transfer: self.agent.transfer(transfer) for transfer in self.transfers}
        while live := [transfer for transfer, state in states.items() if state != "DONE"]:
            if "ERR" in states.values() or time.monotonic() > deadline:
                raise RuntimeError(f"NIXL transfers: {sorted(states.values())}")
            time.sleep(_POLL_S)
            states = {transfer: self.agent.check_xfer_state(transfer) for transfer in live}


def _mooncake():
    from mooncake.engine import TransferEngine

    engine = TransferEngine()
    if code := engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", ""):
        raise RuntimeError(f"Mooncake's engine: {code}")
    return engine


def _register(engine, memory):
    for address, n in memory:
        if code := engine.register_memory(address, n):
            raise RuntimeError(f"Mooncake's registration: {code}")


class MooncakeTrainer(Side):
    def __init__(self, model, rank, packed, *_):
        super().__init__(model, rank, packed)
        self.engine = _mooncake()
        _register(self.engine, self.memory)

    def publish(self):
        return f"127.0.0.1:{self.engine.get_rpc_port()}", self.addresses


class MooncakeRollout(Rank):
    def __init__(self, model, rank, packed, *_):
        self.side, self.packed = Rollout(model, rank), packed
        self.wrong = self.side.wrong
        self.engine = _mooncake()
        _register(self.engine, [(p.ctypes.data, p.nbytes) for p in self.side.parameters.values()])

    def connect(self, published):
        self.calls = []
        for s in range(self.side.model.trainers):
            segment, addresses = published[f"trainer{s}"]
            reads = _reads(self.side, s, addresses)
            for at in range(0, len(reads), _MOONCAKE_BATCH):
                mine, theirs, sizes = zip(*reads[at : at + _MOONCAKE_BATCH])
                self.calls.append((segment, list(mine), list(theirs), list(sizes)))

    def go(self):
        self.packed.wait(_BARRIER_S)
        for call in self.calls:
            if code := self.engine.batch_transfer_sync_read(*call):
                raise RuntimeError(f"Mooncake's read: {code}")
