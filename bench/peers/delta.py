"""One turn of all delta codecs at one density, one thread: delta.py --density P --bytes N --repeats K. Prints one JSON object: GB/s of weights
covered by encode and apply of each repeat, bytes of the messages. Every byte is compared in every repeat. Codecs take turns."""

import argparse
import json
import time

import delta_codecs as codecs
import numpy as np


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--density", type=float, required=True)
    parser.add_argument("--bytes", type=int, default=600 << 20)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--codecs", default=",".join(codecs.CODECS))
    parser.add_argument("--seed", type=int, default=1)
    o = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    pairs = codecs.tensors(o.bytes, o.density, o.seed)
    count = sum(old.nbytes for old, _ in pairs)
    live = [old.copy() for old, _ in pairs]
    stage = codecs.Zstd()
    rows = {}
    for r in range(o.repeats + 1):
        for name in o.codecs.split(","):
            row = rows.setdefault(name, {"encode_gbps": [], "apply_gbps": []})
            if "error" in row:
                continue
            try:
                codec = codecs.CODECS[name](stage, torch)
                for to, (old, _) in zip(live, pairs):
                    np.copyto(to, old)
                start = time.monotonic()
                messages = [codec.encode(old, new) for old, new in pairs]
                encoded = time.monotonic()
                for message, to in zip(messages, live):
                    codec.apply(message, to)
                applied = time.monotonic()
            except Exception as e:
                rows[name] = {"error": f"{type(e).__name__}: {e}"}
                continue
            if not all(np.array_equal(to, new) for to, (_, new) in zip(live, pairs)):
                rows[name] = {"error": "applied bytes differ from the new weights"}
                continue
            row["wire_bytes"] = sum(map(len, messages))
            if r:
                row["encode_gbps"].append(count / (encoded - start) / 1e9)
                row["apply_gbps"].append(count / (applied - encoded) / 1e9)
    print(json.dumps({"bytes": count, "bound_bytes": codecs.bound_bytes(pairs), "rows": rows}))


if __name__ == "__main__":
    main()
