"""`refit delta` on safetensors files against NumPy. Usage: delta_files.py REFIT [--count N] [--seed S]."""
import argparse
import json
import pathlib
import struct
import subprocess
import tempfile

import numpy as np

DTYPES = {"BF16": np.uint16, "F16": np.uint16, "F32": np.uint32, "F64": np.uint64, "U8": np.uint8, "I8": np.uint8, "I64": np.uint64,
          "BOOL": np.uint8, "F8_E4M3": np.uint8, "I32": np.uint32}


def save(path, tensors, metadata=None, order=None):
    """tensors: {name: (dtype name, array of bit patterns)}"""
    header, data = {}, b""
    if metadata:
        header["__metadata__"] = metadata
    for name in order or sorted(tensors):
        dtype, array = tensors[name]
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [len(data), len(data) + array.nbytes]}
        data += array.tobytes()
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def random_model(rng):
    out = {}
    for i in range(int(rng.integers(1, 7))):
        dtype = list(DTYPES)[rng.integers(len(DTYPES))]
        shape = [(), (0, 7), (int(rng.integers(1, 4000)),), (int(rng.integers(1, 300)), int(rng.integers(1, 300)))][rng.integers(4)]
        kind = DTYPES[dtype]
        high = 2 if dtype == "BOOL" else np.iinfo(kind).max
        out[f"model.layers.{i}.w"] = (dtype, rng.integers(0, high, shape, dtype=kind, endpoint=dtype != "BOOL"))
    return out


def step(rng, tensors):
    """A next version and how many elements differ per tensor."""
    out, changed = {}, {}
    for name, (dtype, array) in tensors.items():
        share = [0, 0.001, 0.01, 0.05, 0.3, 1.0][rng.integers(6)]
        moved = rng.random(array.shape) < share
        if dtype == "BOOL":
            new = np.where(moved, 1 - array, array).astype(array.dtype)
        else:
            by = rng.integers(1, 4, array.shape).astype(array.dtype) * rng.choice(np.array([1, -1]).astype(array.dtype), array.shape)
            new = np.where(moved, array + by, array).astype(array.dtype)
        out[name], changed[name] = (dtype, new), int((new != array).sum())
    return out, changed


class Refit:
    def __init__(self, program):
        self.program = program

    def __call__(self, *words):
        done = subprocess.run([self.program, "delta", *map(str, words), "--json"], capture_output=True, text=True, timeout=120)
        return done.returncode, json.loads(done.stdout)

    def good(self, *words):
        code, out = self(*words)
        assert code == 0 and out["ok"], (words, out)
        return out

    def bad(self, want, out_path, *words):
        code, out = self(*words)
        assert code != 0 and not out["ok"], (words, out)
        assert out["errors"][0]["code"] == want, (words, out)
        assert not out_path.exists(), f"{out_path} was left behind"
        return out["errors"][0]


def round_trip(refit, rng, root):
    base, new, other = root / "base.safetensors", root / "new.safetensors", root / "other.safetensors"
    tensors = random_model(rng)
    after, changed = step(rng, tensors)
    save(base, tensors, {"step": "1"})
    save(new, after, {"step": "2"} if rng.random() < 0.5 else {"step": "1"}, sorted(after, reverse=bool(rng.random() < 0.5)))
    for form in ("undoable", "overwrite"):
        delta, out = root / f"{form}.delta", root / f"{form}.out"
        wrote = refit.good("encode", base, new, delta, "--form", form)
        assert wrote["wire_bytes"] == delta.stat().st_size
        refit.good("apply", base, delta, out, "--threads", 2)
        assert out.read_bytes() == new.read_bytes()
        stat = refit.good("stat", delta)
        for t in stat["per_tensor"]:
            if t["frames"]["raw"] == 0:
                assert t["changed"] == changed[t["name"]], t
        out.unlink()
        if form == "undoable":
            refit.good("revert", new, delta, out)
            assert out.read_bytes() == base.read_bytes()
            out.unlink()
            if any(changed.values()):
                error = refit.bad("mismatch", out, "apply", new, delta, out)
                assert changed[error["tensor"]] > 0
        else:
            refit.good("apply", new, delta, out)
            assert out.read_bytes() == new.read_bytes()
            out.unlink()
            refit.bad("unsupported", out, "revert", new, delta, out)
        third, moved = step(rng, after)
        if any(moved[n] and not np.array_equal(third[n][1], tensors[n][1]) for n in third):
            save(other, third)
            refit.bad("mismatch", out, "apply", other, delta, out)
        damage(refit, rng, root, base, new, delta, form)


def damage(refit, rng, root, base, new, delta, form):
    whole = bytearray(delta.read_bytes())
    bad, out = root / "bad.delta", root / "bad.out"
    for _ in range(6):
        copy = bytearray(whole)
        copy[rng.integers(len(copy))] ^= 1 << int(rng.integers(8))
        bad.write_bytes(copy)
        code, said = refit("apply", base, bad, out)
        assert code != 0 and said["errors"][0]["code"] in ("corrupt", "unsupported", "mismatch"), said
        assert not out.exists()
        assert not list(root.glob("bad.out.*")), "a temporary file was left behind"
    bad.write_bytes(whole[:int(rng.integers(len(whole)))])
    refit.bad("corrupt", out, "apply", base, bad, out)
    bad.write_bytes(bytes(whole) + b"\0")
    refit.bad("corrupt", out, "apply", base, bad, out)


def other_tensors(refit, root):
    base, new, out = root / "a.safetensors", root / "b.safetensors", root / "c.delta"
    array = np.arange(60, dtype=np.uint16)
    save(base, {"gone": ("BF16", array), "kept": ("BF16", array), "shape": ("BF16", array), "kind": ("BF16", array)})
    save(new, {"added": ("BF16", array), "kept": ("BF16", array), "shape": ("BF16", array.reshape(6, 10)), "kind": ("F16", array)})
    message = refit.bad("mismatch", out, "encode", base, new, out)["message"]
    for word in ("gone", "added", "bf16 [60] against bf16 [6, 10]", "kind"):
        assert word in message, message
    assert "kept" not in message
    refit.bad("invalid", out, "encode", root / "missing", new, out)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("refit")
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=20261130)
    args = parser.parse_args()
    refit = Refit(args.refit)
    for i in range(args.count):
        with tempfile.TemporaryDirectory() as folder:
            try:
                round_trip(refit, np.random.default_rng(args.seed + i), pathlib.Path(folder))
            except AssertionError:
                print(f"--seed {args.seed + i} --count 1")
                raise
    with tempfile.TemporaryDirectory() as folder:
        other_tensors(refit, pathlib.Path(folder))
    print(f"{args.count} models: files come back byte for byte, damage and wrong bases are refused")


main()
