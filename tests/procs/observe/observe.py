"""What a job shows of itself: metrics of a demo equal its plan, traces tell where the time went, logs carry one id a round.

Usage: observe.py REFIT_BINARY [CASE …]
"""
import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests" / "support"))
import part_process  # noqa: E402
import tiny_model  # noqa: E402

REFIT = sys.argv[1]
SOURCE, TARGET = "fsdp=2", "vllm:tp=3,replicas=2"


def run(*arguments, timeout=60):
    return subprocess.run([REFIT, *map(str, arguments)], capture_output=True, text=True, timeout=timeout)


def scrape(url, token=None):
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    with urllib.request.urlopen(request, timeout=10) as answer:
        text = answer.read().decode()
    out = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, labels, value = re.fullmatch(r"([a-z0-9_]+)(\{.*\})? (\S+)", line).groups()
            pairs = tuple(sorted(re.findall(r'([a-z_]+)="([^"]*)"', labels or "")))
            out[name, pairs] = float(value)
    return out


def total(samples, name, **labels):
    return sum(v for (n, pairs), v in samples.items() if n == name and set(labels.items()) <= set(pairs))


@contextlib.contextmanager
def held_demo(model, *more):
    demo = subprocess.Popen([REFIT, "demo", "--model", model, "--source", SOURCE, "--target", TARGET, "--steps", "2", "--hold", "--json", *map(str, more)],
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        line = demo.stdout.readline()
        assert line.startswith("{"), (line, demo.stderr.read())
        yield demo, json.loads(line)
    finally:
        if demo.poll() is None:
            demo.send_signal(signal.SIGTERM)
        demo.communicate(timeout=30)


def demo_numbers(scratch, model):
    """Version, bytes and outcomes of a dense tcp demo are the plan's; its trace tells the same rounds."""
    plan = json.loads(run("plan", "--model", model, "--from", SOURCE, "--to", TARGET, "--json").stdout)
    trace = scratch / "demo.trace"
    with held_demo(model, "--transport", "tcp", "--metrics", "127.0.0.1:0", "--trace", trace) as (demo, report):
        assert report["ok"] and set(report["metrics"]) == {"coordinator", "source:0.0", "source:0.1", *(f"target:{i}.{r}" for i in range(2) for r in range(3))}, report
        known = {m["name"]: m for m in json.loads(run("metrics", "--json").stdout)}
        hub = scrape(report["metrics"]["coordinator"])
        assert total(hub, "refit_version") == 3 and total(hub, "refit_step") == 2 and total(hub, "refit_stale") == 0, hub
        assert total(hub, "refit_rounds_total", outcome="committed") == 3 == total(hub, "refit_rounds_total"), hub
        assert total(hub, "refit_member_connected") == 8 and total(hub, "refit_replica_version") == 6 and total(hub, "refit_replica_fenced") == 0
        assert total(hub, "refit_member_losses_total") == 0 == total(hub, "refit_retries_total")
        for phase in ("seal", "transfer", "decide", "commit"):
            assert total(hub, "refit_round_phase_seconds_count", phase=phase) == 3, phase
        whole = total(hub, "refit_round_seconds_sum")
        assert abs(whole - sum(v["seconds"] for v in report["versions"])) < 1e-6
        assert total(hub, "refit_round_phase_seconds_sum") <= whole
        members = {name: scrape(url) for name, url in report["metrics"].items() if name != "coordinator"}
        sources = {n: s for n, s in members.items() if n.startswith("source")}
        targets = {n: s for n, s in members.items() if n.startswith("target")}
        versions = 3
        needed = sum(total(s, "refit_bytes_needed_total") for s in targets.values())
        assert needed == versions * plan["bytes_needed"], (needed, plan["bytes_needed"])
        for name in ("refit_bytes_moved_total", "refit_bytes_wire_total"):
            for side in (sources, targets):
                moved = sum(total(s, name) for s in side.values())
                # On the wire: buckets and one manifest a pair and round.
                assert plan["bytes_moved"] * versions <= moved <= plan["bytes_moved"] * versions * 1.1 + 65536, (name, moved, plan["bytes_moved"])
        assert sum(total(s, "refit_bytes_moved_total") for s in targets.values()) == versions * plan["bytes_moved"]
        assert all(total(s, "refit_bytes_installed_total") >= total(s, "refit_bytes_needed_total") > 0 for s in targets.values())
        for name, samples in members.items():
            assert total(samples, "refit_member_version", member=name) == 3, (name, samples)
            assert total(samples, "refit_member_fenced") == 0 == total(samples, "refit_frames_bad_total")
            assert 0 < total(samples, "refit_memory_used_bytes") <= total(samples, "refit_memory_peak_bytes") <= total(samples, "refit_memory_limit_bytes")
            phases = ("transfer", "pause", "copy", "verify", "plan") if name in targets else ("seal", "digest", "transfer", "send", "plan")
            for phase in phases:
                assert total(samples, "refit_phase_seconds_count", phase=phase) >= (1 if phase == "plan" else 3), (name, phase)
        for (name, _) in [key for samples in (hub, *members.values()) for key in samples]:
            base = re.sub(r"_(bucket|sum|count)$", "", name)
            assert name in known or known.get(base, {}).get("type") == "histogram", f"{name} is not in the table"
    told(trace, report)


def told(trace, report):
    """The demo's trace: one file, three rounds, their parts within the whole, who was last."""
    assert not list(trace.parent.glob("*.part*")), "parts of the trace were left"
    events = json.loads(trace.read_text())["traceEvents"]
    assert all(isinstance(e["pid"], int) and e["ph"] in "XiM" for e in events)
    done = run("trace", "summary", trace, "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert [r["version"] for r in summary["rounds"]] == [1, 2, 3] and not summary["clocks"], summary
    for r, v in zip(summary["rounds"], report["versions"]):
        assert r["outcome"] == "committed" and abs(r["seconds"] - v["seconds"]) < 1e-6
        assert set(r["phases"]) == {"seal", "transfer", "decide", "commit"} and sum(r["phases"].values()) <= r["seconds"]
        assert r["last"]["seal"]["member"].startswith("source") and r["last"]["transfer"]["member"].startswith("target")
        assert r["last_link"]["from"].startswith("source") and r["last_link"]["to"] == r["last"]["transfer"]["member"]
        assert len(r["members"]) == 8 and all(m["transfer"] > 0 for m in r["members"].values())
        slowest = max(m["copy"] for n, m in r["members"].items() if n.startswith("target"))
        assert slowest <= v["pause_seconds"] + 0.05
    text = run("trace", "summary", trace).stdout
    assert "last link" in text and "one monotonic clock" in text, text


def two_clocks(scratch, model):
    """Another host's clock is found from the order of messages; without the coordinator's trace it is refused."""
    trace = scratch / "clocks.trace"
    done = run("demo", "--model", model, "--source", SOURCE, "--target", TARGET, "--steps", 2, "--trace", trace, "--json")
    assert done.returncode == 0, done.stderr
    events = json.loads(trace.read_text())["traceEvents"]
    shift = 7_654_321.0
    here = [e for e in events if e["pid"] < 1000]
    there = [dict(e, ts=e["ts"] - shift) if "ts" in e else e for e in events if e["pid"] >= 1000]
    for e in there:
        if e["name"] == "refit_clock":
            e["args"] = dict(e["args"], boot="another")
    files = []
    for name, part in (("here", here), ("there", there)):
        files.append(scratch / name)
        files[-1].write_text("[\n" + "".join(json.dumps(e) + ",\n" for e in part) + '{"torn')
    done = run("trace", "summary", *files, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    (clock,) = json.loads(done.stdout)["clocks"]
    assert abs(clock["offset_us"] - shift) <= clock["uncertain_us"] + 1 and clock["uncertain_us"] < 1e6, clock
    merged = scratch / "merged"
    assert run("trace", "merge", *files, "--out", merged).returncode == 0
    by_name = {(e["pid"], e["tid"], e["name"], e["args"]["round"]): e["ts"] for e in events if e["ph"] == "X"}
    for e in json.loads(merged.read_text())["traceEvents"]:
        if e["ph"] == "X":
            assert abs(e["ts"] - by_name[e["pid"], e["tid"], e["name"], e["args"]["round"]]) <= clock["uncertain_us"] + 1
    # Rounds that nobody shares tie no clocks.
    files[1].write_text("[\n" + "".join(json.dumps(e) + ",\n" for e in there if e["ph"] == "M"))
    lone = run("trace", "summary", *files)
    assert lone.returncode != 0 and "no round ties their clocks" in lone.stderr, lone.stderr
    files[0].write_text('{"a": 1}')
    assert "no trace that --trace wrote" in run("trace", "summary", files[0]).stderr


def killed(scratch, model):
    """A rank that is killed leaves its trace up to there; the loss, the retry and the outcome are counted; one id a round in every log."""
    trace = scratch / "killed.trace"
    with held_demo(model, "--metrics", "127.0.0.1:0", "--trace", trace, "--log", "json", "--kill", "target:0.1@transfer") as (demo, report):
        assert report["ok"], report
        hub = scrape(report["metrics"]["coordinator"])
        assert total(hub, "refit_member_losses_total", member="target:0.1") == 1 == total(hub, "refit_retries_total"), hub
        assert total(hub, "refit_rounds_total", outcome="aborted") == 1 and total(hub, "refit_rounds_total", outcome="committed") == 2
        demo.send_signal(signal.SIGTERM)
        _, log = demo.communicate(timeout=30)
    lines = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    rounds = {}
    for line in lines:
        assert re.fullmatch(r"[0-9a-f]{32}", line["trace_id"]) and re.fullmatch(r"[0-9a-f]{16}", line["span_id"]), line
        rounds.setdefault(line["trace_id"], set()).add(line["who"])
    assert len(rounds) == 3 and all("coordinator" in who and "source:0.0" in who and "target:1.1" in who for who in rounds.values()), rounds
    (bad,) = [line for line in lines if line["event"] == "round" and line["outcome"] != "committed"]
    assert bad["level"] == "error" and bad["error"]["peer"] == "target:0.1", bad
    summary = json.loads(run("trace", "summary", trace, "--json").stdout)
    outcome = {r["version"]: r for r in summary["rounds"]}
    assert outcome[2]["outcome"] == "aborted" and "target:0.1" in outcome[2]["error"] and outcome[3]["outcome"] == "committed", summary


def deltas(scratch, model):
    """With deltas the buckets are counted by form and the bits of each changed element are told."""
    with held_demo(model, "--transport", "tcp", "--encoding", "delta", "--metrics", "127.0.0.1:0") as (demo, report):
        sources = [scrape(url) for name, url in report["metrics"].items() if name.startswith("source")]
        for form in ("unchanged", "delta", "raw"):
            counted = sum(total(s, "refit_buckets_total", form=form) for s in sources)
            assert counted == sum(v["deltas"][form] for v in report["versions"]), (form, counted, report["versions"])
        bits = [total(s, "refit_bits_per_changed_element") for s in sources]
        told_bits = report["versions"][-1]["deltas"]["bits_per_changed"]
        assert min(bits) * 0.99 <= told_bits <= max(bits) * 1.01, (bits, told_bits)


def parts(scratch, model):
    """Separate processes: each answers behind its token, writes its own trace, and shows no key."""
    keys, token = scratch / "keys", scratch / "token"
    assert run("keygen", "--out", keys, "--sources", 2, "--replicas", 1, "--target-ranks", 3).returncode == 0
    token.write_text("a-token-of-this-test\n")
    token.chmod(0o600)
    watch = ["--metrics", "127.0.0.1:0", "--metrics-token", token]
    small = ["--set", "refit.staging_bytes=8MiB", "--set", "refit.bucket_bytes=1MiB"]
    with contextlib.ExitStack() as stack:
        def start(*arguments):
            part = part_process.Part(REFIT, *arguments, *watch)
            stack.callback(lambda: part.end(signal.SIGKILL))
            return part
        traces = [scratch / f"{name}.trace" for name in ("hub", "trainer", "engine")]
        hub = start("coordinator", "--keys", keys, "--journal", scratch / "journal", "--trace", traces[0])
        address = hub.event("ADDR")["address"]
        model_of = ["--keys", keys, "--model", model, *small]
        trainer = start("publish", address, *model_of, "--source", SOURCE, "--steps", 1, "--hold", "--trace", traces[1])
        engine = start("serve", address, *model_of, "--target", "vllm:tp=3", "--trace", traces[2])
        for step in range(2):
            assert hub.event("round", step=step)["outcome"] == "committed"
        trainer.event("committed", step=1)
        for _ in range(3):
            engine.event("serves", step=1)
        urls = [next(e["url"] for e in p.told if e["event"] == "metrics") for p in (hub, trainer, engine)]
        for url in urls:
            try:
                scrape(url)
                raise AssertionError("answered without the token")
            except urllib.error.HTTPError as refused:
                assert refused.code == 401
        samples = [scrape(url, "a-token-of-this-test") for url in urls]
        assert total(samples[0], "refit_version") == 2 and total(samples[2], "refit_member_version") == 6, samples
        assert total(samples[1], "refit_bytes_needed_total") > 0 and total(samples[2], "refit_memory_peak_bytes") > 0
        everything = json.dumps([str(s) for s in samples]) + "".join(t.read_text() for t in traces)
        for file in keys.glob("*.key"):
            for line in file.read_text().splitlines():
                if line.startswith(("secret ", "public ")):
                    assert line.split()[1] not in everything, f"a key of {file.name} was told"
        assert [p.end() for p in (trainer, engine, hub)] == [0] * 3
    summary = json.loads(run("trace", "summary", *traces, "--json").stdout)
    assert [r["outcome"] for r in summary["rounds"]] == ["committed"] * 2 and len(summary["rounds"][0]["members"]) == 5, summary


def refused(scratch, model):
    """Options that do not fit together are refused before anything starts."""
    demo = ["demo", "--model", model, "--source", SOURCE, "--target", TARGET]
    token = scratch / "open"
    token.write_text("0123456789abcdef\n")
    token.chmod(0o644)
    for more, words in ((["--metrics", "0.0.0.0:0"], "--metrics-token"), (["--metrics", "9464"], "HOST:PORT"), (["--metrics-public"], "--metrics"),
                        (["--metrics", "127.0.0.1:0", "--metrics-token", token], "chmod 600"), (["--trace", scratch / "none" / "x"], "--trace"),
                        (["--transport", "s3_sparse", "--log", "json"], "s3_sparse")):
        done = run(*demo, *more)
        assert done.returncode != 0 and words in done.stderr, (more, done.stderr)


def files(scratch, model):
    """The dashboard and the alerts name only metrics that exist, with labels that they have."""
    known = {m["name"]: m for m in json.loads(run("metrics", "--json").stdout)}
    dashboard = json.loads((ROOT / "examples/operate/grafana.json").read_text())
    alerts = (ROOT / "examples/operate/alerts.yml").read_text()
    expressions = [t["expr"] for p in dashboard["panels"] for t in p.get("targets", [])] + re.findall(r"expr: (.*)", alerts)
    assert len(expressions) > 12
    used = set()
    for expression in expressions:
        for name in re.findall(r"refit_[a-z0-9_]+", expression):
            base = re.sub(r"_(bucket|sum|count)$", "", name)
            metric = known.get(name) or (known.get(base) if known.get(base, {}).get("type") == "histogram" else None)
            assert metric, f"{name} does not exist: {expression}"
            used.add(metric["name"])
        labels = set(re.findall(r"([a-z_]+)=~?\"", expression)) | {w.strip() for by in re.findall(r"by \(([^)]*)\)", expression) for w in by.split(",")}
        allowed = {"job", "instance", "le"} | {label for name in used for label in known[name]["labels"].split(",")}
        assert labels <= allowed, (expression, labels - allowed)
    assert len(used) > 15, used
    # Prometheus' own tool, where it is installed.
    if subprocess.run(["sh", "-c", "command -v promtool"], capture_output=True).returncode == 0:
        subprocess.run(["promtool", "check", "rules", ROOT / "examples/operate/alerts.yml"], check=True, capture_output=True)


CASES = [demo_numbers, two_clocks, killed, deltas, parts, refused, files]

if __name__ == "__main__":
    chosen = [c for c in CASES if c.__name__ in sys.argv[2:] or not sys.argv[2:]]
    assert chosen
    for case in chosen:
        with tempfile.TemporaryDirectory() as scratch:
            model = os.path.join(scratch, "model")
            tiny_model.write(pathlib.Path(model))
            case(pathlib.Path(scratch), model)
        print(f"{case.__name__}: {case.__doc__.splitlines()[0]}", flush=True)
