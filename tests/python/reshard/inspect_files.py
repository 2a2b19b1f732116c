"""refit inspect on a tiny checkpoint, one of its files and a layout file: as text and as JSON; wrong paths and damaged files
are refused by name, never by a crash.

Usage: inspect_files.py REFIT
"""
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import tiny_model  # noqa: E402

REFIT = sys.argv[1]
SHAPES = tiny_model.shapes(tiny_model.CONFIG)
LAYOUT = {
    "tensors": {"w": {"shape": [4, 6], "dtype": "bf16"}},
    "ranks": [{"rank": r, "host": "a", "buffers": {"m": {"bytes": 32}}, "holdings": [
        {"tensor": "w", "box": [[2 * r, 2 * r + 2], [0, 6]], "buffer": "m", "offset": 0, "strides": [12, 2]}]} for r in range(2)],
}


def run(*arguments):
    return subprocess.run([REFIT, "inspect", *map(str, arguments)], capture_output=True, text=True, timeout=30)


def good(*arguments):
    done = run(*arguments)
    assert done.returncode == 0, f"{arguments}: {done.returncode} {done.stdout}{done.stderr}"
    return done.stdout


def refused(path, *words):
    for json_form in (False, True):
        done = run(path, *(["--json"] if json_form else []))
        assert done.returncode > 0, f"{path}: exit code {done.returncode}"  # a signal would be negative
        text = done.stdout + done.stderr
        assert all(w in text for w in words), f"{path}: {words} not all in: {text}"
        if json_form:
            report = json.loads(done.stdout)
            assert report["ok"] is False and report["errors"], report


def elements(shape):
    count = 1
    for n in shape:
        count *= n
    return count


def checkpoint(model):
    report = json.loads(good(model, "--json"))
    assert report["ok"] and report["kind"] == "checkpoint" and report["family"] == "llama", report
    assert {t["name"]: t["shape"] for t in report["tensors"]} == SHAPES
    assert all(t["dtype"] == "bf16" and t["bytes"] == 2 * elements(t["shape"]) for t in report["tensors"])
    assert report["parameters"] == sum(map(elements, SHAPES.values())) and report["bytes"] == 2 * report["parameters"]
    text = good(model)
    assert f"{len(SHAPES)} tensors" in text and "rules: llama" in text, text
    assert "model.layers.*.mlp.down_proj.weight" in text and "model.layers.1." not in text, text
    assert "model.layers.1.mlp.down_proj.weight" in good(model, "--all")
    alone = json.loads(good(model / report["files"][0], "--json"))
    assert alone["family"] is None and len(alone["tensors"]) == len(SHAPES), alone


def layout(scratch):
    path = scratch / "layout.json"
    path.write_text(json.dumps(LAYOUT))
    report = json.loads(good(path, "--json"))
    assert report["ok"] and report["kind"] == "layout" and len(report["ranks"]) == 2, report
    assert [t["name"] if isinstance(t, dict) else t for t in report["tensors"]] == ["w"], report
    text = good(path)
    assert "layout" in text and "2 rank" in text and "w" in text, text
    broken = json.loads(json.dumps(LAYOUT))
    broken["ranks"][0]["holdings"][0]["offset"] = 30
    path.write_text(json.dumps(broken))
    refused(path, "w")
    path.write_text(json.dumps(LAYOUT)[:-7])
    refused(path, "layout.json")


def damaged(model, scratch):
    refused(scratch / "nothing", "nothing")
    refused(scratch / "run", "run")  # a directory without a checkpoint
    file = next(model.glob("*.safetensors"))
    whole = file.read_bytes()
    header = int.from_bytes(whole[:8], "little")
    damages = {
        "empty": b"", "cut in the length": whole[:5], "cut in the header": whole[:8 + header // 2], "cut in the data": whole[:-3],
        "header of absurd length": (2**62).to_bytes(8, "little") + whole[8:], "header is no JSON": whole[:8] + b"}" + whole[9:],
        "unknown dtype": whole.replace(b'"BF16"', b'"BF17"', 1), "one byte too many": whole + b"\0",
    }
    for what, data in damages.items():
        copy = scratch / "damaged"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(model, copy)
        (copy / file.name).write_bytes(data)
        try:
            refused(copy, file.name)
        except AssertionError as e:
            raise AssertionError(f"{what}: {e}") from e


def main():
    with tempfile.TemporaryDirectory(prefix="refit-inspect-") as name:
        scratch = pathlib.Path(name)
        (scratch / "run").mkdir()
        model = pathlib.Path(tiny_model.write(scratch / "model"))
        checkpoint(model)
        layout(scratch)
        damaged(model, scratch)
    print("inspect: checkpoint, layout and damaged files as they should")


main()
