#!/usr/bin/env python3
"""The page of a run: page.py peers.json FOLDER writes peers.json, peers.md and its plots there."""

import json
import pathlib
import sys

import plots
from results import Results, figure

DENSE = {  # label, link, what moves the bytes
    "torch_shm": ("torch, shared memory", "memory", "trainer's weights as torch tensors in shared memory, `copy_` slice by slice"),
    "refit_shm": ("Refit, shm", "memory", "sealed shared memory, staged under digests, committed"),
    "ray": ("Ray object store", "memory", "`ray.put` of each trainer's shards, `ray.get` maps them, slices copied"),
    "nixl": ("NIXL, UCX tcp,sm", "memory", "columns packed, reads of registered memory; UCX may use shared memory"),
    "refit_tcp": ("Refit, tcp", "tcp", "security.bulk: none, 4 MiB buckets, 2 connections a pair"),
    "refit_tcp_mac": ("Refit, tcp with mac", "tcp", "the same, every byte authenticated"),
    "gloo_exact": ("gloo, exact pieces", "tcp", "batched isend/irecv of exactly what each pair shares"),
    "nixl_tcp": ("NIXL, UCX tcp", "tcp", "columns packed, reads over TCP only"),
    "mooncake_tcp": ("Mooncake, TCP", "tcp", "columns packed, 512 reads a call"),
    "gloo_gather": ("gloo, gather + broadcast", "tcp", "what frameworks do: all_gather per tensor, buckets of 512 MiB broadcast, cut at the engine"),
    "torchstore": ("torchstore", "tcp", "one process puts and gets whole shards through the storage actor"),
}
CODECS = {"nemo": "NeMo-like", "slime_xor": "slime-like, xor", "slime_overwrite": "slime-like, overwrite", "verl": "verl-like"}
QUANTISE = {"fp8_block": ("FP8, blocks of 128 × 128", "quantize.fp8_block"), "fp8_row": ("FP8, a scale a row", "quantize.fp8_channel"),
            "mxfp8": ("MXFP8, 32 elements", "quantize.mxfp8")}  # fmt: skip
DENSITIES = ("0.1%", "1%", "3%", "5%")
BUSY = 1.0


def number(value, digits=3):
    return "–" if value is None else f"{value:.{digits}g}" if abs(value) < 1000 else f"{value:,.0f}"


def spread(f, digits=3):
    return "–" if f is None else f"{number(f.median, digits)} ({number(f.low, digits)}–{number(f.high, digits)})"


def ratio(a, b):
    """Of two medians."""
    return a.median / b.median if a and b and b.median else None


def verdict(times):
    return "–" if times is None else f"{number(times)} ×" if times >= 1 else f"**{number(times)} ×: Refit loses**"


def table(head, rows):
    return ["| " + " | ".join(head) + " |", "|" + "---|" * len(head), *("| " + " | ".join(r) + " |" for r in rows), ""]


def _parts(said):
    rows = said.get("rows")
    return rows.items() if isinstance(rows, dict) else []


class Page:
    def __init__(self, document):
        self.r, self.d, self.plots = Results(document), document, {}

    def commands(self, *rows):
        lines = [c for c in (self.r.command(row) for row in rows) if c]
        return ["```", *lines, "```", ""] if lines else []

    def plot(self, name, svg, alt):
        if svg is None:
            return []
        self.plots[name] = svg
        return [f"![{alt}]({name})", ""]

    def failures(self, *beginnings):
        out = []
        for row in self.r.rows:
            reasons = self.r.reasons(row)
            if reasons and row.startswith(beginnings):
                count = f"in {len(reasons)} of {len(self.r.rows[row]['passes'])} passes"
                out.append(f"- `{row}` has no figure {count}: {reasons[0]}")
            if row.startswith(beginnings):  # programs with several rows
                parts = {(name, part["error"]) for p in self.r.passes(row) for name, part in _parts(p) if "error" in part}
                out += [f"- `{row}`, {name}: {reason}" for name, reason in sorted(parts)]
        return [*out, ""] if out else []

    def head(self):
        m, load, o = self.d["machine"], self.d["load"], self.d["options"]
        versions = ", ".join(f"{n} {v}" for n, v in sorted(self.d["versions"].items(), key=lambda i: i[0].lower()))
        out = ["# Beside peers: the same work, one run", ""]
        if o.get("quick") or load["start"][0] > BUSY:
            why = "a quick run of small sizes" if o.get("quick") else f"a busy machine (load average {load['start'][0]} at the start)"
            out += [f"**Figures of {why}: they say little.**", ""]
        out += [
            f"{m['processor']}, {m['cores']} cores ({', '.join(m['flags'])}), {m['memory_gib']} GiB, {m['system']}, Python {m['python']}, huge pages "
            f"`{m['huge_pages']}` (shared memory `{m['shared_huge_pages']}`). {self.d['started']}, {self.d['seconds'] / 60:.0f} minutes; "
            f"load average "
            f"{load['start'][0]} at the start, {load['end'][0]} at the end. {versions}.",
            "",
            f"`make bench-peers`, which is `{self.d['command']}`: passes over all rows: {o['passes']}; timed repeats of a row in each, after "
            f"a warm-up: {o['repeats']}; "
            "slow drift so meets all rows alike. Figures are medians over all repeats of all passes, in brackets the smallest and the "
            "largest. GB is 1e9 bytes. "
            "Everything lies in [peers.json](peers.json); the commands are those of one pass.",
            "",
        ]
        return out

    def ceilings(self):
        names = {"memcpy": "memcpy, private memory, huge pages asked for", "memfd_memcpy": "memcpy, memfd → private memory",
                 "memfd_streaming": "streaming copy, memfd → private memory", "scan_two": "reading two streams (GB/s of one)"}  # fmt: skip
        rows = [[label, *(spread(self.r.figures("ceilings", f"{n}{t}")) for t in (1, 2))] for n, label in names.items()]
        rows.append(["bare loopback sockets, 4 and 8 connections", *(spread(self.r.figures("ceilings", f"sockets{t}")) for t in (4, 8))])
        return ["## Ceilings of this run", "", *table(["GB/s", "1 thread", "2 threads"], rows), *self.failures("ceilings"), *self.commands("ceilings")]

    def copy_ceiling(self):
        """The best copy memfd → arena, two threads."""
        found = [f for f in (self.r.figures("ceilings", f"memfd_{w}2") for w in ("memcpy", "streaming")) if f]
        return max(found, key=lambda f: f.median) if found else None

    def socket_ceiling(self):
        found = [f for f in (self.r.figures("ceilings", f"sockets{t}") for t in (4, 8)) if f]
        return max(found, key=lambda f: f.median) if found else None

    def dense(self):
        said = [p for n in DENSE for p in self.r.passes(f"dense.{n}")]
        if not said:
            return self.failures("dense.")
        useful = said[0]["useful_bytes"] / 1e9
        walls = {n: self.r.figures(f"dense.{n}", "walls_s") for n in DENSE}
        moved = {n: self.r.figures(f"dense.{n}", "transfer_s") for n in DENSE}
        out = [
            "## Dense: 4 trainer ranks to 2 rollout ranks", "",
            f"A Llama-like bf16 model of {said[0]['layers']} layers, {useful:.2f} GB useful, rows over 4 trainer processes (`fsdp=4`) to "
            f"`vllm:tp=2`, 6 processes, one thread each, "
            "one machine. The clock runs from the first trainer's start to the last rollout rank's end; plans, connections and registration "
            "are outside. Before each repeat "
            "every element changes; after it every rollout rank checks every byte it holds: a row with a wrong byte anywhere has no figure.",
            "",
            "What a row does is not the same: peers' bytes lie in place when they are done, unchecked, and a death on the way leaves a "
            "mixture. Refit's *whole sync* digests the "
            "source, moves, proves and commits from a second copy while the old version serves; *transfer* is its middle part (the slowest "
            "rank's staging, digests of what arrives "
            "among it), which is what the peers do. Both are set against every peer on the same kind of link.",
            "",
        ]  # fmt: skip
        for link, title, ceiling, words in (
            ("memory", "Within one host", self.copy_ceiling(), "best copy memfd → private memory, 2 threads"),
            ("tcp", "Over loopback TCP", self.socket_ceiling(), "bare sockets"),
        ):
            names = [n for n in DENSE if DENSE[n][1] == link]
            peers = [n for n in names if not n.startswith("refit") and walls[n]]
            best = min(peers, key=lambda n: walls[n].median) if peers else None
            rows, drawn = [], []
            for n in sorted(names, key=lambda n: walls[n].median if walls[n] else 1e9):
                w = walls[n]
                if not w:
                    rows.append([DENSE[n][0], "–", "–", "–", "–", DENSE[n][2]])
                    continue

                def line(label, f, n=n):
                    rate = useful / f.median
                    rows.append([label, spread(f), number(rate), number(rate / ceiling.median if ceiling else None, 2),
                                 number(self.r.figures(f"dense.{n}", "cpu_s").median) if f is walls[n] else "–",
                                 DENSE[n][2] if f is walls[n] else "staging only"])  # fmt: skip

                if moved[n]:
                    line(f"**{DENSE[n][0]}: transfer**", moved[n])
                    drawn.append((f"{DENSE[n][0]}: transfer", *moved[n][:3], True))
                line(f"**{DENSE[n][0]}: whole sync**" if moved[n] else DENSE[n][0], w)
                drawn.append((f"{DENSE[n][0]}: whole sync" if moved[n] else DENSE[n][0], *w[:3], bool(moved[n])))
            out += [f"### {title}", "", *table(["row", "seconds", "GB/s", f"÷ {words}", "CPU s", "how"], rows)]
            for n in names:
                if n.startswith("refit") and walls[n]:
                    shares = [spread(self.r.figures(f"dense.{n}", key)) for key in ("publish_s", "transfer_s", "pause_s")]
                    out += [f"{DENSE[n][0]}: digest of the source {shares[0]} s, transfer {shares[1]} s, pause (commit into the live weights) {shares[2]} s.", ""]
                    versus = [[DENSE[p][0], verdict(ratio(walls[p], moved[n])), verdict(ratio(walls[p], walls[n]))] for p in sorted(peers, key=lambda p: walls[p].median)]
                    out += table([f"time of the peer ÷ {DENSE[n][0]}", "transfer", "whole sync"], versus) if versus else []
            if best:
                out += [f"The best peer here is {DENSE[best][0]}.", ""]
            drawn.sort(key=lambda row: row[1])
            out += self.plot(f"peers-dense-{link}.svg", plots.bars(f"{title}: {useful:.2f} GB, fsdp=4 to vllm:tp=2", "seconds", drawn, log=True), f"Seconds of a dense refit, {title.lower()}")
        return out + self.failures("dense.") + self.commands(*(f"dense.{n}" for n in DENSE))

    def benches(self):
        rows = []
        for row, label in (("refit.shm", "shm"), ("refit.tcp", "tcp"), ("refit.transpose", "transpose")):
            for said in self.r.passes(row)[:1]:
                for b in said["rows"]:
                    if b["ceiling"]:
                        name = b["name"]
                        rows.append([f"`{name}`", *(spread(self.r.bench(row, name, what)) for what in ("value", "ceiling")), spread(self.r.bench(row, name, "ratio"), 2)])
        if not rows:
            return self.failures("refit.shm", "refit.tcp", "refit.transpose")
        return [
            "## Refit's own benches of the same passes", "",
            "The same work on a model of their own (2.54 GB unless small), against ceilings that they measure between their rounds: a copy "
            "memfd → arena, bare sockets.", "",
            *table(["row", "GB/s", "ceiling", "ratio"], rows), *self.failures("refit.shm", "refit.tcp", "refit.transpose"),
            *self.commands("refit.shm", "refit.tcp", "refit.transpose"),
        ]  # fmt: skip

    def delta(self):
        out = [
            "## Deltas", "",
            "Random bf16 bits, changed elements at random places by ±1 to ±3 in their integer view, one thread. Encode and apply in GB/s of "
            "weights covered; *over the bound*: bytes "
            "of the messages ÷ order-0 entropy of positions and differences. Peers' codecs are ours, written after their descriptions "
            "(whole tensors of 16 MiB; "
            "comparing by torch as in theirs); their hashing, `torch.save` and sockets are left out. Refit's bench makes its own bits by "
            "the same recipe. Each is applied and "
            "compared whole, peers in every repeat, Refit once a pass.", "",
        ]  # fmt: skip
        for density in DENSITIES:
            row = f"delta.{density}"
            ours = {what: self.r.bench("refit.delta", f"delta.{what}.{density}") for what in ("bytes", "encode", "apply")}
            rows, drawn = [], []
            if ours["encode"]:
                rows.append(["**Refit**", spread(ours["encode"]), "–", spread(ours["apply"]), "–", number(ours["bytes"].median, 4), "–"])
                drawn.append(("Refit", *ours["encode"][:3], True))
            for codec, label in CODECS.items():
                encode, apply = (self.r.figures(row, "rows", codec, f"{what}_gbps") for what in ("encode", "apply"))
                if not encode:
                    continue
                said = self.r.passes(row)
                over = figure([p["rows"][codec]["wire_bytes"] / p["bound_bytes"] for p in said if "error" not in p["rows"][codec]])
                rows.append([label, spread(encode), verdict(ratio(ours["encode"], encode)), spread(apply),
                             verdict(ratio(ours["apply"], apply)), number(over.median, 4), verdict(over.median / ours["bytes"].median if ours["bytes"] else None)])  # fmt: skip
                drawn.append((label, *encode[:3], False))
            if not rows:
                continue
            out += [f"### {density} changed", "", *table(["codec", "encode", "Refit ÷ it", "apply", "Refit ÷ it", "over the bound", "its bytes ÷ Refit's"], rows)]
            drawn.sort(key=lambda r: -r[1])
            scan = self.r.figures("ceilings", "scan_two1")
            name = f"peers-delta-{density.rstrip('%').replace('.', '_')}.svg"
            mark = (scan.median, "reading old and new") if scan else None
            out += self.plot(name, plots.bars(f"Delta encode at {density} changed", "GB/s of weights", drawn, mark=mark), f"GB/s of delta encode at {density}")
        return out + self.failures("delta.", "refit.delta") + self.commands(*(f"delta.{d}" for d in DENSITIES), "refit.delta")

    def quantise(self):
        rows, drawn = [], []
        for key, (label, bench) in {**QUANTISE, "transpose": ("transpose, 4096 × 11008", "gather.transpose")}.items():
            source = "refit.gather" if key == "transpose" else "refit.quantize"
            ours = self.r.bench(source, bench)
            if ours:
                rows.append([f"**Refit**, {label}", spread(ours), spread(self.r.bench(source, bench, "ratio"), 2), "–"])
                drawn.append((f"Refit, {label}", *ours[:3], True))
            for mode in ("torch", "numpy") if key == "transpose" else ("compile", "eager"):
                f = self.r.figures("quantise.torch", "rows", f"{key}.{mode}", "gbps")
                if f:
                    name = {"compile": "torch.compile", "eager": "torch eager", "torch": "torch", "numpy": "NumPy"}[mode]
                    rows.append([f"{name}, {label}", spread(f), number(ratio(f, self.r.figures("ceilings", "memcpy1")), 2), verdict(ratio(ours, f))])
                    drawn.append((f"{name}, {label}", *f[:3], False))
        if not rows:
            return self.failures("quantise.", "refit.quantize", "refit.gather")
        return [
            "## Quantisation and transposes", "",
            "bf16 in, codes and scales out, one thread, in GB/s of input. Compiled torch must equal eager bit for bit after every repeat; "
            "Refit's bench compares its first rows with its "
            "scalar reference (its tests compare all). torch's transpose is `t().contiguous()`.", "",
            *table(["what", "GB/s", "÷ memcpy, 1 thread", "Refit ÷ it"], rows),
            *self.plot("peers-quantise.svg", plots.bars("bf16 to FP8, and transposes, one thread", "GB/s of input", drawn), "GB/s of quantisation and transposes"),
            *self.failures("quantise.", "refit.quantize", "refit.gather"),
            *self.commands("quantise.torch", "refit.quantize", "refit.gather"),
        ]  # fmt: skip

    def planner(self):
        rows, drawn = [], []
        for world in ("qwen3-30b-a3b", "deepseek-v3"):
            theirs = self.r.passes(f"plan.{world}.megatron")
            whole = [p for p in theirs if not p["extrapolated"]] or theirs
            ours_world = self.r.figures(f"plan.{world}.refit", "seconds")
            for who, label in (("rank", "a target rank's plan"), ("source_rank", "a trainer rank's plan")):
                f = figure([p["rows"][who]["whole_s"] for p in whole])
                ours = self.r.bench("refit.plan", f"plan.{world}.{who}")
                if f:
                    guess = " (scaled from {} of 256 destinations)".format(whole[0]["ranks"]) if whole[0]["extrapolated"] else ""
                    drawn.append((f"Megatron, {world}, {'target' if who == 'rank' else 'trainer'}", *f[:3], False))
                    rows.append([world, f"megatron-core, {label}{guess}", spread(f), verdict(ratio(f, ours or ours_world)) + ("" if ours else ", Refit's whole world")])
                if ours:
                    drawn.append((f"Refit, {world}, {'target' if who == 'rank' else 'trainer'}", *ours[:3], True))
                    rows.append([world, f"**Refit**, {label}", spread(ours), "–"])
            if ours_world:
                drawn.append((f"Refit, {world}, world", *ours_world[:3], True))
                rows.append([world, "**Refit**, the world's: every rank's pieces, and the proof", spread(ours_world), "–"])
        if not rows:
            return self.failures("plan.", "refit.plan")
        return [
            "## Planning", "",
            "Trainer PP16 × EP16 (256 ranks) to TP32 × DP8 (256 ranks), seconds. Megatron's planner replays the whole schedule on every "
            "rank to keep its own part; its files come from the wheel as "
            "they are, with empty packages in place of the `__init__` files, which import GPU extras; parameter metadata is synthetic, of "
            "Megatron's own names, made outside the clock. "
            "What a target rank receives is checked to cover it exactly. Refit's layouts come from rules and a checkpoint's names (q, k, v "
            "and experts apart), so that counts of "
            "pieces differ; DeepSeek-V3's pipeline is `first=4,last=1` there.", "",
            *table(["model", "what", "seconds", "its time ÷ Refit's"], rows),
            *self.plot("peers-plan.svg", plots.bars("Planning 256 to 256 ranks", "seconds", drawn, log=True), "Seconds of planning"), *self.failures("plan.", "refit.plan"),
            *self.commands(*(f"plan.{w}.{p}" for w in ("qwen3-30b-a3b", "deepseek-v3") for p in ("megatron", "refit")), "refit.plan"),
        ]  # fmt: skip

    def text(self):
        parts = [self.head(), self.dense(), self.benches(), self.delta(), self.quantise(), self.planner(), self.ceilings()]
        return "\n".join(line for part in parts for line in part)


def write(document, folder):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    made = Page(document)
    (folder / "peers.md").write_text(made.text())
    (folder / "peers.json").write_text(json.dumps(document, indent=1) + "\n")
    for name, svg in made.plots.items():
        (folder / name).write_text(svg)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    write(json.loads(pathlib.Path(sys.argv[1]).read_text()), sys.argv[2])
