"""`refit quantize` against torch's own casts and ml_dtypes: random, adversarial and real weights, value for value."""

import json
import os
import pathlib
import struct
import subprocess
import tempfile
import unittest

import ml_dtypes
import numpy as np
import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
REFIT = os.environ.get("REFIT_BINARY", str(ROOT / "build/release/cli/refit"))
MODEL = ROOT / "build/models/smollm2-135m"
KINDS = {"BF16": torch.bfloat16, "F32": torch.float32, "F8_E4M3": torch.float8_e4m3fn, "U8": torch.uint8}


def save(path, tensors):
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, t in tensors.items():
        raw = t.contiguous().view(torch.uint8).numpy().tobytes()
        kind = next(k for k, v in KINDS.items() if v == t.dtype)
        header[name] = {"dtype": kind, "shape": list(t.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def load(path):
    raw = bytearray(path.read_bytes())
    n = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(bytes(raw[8:8 + n]))
    header.pop("__metadata__", None)
    out = {}
    for name, t in header.items():
        lo, hi = t["data_offsets"]
        part = torch.frombuffer(raw, dtype=torch.uint8, count=hi - lo, offset=8 + n + lo).clone()
        out[name] = part.view(KINDS[t["dtype"]]).reshape(t["shape"])
    return out


def random_weights():
    g = torch.Generator().manual_seed(7)
    out = {}
    for i, (rows, cols) in enumerate([(128, 128), (300, 416), (1, 32), (257, 96), (64, 1024)]):
        w = torch.randn(rows, cols, generator=g) * 10.0 ** float(torch.randint(-6, 3, (1,), generator=g))
        out[f"a{i}.weight"] = w.to(torch.bfloat16)
        out[f"b{i}.weight"] = w
    return out


def adversarial_weights():
    """Every bf16 pattern but NaN and infinities, blocks of zeros, limits and values beside them, subnormals."""
    every = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    every = torch.where(torch.isfinite(every.float()), every, torch.zeros_like(every))
    limits = torch.tensor([448.0, -448.0, 449.0, 464.0, 465.0, 2.0**-9, 2.0**-10, 2.0**-11, 3 * 2.0**-10, -0.0, 0.0, 17.0, 19.0, 3.3e38, 1e-38, 1e-45])
    return {
        "every.weight": every.reshape(256, 256),
        "rows.weight": every.reshape(2048, 32),
        "zeros.weight": torch.zeros(130, 160, dtype=torch.bfloat16),
        "limits.weight": limits.repeat(128, 8),
        "limits16.weight": limits.repeat(128, 8).to(torch.bfloat16),
        "huge.weight": torch.cat([torch.full((1, 128), 3e38), torch.full((127, 128), 1e-3)]),
    }


def amax_of(w, rows, cols):
    """Largest magnitude of each block, and that of each element's block."""
    r, c = -(-w.shape[0] // rows), -(-w.shape[1] // cols)
    padded = torch.zeros(r * rows, c * cols)
    padded[: w.shape[0], : w.shape[1]] = w.float().abs()
    amax = padded.reshape(r, rows, c, cols).amax(dim=(1, 3))
    return amax, amax.repeat_interleave(rows, 0).repeat_interleave(cols, 1)[: w.shape[0], : w.shape[1]]


def spread(scale, rows, cols, shape):
    return scale.repeat_interleave(rows, 0).repeat_interleave(cols, 1)[: shape[0], : shape[1]]


def scale_of(amax, power_of_two):
    """amax / 448, no smaller than the least normal number; 1 where there is nothing."""
    scale = torch.where(amax == 0, torch.ones_like(amax), torch.maximum(amax / 448.0, torch.tensor(torch.finfo(torch.float32).tiny)))
    if power_of_two:
        mantissa, exponent = torch.frexp(scale)
        scale = torch.ldexp(torch.ones_like(scale), torch.where(mantissa == 0.5, exponent - 1, exponent))
    return scale


class Quantise(unittest.TestCase):
    def sets(self):
        yield "random", random_weights()
        yield "adversarial", adversarial_weights()
        if (MODEL / "model.safetensors").exists():
            weights = load(MODEL / "model.safetensors")
            names = [n for n in weights if n.endswith("_proj.weight")][::13]  # of every kind
            yield "SmolLM2", {n: weights[n] for n in names}

    def quantised(self, tensors, *options):
        with tempfile.TemporaryDirectory() as home:
            source, out = pathlib.Path(home) / "in.safetensors", pathlib.Path(home) / "out.safetensors"
            save(source, tensors)
            subprocess.run([REFIT, "quantize", *options, source, out], check=True, capture_output=True)
            return load(out)

    def same(self, label, got, want):
        got, want = got.view(torch.uint8), want.view(torch.uint8)
        self.assertEqual(got.shape, want.shape, label)
        self.assertEqual(int((got != want).sum()), 0, f"{label}: codes differ")

    def test_blocks_and_channels_are_torchs_casts(self):
        for format, suffix, power in (("fp8_block", "_scale_inv", False), ("fp8_block", "_scale_inv", True), ("fp8_channel", "_scale", False)):
            for kind, tensors in self.sets():
                out = self.quantised(tensors, "--format", format, *(["--power-of-two"] if power else []))
                for name, w in tensors.items():
                    rows, cols = (128, 128) if format == "fp8_block" else (1, w.shape[1])
                    amax, _ = amax_of(w, rows, cols)
                    scale = scale_of(amax, power)
                    label = f"{kind} {format} {name}"
                    self.assertTrue(torch.equal(out[name + suffix].reshape(scale.shape), scale), label + ": scales differ")
                    y = (w.float() / spread(scale, rows, cols, w.shape)).clamp(-448.0, 448.0)
                    self.same(label, out[name], y.to(torch.float8_e4m3fn))
                    # As tests of the field demand it: |dequantised - source| <= amax / 28; a power of two may lie
                    # nearly one binade above amax / 448. Blocks of subnormals have a larger scale than they ask for.
                    back = out[name].double() * spread(scale, rows, cols, w.shape).double()
                    most = spread(amax, rows, cols, w.shape).double()
                    near = ((back - w.double()).abs() <= most / (16 if power else 28) * (1 + 1e-5)) | (most < 1e-35)
                    self.assertTrue(bool(near.all()), label)

    def test_mxfp8_is_ml_dtypes(self):
        for kind, tensors in self.sets():
            tensors = {n: w for n, w in tensors.items() if w.shape[1] % 32 == 0}
            out = self.quantised(tensors, "--format", "mxfp8")
            for name, w in tensors.items():
                values = w.float().numpy().astype(np.float64)
                blocks = values.reshape(w.shape[0], -1, 32)
                amax = np.abs(blocks).max(axis=2)
                # OCP MX 1.0: the exponent of amax less that of 256; what has none takes the least.
                floor = np.frexp(np.where(amax == 0, 1, amax))[1] - 1
                byte = np.where(amax < 2.0**-126, 0, np.maximum(floor - 8 + 127, 0)).astype(np.uint8)
                scale = byte.view(ml_dtypes.float8_e8m0fnu).astype(np.float64)
                y = np.clip((blocks / scale[..., None]).astype(np.float32), -448, 448).astype(ml_dtypes.float8_e4m3fn)
                label = f"{kind} mxfp8 {name}"
                self.assertTrue(np.array_equal(out[name + "_scale"].numpy(), byte), label + ": scales differ")
                self.same(label, out[name], torch.from_numpy(y.view(np.uint8).reshape(w.shape)))


if __name__ == "__main__":
    unittest.main()
