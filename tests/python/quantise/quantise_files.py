"""`refit quantize` and `refit dequantize` against NumPy. Usage: quantise_files.py REFIT [--seed S].

Codes are found by looking a quotient up in the table of the 256 E4M3 values: the nearest, of two the even code.
"""
import argparse
import json
import pathlib
import struct
import subprocess
import tempfile

import numpy as np

KINDS = {"BF16": np.uint16, "F32": np.float32, "F8_E4M3": np.uint8, "U8": np.uint8, "I64": np.int64}


def save(path, tensors):
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, (dtype, array) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [len(data), len(data) + array.nbytes]}
        data += array.tobytes()
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def load(path):
    raw = path.read_bytes()
    n = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8:8 + n])
    assert header.pop("__metadata__") == {"format": "pt"}
    out = {}
    for name, t in header.items():
        lo, hi = t["data_offsets"]
        out[name] = (t["dtype"], np.frombuffer(raw[8 + n + lo:8 + n + hi], KINDS[t["dtype"]]).reshape(t["shape"]))
    return out


def e4m3_table():
    values = np.zeros(256)
    for c in range(256):
        e, m = c >> 3 & 15, c & 7
        v = m * 2.0**-9 if e == 0 else (8 + m) * 2.0**(e - 10)
        values[c] = np.nan if c & 127 == 127 else -v if c & 128 else v
    return values


TABLE = e4m3_table()
POSITIVE = TABLE[:127]


def codes_of(y):
    """y: float32 quotients."""
    a = np.minimum(np.abs(y.astype(np.float64)), 448.0)
    a = np.where(np.isnan(y), 0, a)
    high = np.clip(np.searchsorted(POSITIVE, a), 1, 126)
    low = high - 1
    below, above = a - POSITIVE[low], POSITIVE[high] - a
    code = np.where(below < above, low, np.where(above < below, high, np.where(low % 2 == 0, low, high)))
    code = np.where(np.isnan(y), 127, code) | np.where(np.signbit(y), 128, 0)
    return code.astype(np.uint8)


def floats(dtype, array):
    return (array.astype(np.uint32) << 16).view(np.float32) if dtype == "BF16" else array


def blocks(a, rows, cols, fn):
    """fn of each block, on the grid of blocks."""
    return np.array([[fn(a[r:r + rows, c:c + cols]) for c in range(0, a.shape[1], cols)] for r in range(0, a.shape[0], rows)])


def spread(grid, rows, cols, shape):
    return np.repeat(np.repeat(grid, rows, 0), cols, 1)[:shape[0], :shape[1]]


def finite_amax(b):
    b = np.abs(b[np.isfinite(b)])
    return b.max() if b.size else np.float32(0)


def expected(fmt, power, x):
    rows, cols = {"fp8_block": (128, 128), "fp8_channel": (1, x.shape[1]), "mxfp8": (1, 32)}[fmt]
    amax = blocks(x, rows, cols, finite_amax).astype(np.float32)
    if fmt == "mxfp8":
        _, e = np.frexp(amax.astype(np.float64))
        stored = np.where(amax == 0, 0, np.maximum(e - 1 - 8 + 127, 0)).astype(np.uint8)
        scale = np.ldexp(np.float64(1), stored.astype(np.int64) - 127).astype(np.float32)
    else:
        scale = np.where(amax == 0, np.float32(1), np.maximum(amax / np.float32(448), np.float32(2.0**-126)))
        if power:
            m, e = np.frexp(scale.astype(np.float64))
            scale = np.ldexp(1.0, np.where(m == 0.5, e - 1, e))
        stored = scale = scale.astype(np.float32)
    wide = spread(scale, rows, cols, x.shape)
    with np.errstate(over="ignore", invalid="ignore"):
        return stored, codes_of((x / wide).astype(np.float32)), wide


def to_bf16(v):
    bits = v.view(np.uint32)
    rounded = ((bits.astype(np.uint64) + 0x7fff + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(v), (bits >> 16 | 0x40).astype(np.uint16), rounded)


def model(rng):
    def weight(shape, dtype="BF16", size=0.02):
        v = (rng.standard_normal(shape) * size).astype(np.float32)
        return (dtype, (v.view(np.uint32) >> 16).astype(np.uint16) if dtype == "BF16" else v)
    out = {
        "model.embed_tokens.weight": weight((64, 96)), "lm_head.weight": weight((64, 96)), "model.norm.weight": weight((96,)),
        "model.layers.0.input_layernorm.weight": weight((96,)), "model.layers.0.mlp.gate.weight": weight((8, 96)),
        "model.layers.0.self_attn.q_proj.weight": weight((300, 320)), "model.layers.0.self_attn.q_proj.bias": weight((300,)),
        "model.layers.0.mlp.gate_proj.weight": weight((129, 256), "F32"), "model.layers.0.mlp.up_proj.weight": weight((5, 32), "BF16", 1e-30),
        "model.layers.1.mlp.down_proj.weight": weight((257, 128), "BF16", 1e4), "skip.me.weight": weight((32, 32)), "steps": ("I64", np.arange(3)),
    }
    q = out["model.layers.0.self_attn.q_proj.weight"][1]
    q[:128, :128] = 0
    patterns = rng.permutation(65536).astype(np.uint16)
    out["any.weight"] = ("BF16", patterns.reshape(256, 256))
    finite = patterns[(patterns & 0x7f80) != 0x7f80][:65024].reshape(254, 256)
    out["finite.weight"] = ("BF16", finite)
    ties = (np.float32(1) + np.arange(256, dtype=np.float32) / 128) * np.float32(2) ** rng.integers(-12, 8, 256).astype(np.float32)
    out["ties.weight"] = ("F32", np.stack([ties, np.full(256, 448, np.float32)]))
    return out


KEPT = {"model.embed_tokens.weight", "lm_head.weight", "model.norm.weight", "model.layers.0.input_layernorm.weight",
        "model.layers.0.mlp.gate.weight", "model.layers.0.self_attn.q_proj.bias", "skip.me.weight", "steps"}


def run(refit, *args, ok=True):
    done = subprocess.run([refit, *map(str, args), "--json"], capture_output=True, text=True)
    assert (done.returncode == 0) == ok, (args, done.stdout, done.stderr)
    return json.loads(done.stdout)


def check_findings(report, tensors):
    for t in report["converted"]:
        x = floats(*tensors[t["name"]])
        assert t["nans"] == np.isnan(x).sum() and t["infinities"] == np.isinf(x).sum(), t
        if t["nans"]:
            assert t["first_nan"] == np.argwhere(np.isnan(x))[0].tolist(), t


def check(refit, folder, tensors, fmt, power):
    source, coded, again, back = (folder / n for n in ("in.safetensors", "q.safetensors", "q2.safetensors", "back.safetensors"))
    flags = ["--format", fmt, "--keep", "skip.me"] + (["--power-of-two"] if power else [])
    report = run(refit, "quantize", source, coded, *flags)
    run(refit, "quantize", source, again, *flags)
    assert coded.read_bytes() == again.read_bytes()
    assert set(report["kept"]) == KEPT and "quantization_config" in report
    check_findings(report, tensors)
    run(refit, "dequantize", coded, back, "--dtype", "bf16")
    got, plain = load(coded), load(back)
    suffix = "_scale_inv" if fmt == "fp8_block" else "_scale"
    assert set(got) == set(tensors) | {n + suffix for n in tensors if n not in KEPT}
    assert set(plain) == set(tensors)
    for name, (dtype, array) in tensors.items():
        if name in KEPT:
            assert got[name][0] == plain[name][0] == dtype and (got[name][1] == array).all() and (plain[name][1] == array).all()
            continue
        scale, codes, wide = expected(fmt, power, floats(dtype, array))
        assert got[name + suffix][1].shape == scale.shape and (got[name + suffix][1] == scale).all(), (fmt, name)
        assert got[name][0] == "F8_E4M3" and (got[name][1] == codes).all(), (fmt, name, np.argwhere(got[name][1] != codes)[:3])
        with np.errstate(all="ignore"):
            want = to_bf16(TABLE[codes].astype(np.float32) * wide)
        nan = np.isnan(TABLE[codes])
        assert (plain[name][1] == want)[~nan].all() and ((plain[name][1] & 0x7fff) > 0x7f80)[nan].all(), (fmt, name)


def check_refusals(refit, folder):
    bad, out = folder / "bad.safetensors", folder / "out.safetensors"
    codes = ("F8_E4M3", np.zeros((130, 130), np.uint8))
    for tensors, code in [
            ({"a.weight": codes}, "mismatch"),
            ({"a.weight": codes, "a.weight_scale_inv": ("F32", np.ones((2, 3), np.float32))}, "mismatch"),
            ({"a.weight": codes, "a.weight_scale_inv": ("F32", np.array([[1, 1], [np.nan, 1]], np.float32))}, "invalid"),
            ({"a.weight": codes, "a.weight_scale_inv": ("F32", np.array([[1, 1], [1, 0]], np.float32))}, "invalid"),
    ]:
        save(bad, tensors)
        error = run(refit, "dequantize", bad, out, ok=False)["errors"][0]
        assert error["code"] == code and error["tensor"] == "a.weight" and not out.exists(), error
    save(bad, {"a.weight": ("BF16", np.zeros((4, 33), np.uint16))})
    error = run(refit, "quantize", bad, out, "--format", "mxfp8", ok=False)["errors"][0]
    assert error["code"] == "unsupported" and error["tensor"] == "a.weight" and not out.exists(), error


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("refit")
    parser.add_argument("--seed", type=int, default=7)
    args = parser.parse_args()
    print("seed", args.seed)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        tensors = model(np.random.default_rng(args.seed))
        save(folder / "in.safetensors", tensors)
        for fmt, power in [("fp8_block", False), ("fp8_block", True), ("fp8_channel", False), ("mxfp8", False)]:
            check(args.refit, folder, tensors, fmt, power)
        check_refusals(args.refit, folder)
    print("equal")


main()
