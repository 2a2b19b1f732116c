"""refit plan --links, --case and --html: figures against the plan's own matrix, the page's content, refusals.

Usage: page.py REFIT_BINARY
"""
import html.parser
import json
import pathlib
import subprocess
import sys
import tempfile

REFIT = sys.argv[1]
PLAN = ["plan", "--model", "llama-3.1-8b@layers=1", "--from", "fsdp=4", "--to", "vllm:tp=2,replicas=2"]
GBIT = 1e9 / 8


def run(*arguments):
    return subprocess.run([REFIT, *map(str, arguments)], capture_output=True, text=True, timeout=60)


def asked(*arguments):
    done = run(*arguments, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


class Page(html.parser.HTMLParser):
    """Titles of cells, classes of rectangles, and whatever would be fetched."""

    def __init__(self, text):
        super().__init__()
        self.text, self.cells, self.bars, self.fetched, self.titles, self.inside = text, 0, 0, [], [], None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        a = dict(attributes)
        self.cells += tag == "rect" and a.get("class") == "c"
        self.bars += tag == "rect" and a.get("class") in ("o", "i")
        self.fetched += [a[k] for k in ("src", "href") if k in a] + [tag] * (tag in ("script", "link", "iframe", "img"))
        self.inside = tag

    def handle_data(self, data):
        if self.inside == "title":
            self.titles.append(data)


def cost(scratch):
    table = scratch / "links.json"
    table.write_text(json.dumps({"nic_gbps_per_rank": 100, "efficiency": 0.8, "latency_us": 50}))
    plan = asked(*PLAN, "--links", table)
    received, sent = {}, {}
    for link in plan["links"]:
        sent[link["from"]] = sent.get(link["from"], 0) + link["bytes"]
        received[link["to"]] = received.get(link["to"], 0) + link["bytes"]
    if plan["links_by"] == "rank":
        busiest = max(*sent.values(), *received.values())
        assert abs(plan["cost"]["bound_seconds"] - busiest / (100 * GBIT)) < 1e-9, plan["cost"]
        assert plan["cost"]["busiest"]["bytes"] == busiest
    assert plan["cost"]["expected_seconds"] > plan["cost"]["bound_seconds"] / 0.8
    assert plan["cost"]["bytes_network"] + plan["cost"]["bytes_local"] == plan["bytes_moved"]
    twice = scratch / "twice.json"
    twice.write_text(json.dumps({"nic_gbps_per_rank": 200}))
    assert abs(asked(*PLAN, "--links", twice)["cost"]["bound_seconds"] * 2 - plan["cost"]["bound_seconds"]) < 1e-9


def page(scratch):
    table, out = scratch / "links.json", scratch / "page.html"
    table.write_text(json.dumps({"nic_gbps_per_rank": 100}))
    plan = asked(*PLAN, "--links", table, "--html", out)
    shown = Page(out.read_text())
    assert not shown.fetched and "http" not in shown.text.replace("<!doctype html>", ""), shown.fetched
    sources, targets = ({link[k] for link in plan["links"]} for k in ("from", "to"))
    assert shown.cells == len(sources) * len(targets), (shown.cells, plan["links"])
    assert shown.bars == min(48, len(plan["cost"]["ports"]))
    for link in plan["links"]:
        assert any(f"({link['bytes']} bytes)" in t for t in shown.titles), link
    assert "prefers-color-scheme:dark" in shown.text and plan["digest"] in shown.text and "<svg" in shown.text
    plain = scratch / "plain.html"
    assert run(*PLAN, "--html", plain).returncode == 0 and "How long each port" not in plain.read_text()


def published(scratch):
    out = scratch / "case.html"
    plan = asked("plan", "--case", "qwen3-235b", "--html", out)
    assert plan["published"]["seconds"].startswith("3.49") and "vLLM blog" in plan["published"]["source"]
    assert 0 < plan["cost"]["bound_seconds"] < plan["cost"]["expected_seconds"] < 3.49, plan["cost"]
    assert plan["published"]["assumed"] and "vLLM blog" in out.read_text()


def refused(scratch):
    table = scratch / "links.json"
    for content, words in (("{}", "are both missing"), ('{"nic_gbps_per_rnak": 1}', "unknown key 'nic_gbps_per_rnak'"), ("[", "no JSON object"),
                           ('{"nic_gbps_per_rank": -1}', "nic_gbps_per_rank"), ('{"nic_gbps_per_rank": 1, "efficiency": 2}', "efficiency"),
                           ('{"nic_gbps_per_rank": "fast"}', "must be a number"), ('{"hosts": {"a": 0}}', "hosts.a")):
        table.write_text(content)
        done = run(*PLAN, "--links", table)
        assert done.returncode != 0 and words in done.stderr, (content, done.stderr)
    assert "no such file" in run(*PLAN, "--links", scratch / "none").stderr.lower()
    assert "known are deepseek-v3" in run("plan", "--case", "gpt").stderr
    assert "--case names model" in run(*PLAN, "--case", "kimi-k2").stderr
    assert "--html" in run(*PLAN, "--html", scratch / "none" / "x").stderr


for case in (cost, page, published, refused):
    with tempfile.TemporaryDirectory() as scratch:
        case(pathlib.Path(scratch))
    print(case.__name__, flush=True)
