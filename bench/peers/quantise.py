"""bf16 to FP8 and transposes with torch and NumPy, one thread: quantise.py --bytes N --repeats K. Prints one JSON object: GB/s of bf16
input of each repeat. Compiled codes and scales must equal eager ones bit for bit, transposes NumPy's, after every repeat."""

import argparse
import json
import os
import time

import numpy as np

ROWS, COLS = 4096, 11008


def functions(torch):
    e4m3, largest = torch.float8_e4m3fn, 448.0

    def block(x):
        b = x.view(ROWS // 128, 128, COLS // 128, 128).float()
        scale = b.abs().amax((1, 3), keepdim=True).clamp_min(1e-12) / largest
        return (b / scale).clamp(-largest, largest).to(e4m3).view(ROWS, COLS), scale.view(ROWS // 128, COLS // 128)

    def row(x):
        f = x.float()
        scale = f.abs().amax(1, keepdim=True).clamp_min(1e-12) / largest
        return (f / scale).clamp(-largest, largest).to(e4m3), scale

    def mx(x):
        f = x.view(ROWS, COLS // 32, 32).float()
        exponent = (torch.floor(torch.log2(f.abs().amax(2, keepdim=True).clamp_min(2.0**-126))) - 8).clamp(-127, 127)
        codes = (f * torch.exp2(-exponent)).clamp(-largest, largest).to(e4m3)
        return codes.view(ROWS, COLS), (exponent + 127).to(torch.uint8).view(ROWS, COLS // 32)

    return {"fp8_block": block, "fp8_row": row, "mxfp8": mx}


def same(torch, a, b):
    return all(torch.equal(x.view(torch.uint8), y.view(torch.uint8)) for x, y in zip(a, b))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bytes", type=int, default=600 << 20)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--build", default="build/peers")
    o = parser.parse_args()
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.abspath(os.path.join(o.build, "inductor"))
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(1)
    inputs = [(torch.randn(ROWS, COLS) * 0.02).to(torch.bfloat16) for _ in range(max(1, o.bytes // (ROWS * COLS * 2)))]
    count = len(inputs) * ROWS * COLS * 2
    works, references, rows = {}, {}, {}
    for name, f in functions(torch).items():
        references[name] = f(inputs[-1])
        works[f"{name}.eager"] = (f, name)
        works[f"{name}.compile"] = (torch.compile(f, dynamic=False), name)
    turned = np.ascontiguousarray(inputs[-1].view(torch.int16).numpy().T)
    references["transpose"] = (torch.from_numpy(turned),)
    works["transpose.torch"] = (lambda x: (x.t().contiguous().view(torch.int16),), "transpose")
    works["transpose.numpy"] = (lambda x: (torch.from_numpy(np.ascontiguousarray(x.view(torch.int16).numpy().T)),), "transpose")
    for r in range(o.repeats + 1):
        for name, (f, reference) in works.items():
            row = rows.setdefault(name, {"gbps": []})
            if "error" in row:
                continue
            try:
                start = time.monotonic()
                for x in inputs:
                    out = f(x)
                seconds = time.monotonic() - start
            except Exception as e:
                rows[name] = {"error": f"{type(e).__name__}: {' '.join(str(e).split())[:300]}"}
                continue
            if not same(torch, out, references[reference]):
                rows[name] = {"error": "other bytes than the reference"}
                continue
            if r:  # the first run compiles
                row["gbps"].append(count / seconds / 1e9)
    print(json.dumps({"bytes": count, "rows": rows}))


if __name__ == "__main__":
    main()
