#!/usr/bin/env python3
"""`refit.trace` on loaders written here: random chains of views, copies and casts, replayed on real values; padding, ties,
double writes; and loaders that compute or look, which must be reported.

usage: tracing.py      (needs torch)
"""
import pathlib
import random
import sys

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python" / "refit"))
import trace as tracing  # noqa: E402  (by path: the package itself need not be built)


class Desk(torch.nn.Module):
    """Parameters of the given shapes and a loader that runs `steps(parameters, weights)`."""

    def __init__(self, shapes, steps, device, dtype=torch.float32, tie=()):
        super().__init__()
        for name, shape in shapes.items():
            self.register_parameter(name, torch.nn.Parameter(torch.zeros(shape, dtype=dtype, device=device), requires_grad=False))
        for copy, primary in tie:
            self.register_parameter(copy, getattr(self, primary))
        self.steps = steps

    def load_weights(self, weights):
        self.steps(dict(self.named_parameters()), dict(weights))


def values(shapes, dtype=torch.float32):
    out, start = {}, 1
    for name, shape in shapes.items():
        n = torch.Size(shape).numel()
        out[name] = torch.arange(start, start + n, dtype=torch.float64).reshape(shape).to(dtype)
        start += n
    return out


def replay(found, real):
    """What the holdings say lies in each buffer."""
    out = {n: torch.zeros(b.numel, dtype=b.dtype) for n, b in found.buffers.items()}
    for h in found.holdings:
        flat = real[h.tensor].reshape([r for axis in h.view for r in axis])
        for axis, (lo, hi) in enumerate(h.box):
            flat = flat.narrow(axis, lo, hi - lo)
        out[h.buffer].as_strided(flat.shape, h.strides, h.offset).copy_(flat)
    return out


def halves(h):
    """A holding cut across its first factor of two or more, or [h]."""
    k = next((k for k, (lo, hi) in enumerate(h["box"]) if hi - lo > 1), None)
    if k is None:
        return [h]
    (lo, hi), at = h["box"][k], h["offset"]
    mid = (lo + hi) // 2
    return [dict(h, box=h["box"][:k] + [list(part)] + h["box"][k + 1:], offset=at + (part[0] - lo) * h["strides"][k]) for part in ((lo, mid), (mid, hi))]


def compared(found, checkpoint):
    """The layout against itself with all boxes cut, and with two elements' places changed."""
    whole = tracing.layout_of([found], checkpoint)
    held = whole["ranks"][0]["holdings"]
    cut = dict(whole, ranks=[dict(whole["ranks"][0], holdings=[p for h in held for p in halves(h)])])
    for a, b in ((whole, cut), (cut, whole)):
        assert tracing.differences(a, b) == {}, tracing.differences(a, b)
    ones = [p for h in held for p in halves(h)]
    while any(len(halves(p)) > 1 for p in ones[:2]):
        ones = [q for p in ones[:2] for q in halves(p)] + ones[2:]
    if len(ones) > 1 and ones[0]["buffer"] == ones[1]["buffer"] and (ones[0]["tensor"], ones[0]["box"]) != (ones[1]["tensor"], ones[1]["box"]):
        swapped = [dict(ones[0], offset=ones[1]["offset"]), dict(ones[1], offset=ones[0]["offset"])] + ones[2:]
        other = dict(whole, ranks=[dict(whole["ranks"][0], holdings=swapped)])
        assert tracing.differences(whole, other), "two elements changed places and nobody saw it"


def check(shapes, tensors, steps, dtype=torch.float32, tie=(), zeroed=0):
    found = tracing.trace(lambda: Desk(shapes, steps, "meta", dtype, tie), {n: (s, torch.float32) for n, s in tensors.items()})
    real = values(tensors)
    desk = Desk(shapes, steps, "cpu", dtype, tie)
    with torch.no_grad():
        desk.load_weights(real.items())
    real = values(tensors)  # a loader may have changed its arguments
    assert not found.problems, found.problems
    compared(found, {n: (s, torch.float32) for n, s in tensors.items()})
    got = replay(found, real)
    for name, p in desk.named_parameters():
        assert torch.equal(got[name].reshape(p.shape), p), f"{name}: {got[name]} is not {p.flatten()}"
        assert found.buffers[name].unwritten + zeroed == int((p == 0).sum()), name  # values start at 1
    return found


def random_chain(rng):
    """A view of a random tensor, taken through random steps; the parameter gets the result, perhaps in parts."""
    shape = [rng.choice([1, 2, 3, 4, 6]) for _ in range(rng.randint(1, 3))]
    plan = [(rng.choice(["narrow", "permute", "expand", "factor", "flatten", "chunk", "clone", "cast", "step", "cat", "stack", "buffer"]), rng.random(), rng.random()) for _ in range(rng.randint(1, 5))]

    def walk(w):
        for kind, a, b in plan:
            axis = int(a * w.dim()) if w.dim() else 0
            if kind == "narrow" and w.dim() and w.shape[axis] > 1:
                lo = int(b * (w.shape[axis] - 1))
                w = w.narrow(axis, lo, max(1, (w.shape[axis] - lo) // 2))
            elif kind == "step" and w.dim() and w.shape[axis] > 2:
                w = w[(slice(None),) * axis + (slice(int(b * 2), None, 2),)]
            elif kind == "expand" and w.dim() and w.shape[axis] == 1:
                w = w.expand([2 if k == axis else n for k, n in enumerate(w.shape)])
            elif kind == "permute" and w.dim() > 1:
                w = w.transpose(axis, (axis + 1) % w.dim())
            elif kind == "factor" and w.dim():
                n = w.shape[axis]
                f = next((f for f in (2, 3) if n % f == 0 and n > f), None)
                if f:
                    w = w.unflatten(axis, (f, n // f) if b < 0.5 else (n // f, f))
            elif kind == "flatten":
                w = w.reshape(-1)
            elif kind == "chunk" and w.dim() and w.shape[axis] > 1:
                w = w.chunk(2, axis)[int(b * 2) % len(w.chunk(2, axis))]
            elif kind == "clone":
                w = w.clone()
            elif kind == "cast":
                w = w.to(torch.float64)
            elif kind == "cat" and w.dim() and w.shape[axis] > 1:
                w = torch.cat([w.narrow(axis, 1, w.shape[axis] - 1), w.narrow(axis, 0, 1)], axis)
            elif kind == "stack":
                w = torch.stack([w, w], 0)[int(b * 2)]
            elif kind == "buffer":
                made = torch.empty_like(w, memory_format=torch.contiguous_format)
                made.copy_(w)
                w = made
        return w

    result = walk(torch.empty(shape))
    if result.numel() == 0:
        return
    pad = rng.randint(0, 2)
    target = [s + pad for s in result.shape] or [1 + pad]

    def steps(p, weights):
        w = walk(weights["t"])
        into = p["p"][tuple(slice(0, s) for s in w.shape)] if w.dim() else p["p"][0]
        if rng_parts and w.dim() and w.shape[0] > 1:
            half = w.shape[0] // 2
            into[half:].copy_(w[half:])
            into[:half].copy_(w[:half])
        else:
            into.copy_(w)

    rng_parts = rng.random() < 0.5
    check({"p": target}, {"t": shape, "unused": [3]}, steps)


def repeats(p, w):
    p["p"].copy_(w["a"].expand(4))


def by_hand():
    # Two components of a fused parameter, the second shorter than its place.
    def fused(p, w):
        p["p"][:4].copy_(w["a"])
        p["p"][4:6].copy_(w["b"])
    assert check({"p": [8, 3]}, {"a": [4, 3], "b": [2, 3]}, fused).buffers["p"].unwritten == 6

    # Written twice: the later one counts, also where it covers a part.
    def twice(p, w):
        p["p"].copy_(w["a"])
        p["p"][:, 1:3].copy_(w["b"])
    check({"p": [4, 5]}, {"a": [4, 5], "b": [4, 2]}, twice)

    def again(p, w):
        p["p"].copy_(w["a"])
        p["p"].copy_(w["b"])
    found = check({"p": [4, 5]}, {"a": [4, 5], "b": [4, 5]}, again)
    assert found.unused == ["a"] and len(found.holdings) == 1

    # Zeroed on this rank, as engines do with a bias that is added once.
    def zeroed(p, w):
        w["a"].zero_()
        p["p"].copy_(w["a"])
    assert check({"p": [6]}, {"a": [6]}, zeroed, zeroed=6).holdings == []

    # One storage under two names.
    def tied(p, w):
        p["p"].copy_(w["a"])
    assert check({"p": [6]}, {"a": [6]}, tied, tie=[("q", "p")]).buffers["p"].names == ["p", "q"]

    # A cast while copying is a storage dtype of its own.
    def cast(p, w):
        p["p"].copy_(w["a"])
    found = check({"p": [6]}, {"a": [6]}, cast, dtype=torch.float64)
    layout = tracing.layout_of([found], {"a": ([6], torch.float32)})
    assert layout["ranks"][0]["holdings"][0]["dtype"] == "f64" and layout["tensors"]["a"]["dtype"] == "f32"

    # One scale for all rows.
    assert len(check({"p": [4]}, {"a": [1]}, repeats).holdings) == 4

    # A stack of experts in one transposed parameter needs no more holdings than experts.
    def experts(p, w):
        for e in range(8):
            p["p"][e].copy_(w["t"][e].transpose(0, 1))
    assert len(check({"p": [8, 5, 4]}, {"t": [8, 4, 5]}, experts).holdings) == 8


def reported():
    def problems(steps, tensors, tensor, word):
        found = tracing.trace(lambda: Desk({"p": [4], "q": [4]}, steps, "meta"), {n: (s, torch.float32) for n, s in tensors.items()})
        assert word in found.problems.get(tensor, ""), found.problems
        assert not any(h.tensor == tensor for h in found.holdings)
        try:
            tracing.layout_of([found], {n: (s, torch.float32) for n, s in tensors.items()})
        except tracing.TraceError as e:
            assert tensor in str(e)
        else:
            raise AssertionError("a layout with a gap")
        return found

    def adds(p, w):
        p["p"].copy_(w["a"] + 1)
        p["q"].copy_(w["b"])
    assert {h.tensor for h in problems(adds, {"a": [4], "b": [4]}, "a", "add").holdings} == {"b"}

    def in_place(p, w):
        p["p"].copy_(w["a"])
        p["p"].mul_(2)
    problems(in_place, {"a": [4]}, "a", "mul_")

    def from_two(p, w):
        p["p"][:2].copy_(w["a"])
        p["p"][2:].copy_(w["b"])
        p["p"].copy_(-p["p"].exp())
    problems(from_two, {"a": [2], "b": [2]}, "p", "neg.default of a, b")

    def looks(p, w):
        if "a" in w and w["a"].max().item() > 0:
            p["p"].copy_(w["a"])
        p["q"].copy_(w["b"])
    found = problems(looks, {"a": [4], "b": [4]}, "a", "looks at values")
    assert {h.tensor for h in found.holdings} == {"b"}

    tracing.MAX_REPEATS = 3
    problems(repeats, {"a": [1]}, "a", "repeats its elements 4 times")

    def foreign(p, w):
        p["p"].copy_(torch.rand(4))
    found = tracing.trace(lambda: Desk({"p": [4]}, foreign, "meta"), {})
    assert "p" in found.problems


def main():
    seed = int(sys.argv[sys.argv.index("--seed") + 1]) if "--seed" in sys.argv else 7
    rng = random.Random(seed)
    chains = 2000
    for k in range(chains):
        state = rng.getstate()
        try:
            random_chain(rng)
        except Exception:
            print(f"seed {seed}, chain {k} of {state[1][:2]}", file=sys.stderr)
            raise
    by_hand()
    reported()
    print(f"{chains} random loaders (seed {seed}), and by hand: traced as they load")


if __name__ == "__main__":
    main()
