"""The delta codecs of RL frameworks as they describe them, written anew, on arrays of uint16 (the bits of bf16):

nemo             elements that differ; gaps as u16 (u32 where one is larger) and XORed values, one zstd-1 frame
slime_xor        XOR of the whole tensor's bytes, one zstd-1 frame
slime_overwrite  u32 count, u32 positions of bytes, new bytes, one zstd-1 frame
verl             int32 positions and bf16 values, nothing else

`pack` and `unpack` are the entropy stage: zstd of level 1 here, whatever a test puts in. Comparing and finding positions is
torch's work where torch is there, as it is in nemo and verl, and NumPy's otherwise."""

import math

import numpy as np


class Zstd:
    """Level 1, made once: a frame each."""

    def __init__(self):
        import zstandard

        self._compress, self._decompress = zstandard.ZstdCompressor(level=1), zstandard.ZstdDecompressor()

    def pack(self, data):
        return self._compress.compress(data)

    def unpack(self, data):
        return self._decompress.decompress(data)


def changed(old, new, torch=None):
    """Positions of elements that differ, int64."""
    if torch is None:
        return np.flatnonzero(old != new)
    a, b = torch.from_numpy(old.view(np.int16)), torch.from_numpy(new.view(np.int16))
    return torch.nonzero(torch.ne(a, b)).flatten().numpy()


class Nemo:
    def __init__(self, stage, torch=None):
        self.stage, self.torch = stage, torch

    def encode(self, old, new):
        at = changed(old, new, self.torch)
        gaps = np.diff(at, prepend=-1) - 1
        kind = np.uint32 if gaps.size and gaps.max() > 0xFFFF else np.uint16
        body = gaps.astype(kind).tobytes() + np.bitwise_xor(old[at], new[at]).tobytes()
        return bytes([np.dtype(kind).itemsize]) + at.size.to_bytes(8, "little") + self.stage.pack(body)

    def apply(self, message, live):
        width, count = message[0], int.from_bytes(message[1:9], "little")
        body = self.stage.unpack(message[9:])
        at = np.cumsum(np.frombuffer(body, f"u{width}", count).astype(np.int64) + 1) - 1
        live[at] ^= np.frombuffer(body, np.uint16, count, width * count)


class SlimeXor:
    def __init__(self, stage, torch=None):
        self.stage = stage

    def encode(self, old, new):
        return self.stage.pack(np.bitwise_xor(old.view(np.uint8), new.view(np.uint8)))

    def apply(self, message, live):
        bits = live.view(np.uint8)
        np.bitwise_xor(bits, np.frombuffer(self.stage.unpack(message), np.uint8), out=bits)


class SlimeOverwrite:
    def __init__(self, stage, torch=None):
        self.stage = stage

    def encode(self, old, new):
        bits = new.view(np.uint8)
        at = np.flatnonzero(old.view(np.uint8) != bits).astype(np.uint32)
        return self.stage.pack(at.size.to_bytes(4, "little") + at.tobytes() + bits[at].tobytes())

    def apply(self, message, live):
        body = self.stage.unpack(message)
        count = int.from_bytes(body[:4], "little")
        live.view(np.uint8)[np.frombuffer(body, np.uint32, count, 4)] = np.frombuffer(body, np.uint8, count, 4 + 4 * count)


class Verl:
    def __init__(self, stage=None, torch=None):
        self.torch = torch

    def encode(self, old, new):
        at = changed(old, new, self.torch)
        return at.astype(np.int32).tobytes() + new[at].tobytes()

    def apply(self, message, live):
        count = len(message) // 6
        live[np.frombuffer(message, np.int32, count)] = np.frombuffer(message, np.uint16, count, 4 * count)


CODECS = {"nemo": Nemo, "slime_xor": SlimeXor, "slime_overwrite": SlimeOverwrite, "verl": Verl}


def tensors(count, density, seed, elements=1 << 23):
    """[(old, new)] of 16 MiB each (the last one shorter): random bits, each element changed with this probability by ±1, ±2 or ±3
    in its integer view: the recipe of `refit bench delta`."""
    random, out = np.random.default_rng(seed), []
    for at in range(0, count // 2, elements):
        n = min(elements, count // 2 - at)
        old = random.integers(0, 1 << 16, n, np.uint16)
        new = old.copy()
        where = np.flatnonzero(random.random(n, np.float32) < density)
        new[where] += random.choice(np.array([-3, -2, -1, 1, 2, 3], np.int16).view(np.uint16), where.size)
        out.append((old, new))
    return out


def bound_bytes(pairs):
    """Order-0 entropy of positions and of differences: no codec that models neither better can send less."""
    elements = sum(old.size for old, _ in pairs)
    differences = np.concatenate([(new - old)[old != new] for old, new in pairs])
    if differences.size == 0:
        return 0.0
    p = differences.size / elements
    bits = elements * -(p * math.log2(p) + ((1 - p) * math.log2(1 - p) if p < 1 else 0))
    counts = np.unique(differences, return_counts=True)[1] / differences.size
    return float(bits + differences.size * -(counts * np.log2(counts)).sum()) / 8
