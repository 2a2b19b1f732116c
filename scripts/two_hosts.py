#!/usr/bin/env python3
"""Two hosts on this machine: a trainer in one network namespace, rollout replicas in the other, a link of a given rate.

Runs refit coordinator, publish and serve as separate processes over TCP with keys, and prints what crossed the link beside
what the plan says must cross it, and each version's time beside those bytes at the rate that iperf3 gets on the same link.
Needs root (network namespaces, veth, tbf); says so and ends with 0 where that is not allowed. Asserts no speed.

Usage: two_hosts.py REFIT [--rate 1gbit] [--model NAME] [--source SPEC] [--replicas 4] [--tp 1] [--steps 3]
                          [--security-bulk mac|none] [--mtu 1500] [--no-offload] [--json]

With --no-offload every packet is one frame, so that the counters see the headers of all frames, as a real link does; that costs
this machine's processors the more the faster the link is. Without it they see those of large packets only, as hosts do.
"""
import argparse
import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading

A, B = "10.231.7.1", "10.231.7.2"
PATIENCE_S = 600


def command(*words, check=True):
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True)
    if check and done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, words))}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


class Hosts:
    """Two namespaces and the link between them; both go when the object is closed."""

    def __init__(self, rate, mtu, offload):
        tag = str(os.getpid())
        self.names = [f"refit-a{tag}", f"refit-b{tag}"]
        self.ports = [f"rfa{tag}"[:15], f"rfb{tag}"[:15]]
        self.made = []
        try:
            for name in self.names:
                command("ip", "netns", "add", name)
                self.made.append(name)
            command("ip", "link", "add", self.ports[0], "netns", self.names[0], "mtu", mtu, "type", "veth", "peer", "name", self.ports[1], "netns", self.names[1], "mtu", mtu)
            for name, port, address in zip(self.names, self.ports, (A, B)):
                run = ["ip", "-n", name]
                command(*run, "addr", "add", f"{address}/24", "dev", port)
                if not offload:
                    command(*run, "link", "set", port, "gso_max_segs", 1)
                command(*run, "link", "set", port, "up")
                command(*run, "link", "set", "lo", "up")
                command("tc", "-n", name, "qdisc", "add", "dev", port, "root", "tbf", "rate", rate, "burst", "256kb", "latency", "100ms")
        except (RuntimeError, OSError):
            self.close()
            raise

    def inside(self, host, *words):
        return ["ip", "netns", "exec", self.names[host], *map(str, words)]

    def sent(self, host):
        """Bytes that left this host, Ethernet headers included."""
        text = command(*self.inside(host, "ip", "-s", "-j", "link", "show", self.ports[host]))
        return json.loads(text)[0]["stats64"]["tx"]["bytes"]

    def sent_again(self, host):
        """TCP segments that were sent more than once, and all of them."""
        names, values = [line.split()[1:] for line in command(*self.inside(host, "cat", "/proc/net/snmp")).splitlines() if line.startswith("Tcp:")]
        tcp = dict(zip(names, map(int, values)))
        return tcp["RetransSegs"], tcp["OutSegs"]

    def close(self):
        for name in self.made:
            command("ip", "netns", "del", name, check=False)


def iperf_bytes_per_s(hosts, streams, seconds=5):
    if not shutil.which("iperf3"):
        return None
    server = subprocess.Popen(hosts.inside(1, "iperf3", "-s", "-1"), stdout=subprocess.DEVNULL)
    try:
        for _ in range(50):
            done = subprocess.run(hosts.inside(0, "iperf3", "-c", B, "-P", streams, "-t", seconds, "-J"), capture_output=True, text=True)
            end = json.loads(done.stdout or "{}").get("end") or {}
            if "sum_received" in end:
                return end["sum_received"]["bits_per_second"] / 8
            threading.Event().wait(0.1)
        return None
    finally:
        server.kill()
        server.wait()


class Part:
    def __init__(self, words):
        self.process = subprocess.Popen([*map(str, words), "--json"], stdout=subprocess.PIPE, text=True)

    def events(self):
        for line in self.process.stdout:
            yield json.loads(line)


def measure(o, hosts, scratch, stack):
    target = f"vllm:tp={o.tp},replicas={o.replicas}"
    plan = json.loads(command(o.refit, "plan", "--model", o.model, "--from", o.source, "--to", target, "--json"))
    sources = len({link["from"] for link in plan["links"]})
    rate = iperf_bytes_per_s(hosts, sources)
    keys = scratch / "keys"
    command(o.refit, "keygen", "--out", keys, "--sources", sources, "--replicas", o.replicas, "--target-ranks", o.tp)

    def start(host, *words):
        part = Part(hosts.inside(host, o.refit, *words))
        stack.callback(part.process.wait)
        stack.callback(part.process.kill)
        return part

    hub = start(0, "coordinator", "--keys", keys, "--journal", scratch / "journal", "--listen", A, "--until-step", o.steps)
    events = hub.events()
    address = next(e for e in events if e["event"] == "ADDR")["address"]
    member = [address, "--keys", keys, "--model", o.model, "--security-bulk", o.security_bulk]
    trainers = [start(0, "publish", *member, "--advertise", A, "--source", o.source, "--steps", o.steps, "--rank", r) for r in range(sources)]
    engines = [start(1, "serve", *member, "--advertise", B, "--target", target, "--replica", i, "--until-step", o.steps, "--check") for i in range(o.replicas)]
    for part in trainers + engines:
        threading.Thread(target=lambda p=part: [None for _ in p.events()], daemon=True).start()
    versions, before, back, again = [], hosts.sent(0), hosts.sent(1), hosts.sent_again(0)
    for event in events:
        if event["event"] == "ADDR" or event["event"] != "round":
            continue
        now = hosts.sent(0)
        versions.append({"version": event["version"], "step": event["step"], "outcome": event["outcome"], "proof": event["proof"], "seconds": event["seconds"],
                         "pause_seconds": event["pause_seconds"], "link_bytes": now - before})
        before = now
        if event["outcome"] != "committed":
            raise RuntimeError(f"a version did not come through: {event['error']}")
    again = [b - a for a, b in zip(again, hosts.sent_again(0))]
    codes = [p.process.wait(timeout=PATIENCE_S) for p in [hub, *trainers, *engines]]
    if any(codes):
        raise RuntimeError(f"a process failed: {codes}")
    return {"model": o.model, "source": o.source, "target": target, "security_bulk": o.security_bulk, "link": o.rate, "mtu": o.mtu, "offload": not o.no_offload, "plan_bytes": plan["bytes_moved"],
            "iperf3_bytes_per_s": rate, "backward_bytes": hosts.sent(1) - back, "segments_sent_again": again[0], "segments": again[1], "versions": versions}


def show(r):
    bound = r["plan_bytes"]
    print(f"{r['model']}: {r['source']} -> {r['target']}, security.bulk {r['security_bulk']}, link {r['link']} (tbf), MTU {r['mtu']}, {'large packets' if r['offload'] else 'a frame a packet'}")
    print(f"plan: {bound / 1e6:.1f} MB must cross the link a version; where each frame is counted, it carries {r['mtu'] - 52} of {r['mtu'] + 14} bytes: x {(r['mtu'] + 14) / (r['mtu'] - 52):.4f} at best")
    rate = r["iperf3_bytes_per_s"]
    print(f"iperf3 on this link: {rate * 8 / 1e6:.0f} Mb/s, so {bound / rate:.2f} s for these bytes" if rate else "iperf3 is missing: no rate to compare with")
    for v in r["versions"]:
        beside = f" = {v['seconds'] * rate / bound:.3f} x bytes / iperf3" if rate else ""
        print(f"version {v['version']} step {v['step']}{' (re-read)' if v['proof'] else '          '}: link {v['link_bytes'] / 1e6:.1f} MB = {v['link_bytes'] / bound:.4f} x the plan; {v['seconds']:.2f} s{beside}; pause {v['pause_seconds'] * 1e3:.0f} ms")
    print(f"TCP sent {r['segments_sent_again']} of {r['segments']} segments again ({100 * r['segments_sent_again'] / r['segments']:.2f} %)")
    print(f"the other way: {r['backward_bytes'] / 1e6:.1f} MB in all")


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("refit")
    p.add_argument("--rate", default="1gbit")
    p.add_argument("--model", default="smollm2-135m")
    p.add_argument("--source", default="fsdp=2")
    p.add_argument("--replicas", type=int, default=4)
    p.add_argument("--tp", type=int, default=1)
    p.add_argument("--steps", type=int, default=3)
    p.add_argument("--security-bulk", default="mac")
    p.add_argument("--mtu", type=int, default=1500)
    p.add_argument("--no-offload", action="store_true")
    p.add_argument("--json", action="store_true")
    o = p.parse_args()
    o.refit = str(pathlib.Path(o.refit).resolve())
    try:
        hosts = Hosts(o.rate, o.mtu, not o.no_offload)
    except (RuntimeError, OSError) as e:
        print(f"skipped: two network namespaces can't be made here: {e}")
        return 0
    with contextlib.ExitStack() as stack:
        stack.callback(hosts.close)
        scratch = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="refit-two-hosts-")))
        report = measure(o, hosts, scratch, stack)
        print(json.dumps(report)) if o.json else show(report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
