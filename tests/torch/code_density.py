"""How many codes and scales change when a share of the bf16 weights does: SmolLM2's projections, every seventh.

A change is 1 to 3 units in the last place, as the reference trainer makes them. Usage: code_density.py (needs the demo's model).
"""
import test_quantise as q
import torch

FORMATS = {"fp8_block": (128, 128), "fp8_block_pow2": (128, 128), "fp8_channel": (1, 0), "mxfp8": (1, 32)}


def quantised(w, name):
    rows, cols = FORMATS[name]
    cols = cols or w.shape[1]
    amax, _ = q.amax_of(w, rows, cols)
    scale = torch.exp2(torch.floor(torch.log2(amax)) - 8) if name == "mxfp8" else q.scale_of(amax, name == "fp8_block_pow2")
    y = (w.float() / q.spread(scale, rows, cols, w.shape)).clamp(-448, 448)
    return y.to(torch.float8_e4m3fn).view(torch.uint8), scale


def moved(w, share, generator):
    bits = w.view(torch.int16)
    chosen = torch.rand(w.shape, generator=generator) < share
    by = torch.randint(1, 4, w.shape, generator=generator) * (torch.randint(0, 2, w.shape, generator=generator) * 2 - 1)
    out = torch.where(chosen, (bits.int() + by).to(torch.int16), bits).view(torch.bfloat16)
    return torch.where(torch.isfinite(out.float()), out, w)


def main():
    torch.set_num_threads(1)
    weights = q.load(q.MODEL / "model.safetensors")
    names = [n for n in weights if n.endswith("_proj.weight")][::7]
    generator = torch.Generator().manual_seed(1)
    for share in (0.001, 0.01, 0.05):
        for name in FORMATS:
            counts = torch.zeros(3, dtype=torch.int64)  # weights, codes, scales that changed
            of = torch.zeros(3, dtype=torch.int64)
            for n in names:
                w = weights[n]
                v = moved(w, share, generator)
                (a, sa), (b, sb) = quantised(w, name), quantised(v, name)
                counts += torch.tensor([int((w.view(torch.int16) != v.view(torch.int16)).sum()), int((a != b).sum()), int((sa != sb).sum())])
                of += torch.tensor([w.numel(), a.numel(), sa.numel()])
            weight, code, scale = (100 * counts / of).tolist()
            print(f"{name:15} weights {weight:.2f} %  codes {code:.3f} %  scales {scale:.2f} %", flush=True)


if __name__ == "__main__":
    main()
