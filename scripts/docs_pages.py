"""The pages that are printed from something else: docs/command-line.md from the command's own --help, docs/measured.md from
README's figures, each row with the command that measures it.

Usage: docs_pages.py REFIT [--write]. Without --write it fails where a page differs (a test runs that). docs/configuration.md
and docs/choose-a-transport.md are printed by `refit check --print-keys` and `--print-matrix`.
"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Beginning of a row of README's table -> what measures it. Each must be a command that `refit bench --help` lists.
BENCH = {"shm": "shm", "tcp": "tcp", "gather": "gather", "digest": "digest", "delta": "delta", "quantize": "quantize", "plan": "plan", "layout": "plan", "transpose": "transpose", "convert": "convert"}

ELSEWHERE = """
## Elsewhere
Figures on other pages, with what was measured and by which command beside them:

- a dense version against one as a delta, in time and bytes: [deltas](design/delta.md), `refit demo --transport tcp --encoding delta
  --steps 3`, `refit bench sparse`
- the delta codec by density and distribution: [deltas](design/delta.md), `refit bench delta --mib 512 --repeats 3`
- the digest beside a read and inside a copy: [the digest](design/digest.md), `refit bench digest`
- plans of large worlds: [the plan](design/plan.md), `refit bench plan`
- bytes and requests of a store: [the store](design/store.md), `refit publish --to file:///DIR --model qwen2.5-0.5b@layers=1 --steps 1 --json`
- TCP beside bare sockets, and over a link of 1 Gb/s: [tcp](../src/transport/tcp/README.md), `refit bench tcp`,
  `scripts/two_hosts.py build/release/cli/refit`
- mean reward of a training loop through its refits: [vLLM](guides/vllm.md), `examples/rl_loop.py --steps 30`

What other systems publish about themselves stands, with sources, in the [comparison](comparison.md); it was not measured here.
"""

# Read from the environment: every literal of the sources that is one, and what it does.
VARIABLES = {
    "REFIT_FORCE_ISA": "instruction set of the kernels, by a name that `refit --version` lists; one that this machine lacks is refused",
    "REFIT_NIXL_LIBRARY": "NIXL's C API (`libnixl_capi.so`), where it lies neither in the Python environment nor on the library path",
    "XDG_RUNTIME_DIR": "where private directories for sockets are made (`refit-…`), if it is an absolute path",
    "TMPDIR": "the same, without `XDG_RUNTIME_DIR`; else `/tmp`",
    "HOME": "where `~/.aws` lies",
    "AWS_PROFILE": "profile of the store ([order of search](guides/s3.md))",
    "AWS_SHARED_CREDENTIALS_FILE": "in place of `~/.aws/credentials`",
    "AWS_CONFIG_FILE": "in place of `~/.aws/config`",
    "AWS_ACCESS_KEY_ID": "credentials of the store, with the next one",
    "AWS_SECRET_ACCESS_KEY": "the secret; never printed",
    "AWS_SESSION_TOKEN": "of temporary credentials",
    "AWS_REGION": "region of the store",
    "AWS_DEFAULT_REGION": "the same, without `AWS_REGION`",
    "AWS_ENDPOINT_URL_S3": "server of the store",
    "AWS_ENDPOINT_URL": "the same, without `AWS_ENDPOINT_URL_S3`",
}


def help_of(refit, *path):
    done = subprocess.run([refit, *path, "--help"], capture_output=True, text=True, check=True, timeout=20)
    return done.stdout.replace(f"Usage: {refit} ", "Usage: refit ").rstrip()


def variables_of_sources():
    """Names of environment variables that stand as literals in the sources."""
    found = set()
    for path in (p for top in ("src", "cli", "bench") for p in (ROOT / top).rglob("*") if p.suffix in (".cpp", ".h")):
        found |= set(re.findall(r'"((?:REFIT|AWS|XDG)_[A-Z0-9_]+|HOME|TMPDIR)"', path.read_text()))
    return found


def subcommands(text):
    listed = re.search(r"^Subcommands:\n((?:  .*\n?)+)", text, re.M)
    return re.findall(r"^  ([a-z0-9_-]+) ", listed[1] + "\n", re.M) if listed else []


def command_line(refit):
    out = ["<!-- Generated: scripts/docs_pages.py REFIT --write -->", "# Command line", "",
           "What each command prints for `--help`. The exit code is 0 only on success; `--json` prints one object on stdout (or one",
           "object a line, where a command goes on), errors included ([errors](errors.md)). Layouts (SPEC) are explained under",
           "[concepts](concepts.md#layouts)."]

    def add(path, level):
        text = help_of(refit, *path)
        out.extend(["", "#" * level + " " + " ".join(("refit", *path)), "", "```", text, "```"])
        for name in subcommands(text):
            add((*path, name), min(level + 1, 4))

    add((), 2)
    out += ["", "## Environment", "", "Also read in training configurations: whatever `${oc.env:NAME,default}` names there.", "",
            "| variable | what it does |", "|---|---|", *(f"| `{name}` | {text} |" for name, text in VARIABLES.items())]
    return "\n".join(out) + "\n"


def figures():
    text = re.search(r"^## Figures\n(.*?)(?=^## )", (ROOT / "README.md").read_text(), re.S | re.M)[1].strip()
    before, table, after = re.match(r"(.*?)\n\n((?:\|[^\n]*\n)+)\n(.*)", text + "\n", re.S).groups()
    return before, [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in table.splitlines()], after


def measured(refit):
    before, rows, after = figures()
    known = subcommands(help_of(refit, "bench"))
    out = ["<!-- Generated: scripts/docs_pages.py REFIT --write, from README's figures -->", "# Measured", "",
           "Measured here, each by the command beside it, which prints it again on your machine together with its ceiling.", "",
           before, "", "| " + " | ".join([*rows[0], "command"]) + " |", "|---" * (len(rows[0]) + 1) + "|"]
    for row in rows[2:]:
        bench = BENCH.get(re.match(r"`(\w+)", row[0])[1])
        if bench not in known:
            sys.exit(f"README's figure {row[0]}: no command of `refit bench` is known to measure it (BENCH in scripts/docs_pages.py)")
        out.append("| " + " | ".join([*row, f"`refit bench {bench}`"]) + " |")
    return "\n".join([*out, "", after.replace("](docs/", "](").replace("](bench/", "](../bench/").replace("`docs/design/digest.md`", "[the digest](design/digest.md)").rstrip()]) + "\n" + ELSEWHERE


def main():
    refit, write = sys.argv[1], sys.argv[2:] == ["--write"]
    differs = bool(odd := variables_of_sources() ^ set(VARIABLES))
    if odd:
        print(f"environment variables that only the sources or only VARIABLES know: {sorted(odd)}")
    for name, text in (("command-line.md", command_line(refit)), ("measured.md", measured(refit))):
        page = ROOT / "docs" / name
        if page.exists() and page.read_text() == text:
            continue
        if write:
            page.write_text(text)
            print(f"written: docs/{name}")
        else:
            differs = True
            print(f"docs/{name} differs: scripts/docs_pages.py {refit} --write")
    return 1 if differs else 0


if __name__ == "__main__":
    sys.exit(main())
