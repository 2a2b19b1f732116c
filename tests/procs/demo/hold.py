"""refit demo --hold, asked by refit status and refit verify; on_target_loss continue; refusals of the command line.

Usage: hold.py REFIT_BINARY
"""
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import tiny_model  # noqa: E402

REFIT = sys.argv[1]


def run(*arguments, timeout=60):
    return subprocess.run([REFIT, *arguments], capture_output=True, text=True, timeout=timeout)


def held(model):
    demo = subprocess.Popen([REFIT, "demo", "--model", model, "--source", "fsdp=2", "--target", "vllm:tp=3,replicas=2", "--steps", "1", "--hold"], stdout=subprocess.PIPE, text=True)
    try:
        address = None
        for line in demo.stdout:
            if match := re.match(r"ADDR (\S+)", line):
                address = match.group(1)
                break
        assert address, "the demo printed no ADDR"
        status = run("status", address, "--json")
        assert status.returncode == 0, status.stderr
        report = json.loads(status.stdout)
        assert report["version"]["number"] == 2 and len(report["members"]) == 8, report
        assert all(m["connected"] for m in report["members"]), report
        verdict = run("verify", address, "--json")
        assert verdict.returncode == 0, verdict.stdout + verdict.stderr
        proof = json.loads(verdict.stdout)
        assert proof["ok"] and len(proof["members"]) == 6 and all(m["proof"]["placed_live"] > 0 for m in proof["members"]), proof
        table = run("status", address)
        assert "target:1.2" in table.stdout and table.returncode == 0, table.stdout
    finally:
        demo.send_signal(signal.SIGINT)
        demo.wait(timeout=30)
    assert demo.returncode == 0, demo.returncode
    after = run("status", address)
    assert after.returncode != 0 and "coordinator" in after.stderr, after.stderr


def goes_on_without_a_lost_replica(model):
    done = run("demo", "--model", model, "--source", "tp=3", "--target", "vllm:tp=1,replicas=2", "--steps", "2", "--kill", "target:1@transfer", "--on-target-loss-continue", "--json")
    report = json.loads(done.stdout)
    first, hit, repaired = report["versions"]
    assert hit["outcome"] == "committed" and hit["targets"][0]["version"] == hit["version"], hit
    assert repaired["outcome"] == "committed" and repaired["verified"], repaired
    assert [t["version"] for t in report["targets"]] == [repaired["version"]] * 2, report["targets"]


REFUSALS = [  # arguments after "demo --model MODEL", what the message must name
    (["--target", "vllm:tp=2"], "num_attention_heads"),
    (["--target", "vllm:tp=3,zz=1"], "zz"),
    (["--source", "megatron:tp=2"], "megatron"),
    (["--transport", "carrier-pigeon"], "carrier-pigeon"),
    (["--transport", "zmq"], "zmq"),
    (["--kill", "target:9@transfer"], "target:9"),
    (["--kill", "target:0@lunch"], "lunch"),
    (["--bucket-bytes", "1"], "bucket_bytes"),
]


def refusals(model):
    for arguments, named in REFUSALS:
        done = run("demo", "--model", model, "--target", "vllm:tp=3", *arguments, "--steps", "0", timeout=60) if "--target" not in arguments else run("demo", "--model", model, *arguments, "--steps", "0", timeout=60)
        assert done.returncode not in (0, -6, -11), (arguments, done.returncode, done.stdout, done.stderr)
        assert named in done.stderr + done.stdout, f"{arguments}: '{named}' is not named in: {done.stderr}{done.stdout}"
    done = run("status", "tcp://127.0.0.1:1")
    assert done.returncode != 0 and "--key" in done.stderr, done.stderr


def main():
    failed = 0
    with tempfile.TemporaryDirectory(prefix="refit-hold-") as scratch:
        os.environ["XDG_RUNTIME_DIR"] = scratch + "/run"
        os.mkdir(scratch + "/run", 0o700)
        model = str(tiny_model.write(scratch + "/model"))
        cases = [held, goes_on_without_a_lost_replica, refusals]
        for case in cases:
            try:
                case(model)
                print(f"ok   {case.__name__}", flush=True)
            except (AssertionError, subprocess.TimeoutExpired, json.JSONDecodeError, KeyError) as e:
                failed += 1
                print(f"FAIL {case.__name__}: {type(e).__name__}: {e}", flush=True)
    print(f"{len(cases) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
