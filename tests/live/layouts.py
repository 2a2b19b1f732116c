"""Layouts as maps of elements, so that a rule-made one and a traced one can be compared wherever their boxes begin and end."""
import json
import sys
import types

import torch

import support

# The modules by path: the package itself need not be built.
package = types.ModuleType("refit")
package.__path__ = [str(support.ROOT / "python/refit")]
sys.modules["refit"] = package
from refit import trace as tracing  # noqa: E402


def element_ids(layout, sizes):
    """{(rank, buffer): number of the logical element that lies at each place, or -1}. `sizes`: {(rank, buffer): (elements,
    item size)}."""
    start, total = {}, 0
    for name, t in sorted(layout["tensors"].items()):
        start[name] = total
        total += torch.Size(t["shape"]).numel()
    out = {key: torch.full((n,), -1, dtype=torch.int64) for key, (n, _) in sizes.items()}
    for rank in layout["ranks"]:
        for h in rank["holdings"]:
            shape = layout["tensors"][h["tensor"]]["shape"]
            ids = torch.arange(torch.Size(shape).numel()).reshape([r for axis in h.get("view", [[n] for n in shape]) for r in axis]) + start[h["tensor"]]
            for axis, (lo, hi) in enumerate(h["box"]):
                ids = ids.narrow(axis, lo, hi - lo)
            if ids.numel():
                key = rank["rank"], h["buffer"]
                item = sizes[key][1]
                assert h["offset"] % item == 0 and all(s % item == 0 for s in h["strides"])
                place = torch.as_strided(torch.arange(sizes[key][0]), ids.shape, [s // item for s in h["strides"]], h["offset"] // item)
                assert (out[key][place] == -1).all(), f"rank {rank['rank']}: {h['buffer']} is written twice"
                out[key][place] = ids
    return out


def by_parameter(layout, directory):
    """A layout of `refit convert` with a buffer for each parameter instead of one for each file."""
    out = dict(layout, ranks=[])
    for rank in layout["ranks"]:
        places = {}
        for name, b in rank["buffers"].items():
            with open(directory / b["file"], "rb") as f:
                header = json.loads(f.read(int.from_bytes(f.read(8), "little")))
            header.pop("__metadata__", None)
            places[name] = sorted((t["data_offsets"][0], t["data_offsets"][1], p) for p, t in header.items())
        holdings = []
        for h in rank["holdings"]:
            if any(lo == hi for lo, hi in h["box"]):
                continue
            lo, _, parameter = next(p for p in reversed(places[h["buffer"]]) if p[0] <= h["offset"])
            holdings.append(dict(h, buffer=parameter, offset=h["offset"] - lo))
        out["ranks"].append({"rank": rank["rank"], "holdings": holdings})
    return out


def checkpoint_layout(checkpoint, saved, directory):
    """The checkpoint as one rank's raw buffers for `refit reshard`, a buffer each."""
    directory.mkdir(parents=True)
    rank = {"rank": 0, "buffers": {}, "holdings": []}
    tensors = {}
    for k, (name, (shape, dtype)) in enumerate(sorted(checkpoint.items())):
        tensors[name] = {"shape": list(shape), "dtype": tracing.DTYPES[dtype]}
        strides = [s * dtype.itemsize for s in torch.empty(shape, device="meta").stride()]
        rank["buffers"][f"b{k}"] = {"bytes": torch.Size(shape).numel() * dtype.itemsize}
        rank["holdings"].append({"tensor": name, "box": [[0, n] for n in shape], "buffer": f"b{k}", "offset": 0, "strides": strides})
        (directory / f"rank0.b{k}.bin").write_bytes(saved[name].contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    (directory / "layout.json").write_text(json.dumps({"tensors": tensors, "ranks": [rank]}))
