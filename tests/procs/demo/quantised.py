"""The whole job into engines that hold FP8: every format, cuts inside blocks, deltas over codes, deaths, repair. The witness
in each rollout process quantises the checkpoint's own values whole and compares all its bytes.

Usage: quantised.py REFIT_BINARY
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import tiny_model  # noqa: E402

REFIT = sys.argv[1]
# 6 query heads of 64, 2 of keys: q 384 rows, k and v 128; MLP 384; hidden 192.
SIZES = {"hidden_size": 192, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 64, "intermediate_size": 384}
THIRDS = SIZES | {"num_key_value_heads": 3}
# sizes, source, target, transport, encoding, further options; whether blocks are cut over sources
CASES = [
    (THIRDS, "fsdp=4", "vllm:tp=3,replicas=2,quant=fp8_block,keep=self_attn", "shm", "raw", ["--kill", "target:0.1@transfer"], True),
    (SIZES, "fsdp=5", "vllm:tp=1,replicas=2,quant=fp8_block_pow2", "tcp", "delta", ["--kill", "source:0.2@seal"], True),
    (SIZES, "fsdp=3", "vllm:tp=2,replicas=2,quant=fp8_channel,keep_last=1", "tcp", "delta", ["--kill", "target:1.0@copying"], False),
    (SIZES, "megatron:tp=2", "sglang:tp=2,quant=fp8_tensor", "shm", "raw", ["--kill", "source:0.0@lend"], True),
    (SIZES, "fsdp=2,tp=2", "vllm:tp=2,quant=mxfp8", "tcp", "raw", [], False),
]


def run(model, runtime, case):
    _, source, target, transport, encoding, more, exchange = case
    command = [REFIT, "demo", "--model", str(model), "--source", source, "--target", target, "--steps", "3", "--transport", transport, "--encoding", encoding, "--bucket-bytes", "65536", "--stall-timeout-s", "5", "--json", *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=os.environ | {"XDG_RUNTIME_DIR": str(runtime)})
    assert done.stdout, f"{target}: nothing on stdout; {done.stderr}"
    report = json.loads(done.stdout)
    assert report["ok"] and done.returncode == 0, (target, report, done.stderr)
    last = report["versions"][-1]
    assert last["outcome"] == "committed" and last["verified"], (target, last)
    if encoding == "delta":
        assert any(v["deltas"]["delta"] > 0 for v in report["versions"]), (target, report["versions"])
    world = json.loads(subprocess.run([REFIT, "plan", "--model", str(model), "--from", source, "--to", target, "--json"], capture_output=True, text=True, check=True).stdout)
    assert sum(world["quantised"].values()) > 0, world["quantised"]
    text = subprocess.run([REFIT, "plan", "--model", str(model), "--from", source, "--to", target], capture_output=True, text=True, check=True).stdout
    assert ("exchange their largest magnitudes" in text) == exchange, text


with tempfile.TemporaryDirectory() as home:
    for i, case in enumerate(CASES):
        runtime = pathlib.Path(home) / f"run{i}"
        runtime.mkdir(mode=0o700)
        model = tiny_model.write(pathlib.Path(home) / f"model{i}", **case[0])
        run(model, runtime, case)
    # A block that the engine's loader refuses is refused before anything starts, by name.
    refused = subprocess.run([REFIT, "demo", "--model", str(model), "--source", "fsdp=2", "--target", "vllm:tp=2,quant=fp8_block"], capture_output=True, text=True, timeout=60)
    assert refused.returncode != 0 and "are not whole blocks of 128" in refused.stderr + refused.stdout, refused
print("ok")
