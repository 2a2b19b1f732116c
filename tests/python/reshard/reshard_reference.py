"""Random layout files through `refit reshard`, compared byte for byte with a NumPy reference.

Usage: reshard_reference.py REFIT [--first SEED] [--count N]. A failing seed is printed and replays with --first SEED --count 1.
"""
import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile

import numpy as np

# Raw forms: bf16 and f8 have no NumPy type and are kept as bits.
RAW = {"bool": "u1", "u8": "u1", "i8": "i1", "i16": "<i2", "i32": "<i4", "i64": "<i8", "f16": "<f2", "bf16": "<u2",
       "f32": "<f4", "f64": "<f8", "f8_e4m3": "u1", "f8_e5m2": "u1"}
# Storage dtypes into which every value of a tensor dtype goes without loss.
WIDER = {"bf16": ["f32", "f64"], "f16": ["f32", "f64"], "f32": ["f64"], "u8": ["i16", "i32", "i64"], "i8": ["i16", "i32"],
         "i16": ["i32", "i64"], "i32": ["i64"]}
EXTENTS = [1, 2, 3, 4, 5, 6, 7, 8, 12, 18]


def store(values, dtype, storage):
    """Logical values (raw form of `dtype`) as raw values of `storage`."""
    if dtype == storage:
        return values
    if dtype == "bf16":
        values = (values.astype("<u4") << 16).view("<f4")
    return values.astype(RAW[storage])


class Maker:
    def __init__(self, seed):
        self.dice = random.Random(seed)
        self.numbers = np.random.default_rng(seed)
        self.tensors, self.values, self.flat, self.castable = {}, {}, {}, {}
        self.tied = []
        for i in range(self.dice.randint(1, 4)):
            self.add_tensor(f"t{i}")
        if self.dice.random() < 0.4:
            self.tied.append(["t0", "tied"])
            for table in (self.tensors, self.values, self.flat, self.castable):
                table["tied"] = table["t0"]

    def add_tensor(self, name):
        d = self.dice
        shape = [0 if d.random() < 0.05 else d.choice(EXTENTS) for _ in range(d.randint(0, 3))]
        dtype = d.choice(list(RAW))
        flat = [a for a in range(len(shape)) if d.random() < 0.15]
        base = [1 if a in flat else n for a, n in enumerate(shape)]
        width = np.dtype(RAW[dtype]).itemsize
        bits = self.numbers.integers(0, 256, size=base + [width], dtype=np.uint8)
        castable = dtype in WIDER and d.random() < 0.5
        if castable and dtype in ("bf16", "f16", "f32"):
            bits[..., -1] &= 0x3B  # no infinities or NaN: a cast keeps values, not payloads
        if dtype == "bool":
            bits &= 1
        raw = np.ascontiguousarray(bits).view(RAW[dtype]).reshape(base)
        self.tensors[name] = {"shape": shape, "dtype": dtype}
        self.values[name] = np.broadcast_to(raw, shape)
        self.flat[name], self.castable[name] = flat, castable

    def view(self, shape):
        out = []
        for n in shape:
            radices, left = [], n
            while left > 1 and self.dice.random() < 0.5:
                divisors = [k for k in range(2, left) if left % k == 0]
                if not divisors:
                    break
                radices.append(self.dice.choice(divisors))
                left //= radices[-1]
            out.append(radices + [left])
        return out

    def parts(self, box, depth):
        wide = [k for k, (lo, hi) in enumerate(box) if hi - lo > 1]
        if not depth or not wide or self.dice.random() < 0.25:
            return [box]
        k = self.dice.choice(wide)
        at = self.dice.randint(box[k][0] + 1, box[k][1] - 1)
        low, high = [list(i) for i in box], [list(i) for i in box]
        low[k][1] = high[k][0] = at
        return self.parts(low, depth - 1) + self.parts(high, depth - 1)

    def hold(self, rank, name, view, box, source):
        d, tensor = self.dice, self.tensors[name]
        buffer = d.choice(list(rank["buffers"]))
        storage = d.choice(WIDER[tensor["dtype"]]) if self.castable[name] and d.random() < 0.5 else tensor["dtype"]
        item = np.dtype(RAW[storage]).itemsize
        axis_of = [a for a, radices in enumerate(view) for _ in radices]
        order = list(range(len(box)))
        order.reverse() if d.random() < 0.4 else d.shuffle(order)
        offset, span, strides = rank["buffers"][buffer]["bytes"] + d.randint(0, 5), item, [0] * len(box)
        for k in order:
            n = box[k][1] - box[k][0]
            repeat = source and axis_of[k] in self.flat[name] and d.random() < 0.5
            stride = 0 if repeat else span + (d.randint(1, 9) if d.random() < 0.25 else 0)
            if d.random() < 0.15 and n > 0:
                offset += (n - 1) * stride
                strides[k] = -stride
            else:
                strides[k] = stride
            span += max(n - 1, 0) * stride
        rank["buffers"][buffer]["bytes"] += span + 16
        holding = {"tensor": name, "box": box, "buffer": buffer, "offset": offset, "strides": strides}
        if storage != tensor["dtype"] or d.random() < 0.1:
            holding["dtype"] = storage
        if view != [[n] for n in tensor["shape"]] or d.random() < 0.1:
            holding["view"] = view
        rank["holdings"].append(holding)

    def side(self, source):
        d = self.dice
        ranks = []
        for r in range(d.randint(1, 4)):
            buffers = {f"b{i}": {"bytes": d.randint(0, 4)} for i in range(d.randint(1, 2))}
            for spec in buffers.values():
                if d.random() < 0.7:
                    spec["fill"] = d.randint(0, 255)
            rank = {"rank": r, "buffers": buffers, "holdings": []}
            if d.random() < 0.5:
                rank["host"] = d.choice("ab")
            ranks.append(rank)
        names = [n for n in self.tensors if not (source and n == "tied" and d.random() < 0.5)]
        for name in names:
            view = self.view(self.tensors[name]["shape"])
            boxes = self.parts([[0, r] for radices in view for r in radices], 3)
            everywhere = d.random() < 0.3
            for box in boxes:
                if not source and d.random() < 0.2:
                    continue
                for rank in ranks if everywhere else [d.choice(ranks) for _ in range(d.randint(1, 2))]:
                    self.hold(rank, name, view, box, source)
            for _ in range(d.randint(0, 2)):
                other = self.view(self.tensors[name]["shape"])
                box = []
                for n in (r for radices in other for r in radices):
                    lo = d.randint(0, n)
                    box.append([lo, d.randint(lo, n)])
                self.hold(d.choice(ranks), name, other, box, source)
        tensors = {n: t for n, t in self.tensors.items() if n in names or d.random() < 0.5}
        d.shuffle(ranks)
        return {"tensors": tensors, "ranks": ranks, "tied": self.tied}

    def buffers(self, layout):
        out = {}
        for rank in layout["ranks"]:
            mine = {b: bytearray([spec.get("fill", 0)]) * spec["bytes"] for b, spec in rank["buffers"].items()}
            for h in rank["holdings"]:
                dtype = self.tensors[h["tensor"]]["dtype"]
                view = h.get("view", [[n] for n in self.tensors[h["tensor"]]["shape"]])
                logical = self.values[h["tensor"]].reshape([r for radices in view for r in radices])
                part = logical[tuple(slice(lo, hi) for lo, hi in h["box"])]
                storage = h.get("dtype", dtype)
                if part.size:
                    np.ndarray(part.shape, RAW[storage], mine[h["buffer"]], h["offset"], h["strides"])[...] = store(part, dtype, storage)
            out.update({f"rank{rank['rank']}.{b}.bin": bytes(data) for b, data in mine.items()})
        return out


def run(refit, seed):
    maker = Maker(seed)
    source, target = maker.side(True), maker.side(False)
    with tempfile.TemporaryDirectory() as name:
        root = pathlib.Path(name)
        (root / "source.json").write_text(json.dumps(source))
        (root / "target.json").write_text(json.dumps(target, indent=1))
        (root / "data").mkdir()
        for file, data in maker.buffers(source).items():
            (root / "data" / file).write_bytes(data)
        command = [refit, "reshard", "--json", "--source-layout", root / "source.json", "--source-data", root / "data", "--target-layout",
                   root / "target.json", "--out", root / "out"]
        if seed % 3 == 0:
            command += ["--bucket-bytes", "16"]
        if seed % 4 == 0:
            command += ["--staging-bytes", "256"]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60)
        if result.returncode != 0:
            return f"exit {result.returncode}: {result.stdout}{result.stderr}"
        if not json.loads(result.stdout)["ok"]:
            return f"not ok: {result.stdout}"
        expected = maker.buffers(target)
        written = {p.name: p.read_bytes() for p in (root / "out").iterdir()}
        if written.keys() != expected.keys():
            return f"files {sorted(written)} instead of {sorted(expected)}"
        for file, data in expected.items():
            if written[file] != data:
                at = next(i for i, (a, b) in enumerate(zip(written[file], data)) if a != b)
                return f"{file} differs at byte {at}"
        if sorted(p.name for p in root.iterdir()) != ["data", "out", "source.json", "target.json"]:
            return "something was left beside the output"
    return None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("refit")
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--count", type=int, default=150)
    args = parser.parse_args()
    for seed in range(args.first, args.first + args.count):
        problem = run(args.refit, seed)
        if problem:
            print(f"seed {seed}: {problem}")
            return 1
    print(f"{args.count} random layouts equal the reference")
    return 0


if __name__ == "__main__":
    sys.exit(main())
