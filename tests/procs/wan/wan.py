"""A job of separate processes over TCP with keys, on 127.0.0.1: refit coordinator, publish, serve, status, verify.

Usage: wan.py REFIT_BINARY [CASE …]
"""
import contextlib
import json
import os
import pathlib
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import part_process  # noqa: E402
import tiny_model  # noqa: E402

REFIT = sys.argv[1]
PATIENCE_S = part_process.PATIENCE_S
SOURCE, TARGET = "fsdp=2", "vllm:tp=3,replicas=2"
SMALL = ["--set", "refit.staging_bytes=8MiB", "--set", "refit.bucket_bytes=1MiB"]


def run(*arguments, timeout=PATIENCE_S):
    return subprocess.run([REFIT, *map(str, arguments)], capture_output=True, text=True, timeout=timeout)


class Part(part_process.Part):
    def __init__(self, *arguments):
        super().__init__(REFIT, *arguments)


class Job:
    def __init__(self, scratch, stack):
        self.scratch, self.stack = pathlib.Path(scratch), stack
        self.keys, self.model = self.scratch / "keys", self.scratch / "model"
        made = run("keygen", "--out", self.keys, "--sources", 2, "--replicas", 2, "--target-ranks", 3, "--json")
        assert made.returncode == 0, made.stderr
        assert json.loads(made.stdout)["ok"] and len(json.loads(made.stdout)["keys"]) == 10, made.stdout
        tiny_model.write(self.model)

    def start(self, *arguments):
        part = Part(*arguments)
        self.stack.callback(lambda: part.end(signal.SIGKILL))
        return part

    def coordinator(self, *more):
        part = self.start("coordinator", "--keys", self.keys, "--journal", self.scratch / "journal", *more)
        self.address = part.event("ADDR")["address"]
        return part

    def publish(self, *more):
        return self.start("publish", self.address, "--keys", self.keys, "--model", self.model, "--source", SOURCE, *SMALL, *more)

    def serve(self, replica, *more):
        return self.start("serve", self.address, "--keys", self.keys, "--model", self.model, "--target", TARGET, "--replica", replica, "--check", *SMALL, *more)

    def ask(self, command):
        done = run(command, self.address, "--key", self.keys / "client-0.0.key", "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)


def whole_job(job):
    """Two versions after the first, compared byte for byte; asked meanwhile; nobody tells a secret."""
    hub = job.coordinator()
    trainer = job.publish("--steps", 2, "--hold")
    engines = [job.serve(i) for i in (0, 1)]
    for step in range(3):
        assert hub.event("round", step=step)["outcome"] == "committed", hub.told
    for engine in engines:
        for _ in range(3):
            assert engine.event("serves", step=2)["compared_bytes"] > 0
    status, verdict = job.ask("status"), job.ask("verify")
    assert status["version"]["step"] == 2 and all(m["connected"] for m in status["members"]), status
    assert verdict["ok"] and len(verdict["members"]) == 6, verdict
    everything = "".join(json.dumps(p.told) for p in (hub, trainer, *engines)) + json.dumps(status)
    for file in job.keys.glob("*.key"):
        assert file.stat().st_mode & 0o777 == 0o600, file
        secret = next(line.split()[1] for line in file.read_text().splitlines() if line.startswith("secret "))
        assert secret not in everything, f"the secret of {file.name} was told"
        assert all(secret.encode() not in p.command for p in (hub, trainer, *engines)), file
    assert [p.end() for p in (trainer, *engines, hub)] == [0] * 4
    assert all(e["torn"] == 0 and e["stale_cache"] == 0 for p in engines for e in p.told if e["event"] == "served")


def wrong_keys(job):
    """A key of another job, another rank's key, a client's and a member's place swapped: each refused by name."""
    hub = job.coordinator()
    other = job.scratch / "other"
    assert run("keygen", "--out", other, "--sources", 2, "--replicas", 2, "--target-ranks", 3).returncode == 0
    serve = ["serve", job.address, "--model", job.model, "--target", TARGET, *SMALL, "--rank", 0, "--keys"]

    # Admitted nowhere here, and it believes another coordinator: it can't even begin.
    stranger = run(*serve, other, "--join-timeout-s", 0.7)
    assert stranger.returncode != 0 and "target:0.0" not in stranger.stdout and "another coordinator's" in stranger.stderr, stranger.stderr
    # Believes this coordinator, but is not in its allow-list.
    own = {line.split()[0]: line.split()[1] for line in (job.keys / "target-0.0.key").read_text().splitlines()}
    copy = job.scratch / "mixed"
    shutil.copytree(other, copy)
    text = (copy / "target-0.0.key").read_text().splitlines()
    rewrite(copy / "target-0.0.key", [f"coordinator {own['coordinator']}" if line.startswith("coordinator") else line for line in text])
    refused = run(*serve, copy)
    assert refused.returncode != 0 and "does not admit this process' key" in refused.stderr, refused.stderr
    # An admitted key under another name than its own.
    disguise = job.scratch / "disguise"
    shutil.copytree(job.keys, disguise)
    text = (disguise / "target-0.1.key").read_text().replace("owner target:0.1", "owner target:0.0")
    rewrite(disguise / "target-0.0.key", text.splitlines())
    disguised = run(*serve, disguise, "--join-timeout-s", 0.7)
    assert disguised.returncode != 0 and "the key of target:0.1 may not speak for target:0.0" in disguised.stderr, disguised.stderr
    # An admitted key that takes this job for another one.
    text = (job.keys / "target-0.0.key").read_text().splitlines()
    rewrite(disguise / "target-0.0.key", ["job " + "0" * 31 + "1" if line.startswith("job") else line for line in text])
    foreign = run(*serve, disguise, "--join-timeout-s", 0.7)
    assert foreign.returncode != 0 and "another job" in foreign.stderr, foreign.stderr
    # Files: another rank's, one that others may read, a member's key for a question.
    shutil.copy(job.keys / "target-1.0.key", disguise / "target-0.0.key")
    assert "belongs to target:1.0" in run(*serve, disguise).stderr
    os.chmod(disguise / "target-0.0.key", 0o644)
    assert "0600" in run(*serve, disguise).stderr
    asked = run("status", job.address, "--key", job.keys / "source-0.0.key")
    assert asked.returncode != 0 and "only a client's key" in asked.stderr, asked.stderr
    assert "--key" in run("status", job.address).stderr

    dropped = job.ask("status")["dropped"]
    assert all(dropped[why] >= 1 for why in ("connections", "wrong_key", "foreign_job")), dropped
    assert not any(m["connected"] for m in job.ask("status")["members"])
    assert hub.end() == 0


def rewrite(path, lines):
    path.write_text("\n".join(lines) + "\n")
    os.chmod(path, 0o600)


def offer(job, watched, step):
    hidden = watched / f".step-{step}"
    tiny_model.write(hidden, seed=100 + step)
    hidden.rename(watched / f"step-{step}")


def a_rank_dies_and_comes_back(job):
    """A rank that stands still is named; the others keep their version; a new process of it is repaired by the next sync."""
    watched = job.scratch / "checkpoints"
    watched.mkdir()
    hub = job.coordinator("--set", "refit.stall_timeout_s=1")
    job.publish("--watch", watched)
    engines = [job.serve(0, "--watch", watched)] + [job.serve(1, "--watch", watched, "--rank", r) for r in range(3)]
    assert hub.event("round", step=0)["outcome"] == "committed"
    for engine in engines:
        engine.event("serves", step=0)
    victim = engines.pop()
    victim.process.send_signal(signal.SIGSTOP)
    offer(job, watched, 7)
    hit = hub.event("round", step=7)
    assert hit["outcome"] == "aborted" and hit["error"]["peer"] == "target:1.2" and hit["error"]["stage"], hit
    assert job.ask("status")["replicas"][0]["version"] == 1
    victim.end(signal.SIGKILL)
    engines.append(job.serve(1, "--watch", watched, "--rank", 2))
    repaired = hub.event("round", outcome="committed")
    assert repaired["step"] == 7 and repaired["version"] > hit["version"] and repaired["proof"], repaired
    for engine in engines:
        assert engine.event("serves", step=7)["compared_bytes"] > 0
    # Killed between versions: named as missing, and brought to the version that the others serve.
    engines[1].end(signal.SIGKILL)
    assert hub.event("waits")["for"] == "target:1.0"
    job.serve(1, "--watch", watched, "--rank", 0).event("serves", step=7)
    assert job.ask("verify")["ok"]


def the_coordinator_comes_back(job):
    """A killed coordinator is started again at its port and goes on from its journal; members find it by themselves."""
    watched = job.scratch / "checkpoints"
    watched.mkdir()
    hub = job.coordinator()
    port = job.address.rsplit(":", 1)[1]
    job.publish("--watch", watched)
    engines = [job.serve(i, "--watch", watched) for i in (0, 1)]
    first = hub.event("round", step=0)
    hub.end(signal.SIGKILL)
    offer(job, watched, 1)
    hub = job.coordinator("--port-range", port, "--advertise", "localhost")
    assert job.address == f"tcp://localhost:{port}", job.address
    second = hub.event("round", outcome="committed")
    assert second["step"] == 1 and second["version"] > first["version"], second
    for engine in engines:
        engine.event("serves", step=1)
    taken = run("coordinator", "--keys", job.keys, "--journal", job.scratch / "elsewhere", "--port-range", port)
    assert taken.returncode != 0 and "port_range" in taken.stderr and port in taken.stderr, taken.stderr
    held = run("coordinator", "--keys", job.keys, "--journal", job.scratch / "journal")
    assert held.returncode != 0 and "journal" in held.stderr, held.stderr


def another_takes_over(job):
    """Where the lock of the journal does not reach (another host), the first coordinator notices and ends by itself."""
    first = job.coordinator()
    (job.scratch / "journal" / "journal.lock").unlink()
    second = job.coordinator()
    error, = first.errors()
    assert error["code"] == "mismatch" and "of epoch 2" in error["message"] and "of epoch 1 " in error["message"], error
    assert second.process.poll() is None and second.end() == 0


def half_written(job):
    """A checkpoint that is seen half written is taken up when it is whole; what is missing is said when nothing changes."""
    watched, whole = job.scratch / "checkpoints", job.scratch / "whole"
    watched.mkdir()
    tiny_model.write(whole, seed=103)
    job.coordinator()
    trainer = job.publish("--rank", 0, "--watch", watched, "--watch-timeout-s", 0.3)
    trainer.event("offers", step=0)
    half = watched / "step-3"
    half.mkdir()
    (half / "config.json").write_bytes((whole / "config.json").read_bytes())
    assert trainer.event("waits")["directory"] == str(half)
    skipped = trainer.event("skips")
    assert skipped["directory"] == str(half) and "safetensors" in skipped["error"], skipped
    data = (whole / "model.safetensors").read_bytes()
    (half / "model.safetensors").write_bytes(data[:len(data) // 2])
    assert trainer.event("skips")["error"] != skipped["error"]
    (half / "model.safetensors").write_bytes(data)
    trainer.event("offers", step=3)


def refusals(job):
    """Of the command line, each naming what to change."""
    assert "not empty" in run("keygen", "--out", job.keys).stderr
    shutil.copytree(job.keys, job.scratch / "partial")
    lines = (job.keys / "members.pub").read_text().splitlines()
    (job.scratch / "partial" / "members.pub").write_text("\n".join(line for line in lines if not line.startswith("target:0.1")) + "\n")
    hub = ["coordinator", "--journal", job.scratch / "j", "--keys"]
    assert "target:0.1" in run(*hub, job.scratch / "partial").stderr
    assert "coordinator.key" in run(*hub, job.scratch / "nowhere").stderr
    assert "port_range" in run(*hub, job.keys, "--port-range", "9-8").stderr
    (job.scratch / "file").write_text("")
    assert "--journal" in run("coordinator", "--keys", job.keys, "--journal", job.scratch / "file").stderr
    member = ["--keys", job.keys, "--model", job.model]
    serve = ["serve", "tcp://127.0.0.1:1", *member, "--target", TARGET]
    for arguments, named in [
        ([*serve, "--replica", 2], "--replica 2"),
        ([*serve, "--rank", 3], "--rank 3"),
        ([*serve, "--transport", "zmq"], "zmq"),
        ([*serve, "--security-bulk", "aes_gcm"], "aes_gcm"),
        ([*serve, "--set", "refit.staging_bites=1"], "staging_bites"),
        ([*serve, "--join-timeout-s", "0.3"], "--join-timeout-s"),
        (["serve", "ipc:///tmp/x", *member, "--target", TARGET], "ipc"),
        (["publish", "tcp://127.0.0.1:1", *member, "--source", "fsdp=3"], "source-0.2.key"),
        (["publish", "tcp://127.0.0.1:1", *member, "--source", SOURCE, "--steps", 1, "--watch", job.scratch], "--watch"),
    ]:
        done = run(*arguments)
        assert done.returncode not in (0, -6, -11) and named in done.stderr, f"{arguments}: '{named}' is not named in {done.stderr}"


CASES = [whole_job, wrong_keys, a_rank_dies_and_comes_back, the_coordinator_comes_back, another_takes_over, half_written, refusals]


def main():
    wanted = [c for c in CASES if len(sys.argv) < 3 or c.__name__ in sys.argv[2:]]
    failed = 0
    for case in wanted:
        start = time.monotonic()
        try:
            with tempfile.TemporaryDirectory(prefix="refit-wan-") as scratch, contextlib.ExitStack() as stack:
                case(Job(scratch, stack))
            print(f"ok   {case.__name__:28} {time.monotonic() - start:5.1f} s", flush=True)
        except (AssertionError, subprocess.TimeoutExpired, json.JSONDecodeError, KeyError, queue.Empty) as e:
            failed += 1
            print(f"FAIL {case.__name__:28} {type(e).__name__}: {e}", flush=True)
    print(f"{len(wanted) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
