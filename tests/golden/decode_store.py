"""A second reader of a version store, written only from schema/store.md. Usage: decode_store.py DIRECTORY.

Rebuilds every committed version from its anchor and deltas and compares it with the formula it was made from.
"""
import hashlib
import json
import pathlib
import struct
import sys

import decode_delta

WIDTH = {"bf16": 2, "f32": 4, "u8": 1}


def check(condition, what):
    if not condition:
        raise SystemExit("golden store: " + what)


def expected(tensors, step):
    """Version `step`: noise of a generator, and every 9th element's low byte one higher with each step."""
    x, out = 1, []
    for t in tensors:
        width, count = WIDTH[t["dtype"]], 1
        for n in t["shape"]:
            count *= n
        data = bytearray()
        for _ in range(width * count):
            x = (x * 6364136223846793005 + 1442695040888963407) & 0xFFFFFFFFFFFFFFFF
            data.append(x >> 33 & 0xFF)
        for i in range(0, count, 9):
            data[i * width] = (data[i * width] + step) & 0xFF
        out.append(bytes(data))
    return out



class Manifest:
    def __init__(self, data):
        (magic, form, self.flags, self.number, self.lineage, self.epoch, self.step, self.parent_number, self.parent_epoch, self.parent, self.model, self.content,
         self.chunk_bytes, entries, objects, reserved) = struct.unpack_from("<4sHHQ16sQqQQ32s32s16sQQQQ", data)
        check(magic == b"RTSM" and form == 1 and reserved == 0, "manifest head")
        at = 176
        self.objects = struct.unpack_from(f"<{objects}Q", data, at)
        at += 8 * objects
        self.entries = []
        for _ in range(entries):
            chunk, encoding, obj, zero, offset, size, base, new, sha = struct.unpack_from("<IIIIQQ16s16s32s", data, at)
            check(zero == 0 and encoding in (0, 1), "entry")
            self.entries.append((chunk, encoding, obj, offset, size, base, new, sha))
            at += 96
        self.signed = bool(self.flags & 2)
        check(len(data) == at + (96 if self.signed else 0), "manifest length")
        check([e[:2] for e in self.entries] == sorted({e[:2] for e in self.entries}), "order of entries")


def main():
    top = pathlib.Path(sys.argv[1])
    root = (top / "root").read_bytes()
    check(len(root) == 40 and root[:4] == b"RTSR" and struct.unpack_from("<HH", root, 4) == (1, 0), "root")
    lease = (top / "leases" / "reader-1").read_bytes()
    check(len(lease) == 48 and lease[:4] == b"RTSL" and struct.unpack_from("<QQQ", lease, 8) == (7, 2, 4), "lease")
    manifests = {}
    for path in sorted((top / "committed").iterdir()):
        marker = path.read_bytes()
        magic, form, zero, number, lineage, epoch, size, sha = struct.unpack_from("<4sHHQ16sQQ32s", marker)
        check(len(marker) == 96 and magic == b"RTSC" and form == 1 and zero == 0 and number == int(path.name), "marker")
        folder = top / "versions" / f"{number:020d}-{epoch:016x}"
        data = (folder / "manifest").read_bytes()
        check(len(data) == size and hashlib.sha256(data).digest() == sha and lineage == root[8:24], f"manifest of {number}")
        m = Manifest(data)
        check((m.number, m.epoch, m.lineage) == (number, epoch, lineage), "identity")
        m.folder, m.sha = folder, sha
        manifests[number] = m
    check(sorted(manifests) == [1, 2, 3, 4], "four versions expected")
    check([manifests[n].flags for n in (1, 2, 3, 4)] == [1, 2, 2, 3], "anchors and signatures")
    chunks = None  # (tensor, offset, bytes) of each
    state = None
    for number in sorted(manifests):
        m = manifests[number]
        check(m.parent_number == number - 1, "parent")
        if number > 1:
            check(m.parent == manifests[number - 1].sha and m.parent_epoch == manifests[number - 1].epoch, "parent's identity")
        text = (top / "models" / m.model.hex()).read_bytes()
        check(hashlib.sha256(text).digest() == m.model, "model")
        model = json.loads(text)
        tensors = model["tensors"]
        want = expected(tensors, m.step)
        if chunks is None:
            chunks = [(t, at, min(m.chunk_bytes, len(w) - at)) for t, w in enumerate(want) for at in range(0, len(w), m.chunk_bytes)]
            state = [None] * len(chunks)
        anchor = bool(m.flags & 1)
        check(not anchor or [e[0] for e in m.entries if e[1] == 0] == list(range(len(chunks))), "an anchor has all chunks")
        new_state = list(state)
        for chunk, encoding, obj, offset, size, base, new, sha in m.entries:
            data = (m.folder / f"data-{obj:010d}").read_bytes()
            check(len(data) == m.objects[obj] and offset + size <= len(data), "object size")
            payload = data[offset:offset + size]
            check(hashlib.sha256(payload).digest() == sha, "payload digest")
            if encoding == 0:
                check(base == bytes(16) and size == chunks[chunk][2], "complete chunk")
                made = payload
            else:
                check(payload[16:32] == base and payload[32:48] == new, "delta's identity")
                made = decode_delta.apply(payload, state[chunk])
            check(new_state[chunk] in (state[chunk], made), "two entries of one chunk differ")
            new_state[chunk] = made
        state = new_state
        for (t, at, size), data in zip(chunks, state):
            check(data == want[t][at:at + size], f"version {number}, tensor {t} at {at}")
    print("golden store: 4 versions")


if __name__ == "__main__":
    main()
