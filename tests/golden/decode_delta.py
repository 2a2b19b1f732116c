"""A second decoder of delta messages, written only from schema/delta.md. Usage: decode_delta.py DIRECTORY.

Each file's name says how its two versions are made; the message must turn the first into the second.
"""
import pathlib
import re
import struct
import sys

PHI = (1 + 5 ** 0.5) / 2
SWITCH = [1640531527, 918472839, 486826901, 250732083, 127251138, 64103956, 32172476, 16116476, 8065812, 4034801, 2017875,
          1009056, 504558, 252286, 126145]
FRAME, BLOCK, GROUP = 1 << 20, 1 << 16, 1 << 15


def check(condition, what):
    if not condition:
        raise SystemExit("golden delta: " + what)


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, n):
        check(self.at + n <= len(self.data), "truncated")
        self.at += n
        return self.data[self.at - n:self.at]

    def number(self):
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def bits(self, count):
        """A plane of `count` bits as an integer, padded to bytes."""
        value = int.from_bytes(self.take((count + 7) // 8), "little")
        check(value >> count == 0, "padding")
        return value

    def fields(self, n, width):
        plane = self.bits(n * width)
        mask = (1 << width) - 1
        raw = plane.to_bytes((n * width + 7) // 8 + 16, "little")
        return [int.from_bytes(raw[i * width // 8:i * width // 8 + 16], "little") >> (i * width % 8) & mask for i in range(n)]

    def set_of(self, n, universe):
        k = sum(1 for t in SWITCH if (n << 32) < t * universe)
        for j, t in enumerate(SWITCH):
            check(abs(t - 2 ** 32 * (1 - PHI ** (-1 / 2 ** j))) < 1, "switching points")
        if k == 0:
            ones = [i for i, bit in enumerate(reversed(bin(self.bits(universe))[2:])) if bit == "1"]
            check(len(ones) == n, "count of a bitmap")
            return ones
        lows = self.fields(n, k)
        positions, last = [], -1
        byte, left = 0, 0
        for low in lows:
            zeros = 0
            while True:
                if left == 0:
                    byte, left = self.take(1)[0], 8
                bit = byte & 1
                byte >>= 1
                left -= 1
                if bit:
                    break
                zeros += 1
            last += 1 + (zeros << k | low)
            positions.append(last)
        check(byte == 0 and last < universe, "end of a set")
        return positions

    def members(self, t, m):
        """The t chosen among m, as a list of flags."""
        if t in (0, m):
            return [t != 0] * m
        if 3 * m <= 10 * t <= 7 * m:
            plane = self.bits(m)
            return [plane >> i & 1 == 1 for i in range(m)]
        most = 10 * t > 7 * m
        flags = [most] * m
        for i in self.set_of(m - t if most else t, m):
            flags[i] = not most
        return flags

    def values(self, n, width):
        negative = self.members(self.number(), n)
        classes, m, c = [], n, 0
        while m:
            t = self.number() if c < 8 * width - 1 else 0
            above = self.members(t, m) if c < 8 * width - 1 else [False] * m
            classes.append((above, iter(self.fields(m - t, c) if c else [0] * (m - t))))
            m, c = t, c + 1
        sizes = None
        for c, (above, mantissas) in reversed(list(enumerate(classes))):
            deeper = iter(sizes or [])
            sizes = [next(deeper) if up else (1 << c) + next(mantissas) for up in above]
        return [-s if sign else s for s, sign in zip(sizes, negative)]


def frame_changes(data, elements, width, form):
    """[(position, value)] of a coded frame."""
    r = Reader(data)
    total, toggled = r.number(), struct.unpack("<H", r.take(2))[0]
    blocks = [(b, min(BLOCK, elements - b)) for b in range(0, elements, BLOCK)]
    counts = [r.number() for _ in blocks]
    sets = Reader(r.take(r.number()))
    positions = []
    for i, ((start, size), count) in enumerate(zip(blocks, counts)):
        if count == 0:
            continue
        found = sets.set_of(count, size)
        if toggled >> i & 1:
            ends = found + [size] * (len(found) % 2)
            found = [p for a, b in zip(ends[::2], ends[1::2]) for p in range(a, b)]
        positions += [start + p for p in found]
    check(sets.at == len(sets.data) and len(positions) == total, "positions")
    values = []
    while len(values) < total:
        n = min(GROUP, total - len(values))
        values += r.values(n, width) if form == 0 else [int.from_bytes(r.take(width), "little") for _ in range(n)]
    check(r.at == len(data), "trailing bytes")
    return list(zip(positions, values))


def apply(message, base):
    magic, version, form, width, elements = struct.unpack_from("<4sHBBQ", message)
    frames, reserved, payload = struct.unpack_from("<IIQ", message, 48)
    check(magic == b"RTDL" and version == 1 and reserved == 0, "header")
    check(elements * width == len(base) and frames == -(-elements // FRAME), "shape")
    sizes = struct.unpack_from(f"<{frames}I", message, 80)
    check(sum(sizes) == payload and 80 + 4 * frames + payload == len(message), "sizes")
    out, at = bytearray(base), 80 + 4 * frames
    for i, size in enumerate(sizes):
        data, start = message[at:at + size], i * FRAME
        at += size
        n = min(FRAME, elements - start)
        if size == n * width and size:
            changes = [(p, int.from_bytes(data[p * width:(p + 1) * width], "little")) for p in range(n)]
        else:
            changes = frame_changes(data, n, width, form) if size else []
        for p, value in changes:
            here = slice((start + p) * width, (start + p + 1) * width)
            if form == 0:
                value += int.from_bytes(out[here], "little")
            out[here] = (value & (1 << 8 * width) - 1).to_bytes(width, "little")
    return bytes(out)


def versions(width, elements, one_in, most, run):
    x = 1

    def draw():
        nonlocal x
        x = (x * 6364136223846793005 + 1442695040888963407) & 0xFFFFFFFFFFFFFFFF
        return x >> 32

    base = bytes(draw() & 0xFF for _ in range(width * elements))
    new, i = bytearray(base), 0
    while i < elements:
        if draw() % one_in == 0:
            end = min(elements, i + run)
            while i < end:
                r = draw()
                m = 1 + (r >> 1) % most
                here = slice(i * width, (i + 1) * width)
                value = int.from_bytes(base[here], "little") + (-m if r % 2 else m)
                new[here] = (value & (1 << 8 * width) - 1).to_bytes(width, "little")
                i += 1
        i += 1
    return base, bytes(new)


def main():
    files = sorted(pathlib.Path(sys.argv[1]).glob("*.delta"))
    check(len(files) == 11, f"11 files expected, {len(files)} found")
    for path in files:
        width, elements, one_in, most, run = map(int, re.findall(r"_[a-z]+(\d+)", path.name))
        base, new = versions(width, elements, one_in, most, run)
        message = path.read_bytes()
        check(apply(message, base) == new, f"{path.name}: another result")
        if "overwrite" in path.name:
            check(apply(message, new) == new, f"{path.name}: not idempotent")


if __name__ == "__main__":
    main()
