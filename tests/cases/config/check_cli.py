"""`refit check` itself: exit codes, the JSON's keys, both forms of refusal. Usage: check_cli.py REFIT REPOSITORY."""
import json
import pathlib
import subprocess
import sys
import tempfile

REFIT, ROOT = sys.argv[1], pathlib.Path(sys.argv[2])
CASES = ROOT / "tests/cases/config"
KEYS = {"ok", "allowed", "available", "available_reason", "mover", "memory", "options", "compare_only", "unbuilt", "row", "synchronizer", "transport", "path", "backend", "policy",
        "algorithm", "compat", "shadow", "kv_scales", "gpu_share", "gpu_share_rule", "phases", "needs", "refusals", "lifted",
        "warnings", "not_judged", "keys"}


def check(*args, env=None):
    done = subprocess.run([REFIT, "check", *map(str, args)], capture_output=True, text=True, timeout=20, env=env)
    assert done.returncode in (0, 1), (args, done.returncode, done.stderr)
    return done


def main():
    for case in sorted(CASES.glob("*.yaml")):
        done = check(case, "--json")
        report = json.loads(done.stdout)
        assert done.returncode == 0 and report["ok"] and not done.stderr, (case, done.stdout, done.stderr)
        assert set(report) == KEYS, set(report) ^ KEYS
        # What the package drives, and over which mover of host memory; every other row waits, and says for what.
        mover = {"ipc": "shm", "http": "shm", "collective": "tcp", "collective-reload": "tcp", "sglang-group": "tcp", "zmq-sparse": "zmq_sparse"}.get(report["row"], "") * (report["backend"] != "megatron")
        assert report["available"] is bool(mover) and report["mover"] == mover, (case, report)
        assert mover == "zmq_sparse" or "waiting: " in report["available_reason"], (case, report)
        text = check(case)
        assert text.returncode == 0 and report["synchronizer"] in text.stdout, case

    refused = check(CASES / "nixl.yaml", "--json", "--algorithm", "ppo")
    report = json.loads(refused.stdout)
    assert refused.returncode == 1 and not report["ok"], report
    assert "ppo.colocated" in [r["row"] for r in report["refusals"]], report
    assert "way out" in check(CASES / "nixl.yaml", "--algorithm", "ppo").stdout

    lifted = json.loads(check(CASES / "zmq-sparse.yaml", "--json", "--set", "policy.dtensor_cfg.enabled=true",
                              "--set", "refit.compat=extended").stdout)
    assert lifted["ok"] and [r["row"] for r in lifted["lifted"]] == ["sparse.policy"], lifted

    with_env = json.loads(check(CASES / "project.yaml", "--json", env={"REFIT_TEST_TRANSPORT": "nixl"}).stdout)
    assert with_env["row"] == "nixl", with_env
    origin = {k["path"]: k["origin"] for k in with_env["keys"]}["policy.generation.refit_transport"]
    assert "oc.env" in origin, origin

    with tempfile.TemporaryDirectory() as folder:
        bad = pathlib.Path(folder) / "bad.yaml"
        bad.write_text("refit: {stagin_bytes: 1GiB}\npolicy: {generation: {refit_transprot: nixl}}\n")
        done = check(bad, "--json")
        messages = " ".join(e["message"] for e in json.loads(done.stdout)["errors"])
        assert done.returncode == 1 and "refit.staging_bytes" in messages and "refit_transport" in messages, messages
        assert check(bad.with_name("none.yaml")).returncode == 1
        assert check(folder).returncode == 1

    assert check("--print-keys").stdout == (ROOT / "docs/configuration.md").read_text()
    assert check("--print-matrix").stdout == (ROOT / "docs/choose-a-transport.md").read_text()
    print("refit check holds")


if __name__ == "__main__":
    main()
