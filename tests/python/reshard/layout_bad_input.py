"""Each lie in a layout file or its data is refused: named, nothing written, exit code not 0, never a crash.

Usage: layout_bad_input.py REFIT
"""
import copy
import json
import pathlib
import subprocess
import sys
import tempfile

BASE = {
    "tensors": {"w": {"shape": [4, 6], "dtype": "bf16"}, "s": {"shape": [], "dtype": "f32"}},
    "ranks": [{"rank": 0, "host": "a", "buffers": {"m": {"bytes": 52, "fill": 7}}, "holdings": [
        {"tensor": "w", "box": [[0, 4], [0, 6]], "buffer": "m", "offset": 0, "strides": [12, 2]},
        {"tensor": "s", "box": [], "buffer": "m", "offset": 48, "strides": []}]}],
    "tied": [],
}
HUGE = 2**63


def edit(path, value):
    def apply(layout):
        at = layout
        for key in path[:-1]:
            at = at[key]
        if value is DELETE:
            del at[path[-1]]
        else:
            at[path[-1]] = value
        return layout
    return apply


DELETE = object()
R, H, B = ("ranks", 0), ("ranks", 0, "holdings", 0), ("ranks", 0, "buffers", "m")
# (what, edit of the layout, words that the error must hold)
TABLE = [
    ("unknown key at top", edit(("extra",), 1), ["extra"]),
    ("unknown key in a tensor", edit(("tensors", "w", "extra"), 1), ["extra", "w"]),
    ("unknown key in a rank", edit((*R, "extra"), 1), ["extra"]),
    ("unknown key in a buffer", edit((*B, "extra"), 1), ["extra", "m"]),
    ("unknown key in a holding", edit((*H, "extra"), 1), ["extra", "holding 0"]),
    ("no tensors", edit(("tensors",), DELETE), ["tensors"]),
    ("no ranks", edit(("ranks",), DELETE), ["ranks"]),
    ("empty ranks", edit(("ranks",), []), ["ranks"]),
    ("ranks is no list", edit(("ranks",), {}), ["ranks"]),
    ("no shape", edit(("tensors", "w", "shape"), DELETE), ["shape", "w"]),
    ("no dtype", edit(("tensors", "w", "dtype"), DELETE), ["dtype", "w"]),
    ("no rank number", edit((*R, "rank"), DELETE), ["rank"]),
    ("no bytes", edit((*B, "bytes"), DELETE), ["bytes"]),
    ("no box", edit((*H, "box"), DELETE), ["box"]),
    ("no offset", edit((*H, "offset"), DELETE), ["offset"]),
    ("no strides", edit((*H, "strides"), DELETE), ["strides"]),
    ("no buffer", edit((*H, "buffer"), DELETE), ["buffer"]),
    ("unknown dtype", edit(("tensors", "w", "dtype"), "float"), ["float"]),
    ("unknown storage dtype", edit((*H, "dtype"), "bf17"), ["bf17"]),
    ("unknown tensor", edit((*H, "tensor"), "nobody"), ["nobody"]),
    ("unknown buffer", edit((*H, "buffer"), "nowhere"), ["nowhere"]),
    ("shape of floats", edit(("tensors", "w", "shape"), [4.0, 6]), ["shape"]),
    ("offset is a float", edit((*H, "offset"), 0.5), ["offset"]),
    ("offset is text", edit((*H, "offset"), "0"), ["offset"]),
    ("bytes is a boolean", edit((*B, "bytes"), True), ["bytes"]),
    ("offset past 64 bits", edit((*H, "offset"), HUGE), ["offset"]),
    ("negative extent", edit(("tensors", "w", "shape"), [-4, 6]), ["shape", "w"]),
    ("extent product overflows", edit(("tensors", "w", "shape"), [2**40, 2**40]), ["w"]),
    ("overflow behind a zero", edit(("tensors", "w", "shape"), [0, 2**40, 2**40]), ["w"]),
    ("negative bytes", edit((*B, "bytes"), -1), ["m"]),
    ("bytes past 64 bits", edit((*B, "bytes"), HUGE), ["bytes"]),
    ("fill is no byte", edit((*B, "fill"), 256), ["fill"]),
    ("box outside the shape", edit((*H, "box"), [[0, 5], [0, 6]]), ["w", "5"]),
    ("box upside down", edit((*H, "box"), [[3, 2], [0, 6]]), ["w"]),
    ("box starts below 0", edit((*H, "box"), [[-1, 4], [0, 6]]), ["w", "-1"]),
    ("too few intervals", edit((*H, "box"), [[0, 4]]), ["box", "w"]),
    ("interval of three", edit((*H, "box"), [[0, 4, 1], [0, 6]]), ["box"]),
    ("too few strides", edit((*H, "strides"), [12]), ["strides", "w"]),
    ("bytes outside the buffer", edit((*H, "offset"), 8), ["w", "m"]),
    ("negative offset", edit((*H, "offset"), -2), ["w", "offset"]),
    ("negative stride leaves the buffer", edit((*H, "strides"), [-12, 2]), ["w", "m"]),
    ("stride overflows", edit((*H, "strides"), [2**62, 2]), ["w"]),
    ("view misses the extent", edit((*H, "view"), [[2, 3], [6]]), ["view", "w"]),
    ("view of too many factors", edit((*H, "view"), [[1] * 40 + [4], [6]]), ["w", "32"]),
    ("view without a factor", edit((*H, "view"), [[], [6]]), ["view", "w"]),
    ("negative radix", edit((*H, "view"), [[-2, -2], [6]]), ["view", "w"]),
    ("buffer named ..", lambda l: json.loads(json.dumps(l).replace('"m"', '".."')), ["'..'"]),
    ("buffer named a/b", lambda l: json.loads(json.dumps(l).replace('"m"', '"a/b"')), ["a/b"]),
    ("buffer named a\\b", lambda l: json.loads(json.dumps(l).replace('"m"', '"a\\\\b"')), ["plain file name"]),
    ("buffer name with NUL", lambda l: json.loads(json.dumps(l).replace('"m"', '"a\\u0000b"')), ["plain file name"]),
    ("negative rank", edit((*R, "rank"), -1), ["rank"]),
    ("huge rank", edit((*R, "rank"), 2**31), ["rank"]),
    ("rank twice", lambda l: {**l, "ranks": l["ranks"] * 2}, ["rank 0", "twice"]),
    ("host is a number", edit((*R, "host"), 5), ["host"]),
    ("tied is no pair", edit(("tied",), [["w"]]), ["tied"]),
    ("tied names of other shapes", edit(("tied",), [["w", "s"]]), ["w", "s"]),
    ("instances do not divide", edit(("instances",), 2), ["instances"]),
    ("recipe beside tensors", edit(("recipe",), {}), ["recipe", "family"]),
]
# Refused as a target, legal as a source.
TARGET_ONLY = [
    ("two holdings in the same bytes", edit(("ranks", 0, "holdings", 1, "offset"), 46), ["overlap", "w", "s", "'m'"]),
    ("stride 0", edit((*H, "strides"), [0, 2]), ["overlap", "w"]),
    ("wanted and not offered", lambda l: json.loads(json.dumps(l).replace('"w"', '"v"')), ["v", "unknown name"]),
    ("another shape", lambda l: edit((*H, "box"), [[0, 4], [0, 5]])(edit(("tensors", "w", "shape"), [4, 5])(l)), ["disagreement", "w", "[4, 6]", "[4, 5]", "rank 0"]),
    ("another dtype", edit(("tensors", "w", "dtype"), "f16"), ["disagreement", "w", "f16"]),
]
SOURCE_ONLY = [
    ("a hole", edit((*H, "box"), [[0, 3], [0, 6]]), ["hole", "w", "[3, 4)", "rank 0"]),
    ("no elements for a declared shape", edit((*H, "box"), [[0, 0], [0, 6]]), ["hole", "w"]),
]
TEXTS = [
    ("not JSON", lambda t: t[:-5], ["JSON"]),
    ("duplicate key", lambda t: t.replace('"tied": []', '"tied": [], "tied": []'), ["tied", "twice"]),
    ("duplicate tensor", lambda t: t.replace('"tensors": {', '"tensors": {"w": {"shape": [1], "dtype": "u8"}, '), ["w", "twice"]),
    ("empty", lambda t: "", ["JSON"]),
    ("a list", lambda t: "[]", ["object"]),
    ("deep nesting", lambda t: "[" * 100000, ["JSON"]),
]


class Case:
    def __init__(self, refit, root):
        self.refit, self.root = refit, root
        (root / "data").mkdir()
        (root / "data" / "rank0.m.bin").write_bytes(bytes(range(52)))

    def run(self, source, target, data=None):
        (self.root / "s.json").write_text(source)
        (self.root / "t.json").write_text(target)
        command = [self.refit, "reshard", "--json", "--source-layout", self.root / "s.json", "--source-data", data or self.root / "data",
                   "--target-layout", self.root / "t.json", "--out", self.root / "out"]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)


def check(case, what, words, source, target, data=None):
    result = case.run(source, target, data)
    out = case.root / "out"
    problems = []
    if result.returncode <= 0:
        problems.append(f"exit {result.returncode}")
    try:
        answer = json.loads(result.stdout)
        if answer["ok"] is not False or not answer["errors"]:
            problems.append("no errors listed")
    except (ValueError, KeyError):
        problems.append(f"no JSON on stdout: {result.stdout[:100]}")
    problems += [f"'{w}' not named" for w in words if w not in result.stdout]
    if out.exists() or list(case.root.glob("out*")):
        problems.append("output was left")
    return [f"{what}: {', '.join(problems)}: {result.stdout.strip()[:300]} {result.stderr.strip()[:200]}"] if problems else []


def main():
    good = json.dumps(BASE)
    found = []
    with tempfile.TemporaryDirectory() as name:
        case = Case(sys.argv[1], pathlib.Path(name))
        for what, change, words in TABLE:
            bad = json.dumps(change(copy.deepcopy(BASE)))
            found += check(case, what + " (source)", words, bad, good)
            found += check(case, what + " (target)", words, good, bad)
        for what, change, words in TARGET_ONLY:
            found += check(case, what, words, good, json.dumps(change(copy.deepcopy(BASE))))
        for what, change, words in SOURCE_ONLY:
            found += check(case, what, words, json.dumps(change(copy.deepcopy(BASE))), good)
        for what, change, words in TEXTS:
            found += check(case, what, words, change(good), good)
        (case.root / "short").mkdir()
        (case.root / "short" / "rank0.m.bin").write_bytes(bytes(51))
        found += check(case, "file too short", ["rank0.m.bin", "51", "52"], good, good, case.root / "short")
        found += check(case, "file missing", ["rank0.m.bin"], good, good, case.root / "nowhere")
        (case.root / "full").mkdir()
        (case.root / "full" / "keep").write_text("mine")
        result = subprocess.run([sys.argv[1], "reshard", "--json", "--source-layout", case.root / "s.json", "--source-data", case.root / "data",
                                 "--target-layout", case.root / "t.json", "--out", case.root / "full"], capture_output=True, text=True, timeout=60)
        if result.returncode <= 0 or [p.name for p in (case.root / "full").iterdir()] != ["keep"]:
            found.append("an output directory in use was touched")
        result = case.run(good, good)
        if result.returncode != 0 or (case.root / "out" / "rank0.m.bin").read_bytes() != bytes(range(52)):
            found.append(f"the base case fails: {result.stdout}")
    print("\n".join(found) if found else "every lie is refused")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
