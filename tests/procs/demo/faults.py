"""Real processes that die or stop at each named step of a round: all or nothing, the error names the peer, the next
sync repairs, nothing is left behind.

Usage: faults.py REFIT_BINARY [--transport=NAME] [--encoding=NAME] [CASE …]. With an encoding that makes deltas, fewer cases. A case is ROLE:INDEX.RANK@STEP, with !stop for SIGSTOP instead of SIGKILL. The
step copying:N dies when N bytes of the live copy are written: the copy that digests on its way, or with !proof the plain
one, which stops at any byte.
"""
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import tiny_model  # noqa: E402

REFIT = sys.argv[1]
TRANSPORT = ([a.split("=")[1] for a in sys.argv[2:] if a.startswith("--transport=")] or ["shm"])[0]
ENCODING = ([a.split("=")[1] for a in sys.argv[2:] if a.startswith("--encoding=")] or ["raw"])[0]
# Before the decision the version aborts; after it, it stands, and the member that died is missing.
BEFORE, AFTER = "aborted", "committed_incomplete"
SOURCE = {"begin": BEFORE, "seal": BEFORE, "lend": BEFORE, "voted": BEFORE, "decided": "committed", "applied": "committed"}
TARGET = {"begin": BEFORE, "transfer": BEFORE, "staged": BEFORE, "voted": BEFORE, "decided": AFTER, "gated": AFTER, "copying": AFTER, "applied": AFTER, "reopened": "committed"}
CASES = [f"source:0.1@{s}" for s in SOURCE] + [f"target:1.2@{s}" for s in TARGET] + ["target:0.0@transfer!stop", "source:0.2@lend!stop", "target:1.1@copying!stop"]
# In the first element, inside an element, inside a row of a middle tensor, near the end.
CASES += ["target:1.2@copying:1!proof", "target:0.1@copying:40001!proof", "target:1.0@copying:100002", "target:1.1@copying:200003!proof"]
# Where bases and shadows could go wrong: the base moves after the source's `applied`.
DELTA_CASES = [f"source:0.1@{s}" for s in ("lend", "voted", "decided", "applied")] + [f"target:1.2@{s}" for s in ("transfer", "staged", "voted", "copying", "applied")]
DELTA_CASES += ["target:0.0@transfer!stop", "target:0.1@copying:40001!proof"]
DEADLINE_S = 60  # of a whole demo with one fault; stalls are cut at STALL_S
STALL_S = 3
AT_ONCE = 3  # a case mostly waits for its deadlines; each has a runtime directory of its own


def leftovers(base):
    return [str(p) for p in base.rglob("*") if not (p.is_dir() and p.name.startswith("refit-"))]


def run(case, model, runtime):
    stop, proof = case.endswith("!stop"), case.endswith("!proof")
    step = case.removesuffix("!stop").removesuffix("!proof")
    command = [REFIT, "demo", "--model", str(model), "--source", "fsdp=2,tp=2", "--target", "vllm:tp=3,replicas=2", "--steps", "2", "--transport", TRANSPORT, "--encoding", ENCODING, "--bucket-bytes", "65536",
               "--stall-timeout-s", str(STALL_S), "--stop" if stop else "--kill", step, "--json"] + (["--proof-every", "1"] if proof else [])
    start = time.monotonic()
    environment = os.environ | {"XDG_RUNTIME_DIR": str(runtime)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, env=environment)
    seconds = time.monotonic() - start
    assert done.stdout, f"{case}: nothing on stdout; {done.stderr}"
    return json.loads(done.stdout), done.returncode, seconds


def check(case, report, code):
    role, name = case.split(":")[0], case.split("@")[0]
    step = case.split("@")[1].split("!")[0].split(":")[0]
    expected = {"source": SOURCE, "target": TARGET}[role][step]
    first, hit, repaired = report["versions"]
    assert first["outcome"] == "committed" and first["verified"], first
    # A member that dies after the commit was told may be counted either way by the time the call returns.
    allowed = {expected} | ({"committed", AFTER} if step in ("applied", "reopened") or (role, step) == ("source", "decided") else set())
    assert hit["outcome"] in allowed, (hit["outcome"], hit["error"])
    if hit["outcome"] != "committed":
        assert hit["stale"], "is_stale was cleared by a round that did not reach everybody"
        error = hit["error"]
        assert error and error["peer"] == name, f"the error does not name {name}: {error}"
        assert error["stage"] and error["message"], error
    # The replica without a fault serves one whole version: the old one after an abort, the new one after a commit.
    survivor = hit["targets"][0 if name.startswith("target:1") or role == "source" else 1]
    number = first["version"] if hit["outcome"] == "aborted" else hit["version"]
    assert survivor["version"] == number and survivor["state"] == "Serving", survivor
    assert repaired["outcome"] == "committed" and repaired["verified"] and repaired["version"] > first["version"], repaired
    if ENCODING != "raw":
        # Who survived holds a base, and got deltas; who came back got complete buckets.
        assert first["deltas"]["delta"] == 0 and repaired["deltas"]["delta"] > 0, repaired["deltas"]
        assert (repaired["deltas"]["raw"] > 0) == (hit["outcome"] != "committed" or name.startswith("source") or step in ("applied", "reopened")), repaired["deltas"]
    for t in report["targets"]:
        assert t["version"] == repaired["version"] and t["torn"] == 0 and t["stale_cache"] == 0, t
    assert report["ok"] and code == 0, (report["ok"], code)


def attempt(case, model, runtime):
    """One case; the line to print, and whether it passed."""
    runtime.mkdir(0o700)
    try:
        report, code, seconds = run(case, model, runtime)
        check(case, report, code)
        left = leftovers(runtime)
        assert not left, f"left behind: {left}"
    except (AssertionError, subprocess.TimeoutExpired, json.JSONDecodeError, ValueError) as e:
        return f"FAIL {case:26} {type(e).__name__}: {e}", False
    hit = report["versions"][1]
    return f"ok   {case:26} {hit['outcome']:21} {seconds:5.1f} s  {(hit['error'] or {}).get('message', '')}", True


def main():
    cases = [a for a in sys.argv[2:] if not a.startswith("--")] or (CASES if ENCODING == "raw" else DELTA_CASES)
    failed = 0
    with tempfile.TemporaryDirectory(prefix="refit-procs-") as scratch, concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        base = pathlib.Path(scratch)
        model = tiny_model.write(scratch + "/model")
        for line, passed in pool.map(lambda i: attempt(cases[i], model, base / f"run{i}"), range(len(cases))):
            failed += not passed
            print(line, flush=True)
    print(f"{len(cases) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
