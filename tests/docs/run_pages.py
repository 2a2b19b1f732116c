"""Runs what the pages tell a reader to run.

- Every `console` block of docs/: each `$ command` runs, in order, in a folder like the one that the page names; it must succeed,
  and print what the page shows, up to numbers and `…`.
- README's "Other commands" that need no network, with small files for their placeholders.
- Every other line `refit COMMAND …` in a fence of any page: the command and its options exist.

Usage: run_pages.py REPOSITORY REFIT PACKAGE (the built command; the folder that holds the built Python package).
"""
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

ROOT, REFIT, PACKAGE = (pathlib.Path(a).absolute() for a in sys.argv[1:4])
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.S | re.M)

# README's placeholders, and its commands that run here with them.
FILES = {"DIR": "tiny", "CONFIG.yaml": "../../examples/rl_loop.yaml", "IN": "tiny/model.safetensors", "BASE": "run/step-0/model.safetensors", "NEW": "run/step-1/model.safetensors"}
RUN = ("plan", "inspect", "convert", "check", "delta", "quantize", "keygen")


def shape(line):
    """A line without what differs from run to run: hexadecimal names, numbers, widths of columns."""
    line = re.sub(r"\b[0-9a-f]{8,}\b", "#", line)
    line = re.sub(r"-?\d+(\.\d+)?(e-?\d+)?", "#", line)
    return " ".join(line.split())


def matches(shown, printed):
    """Does the output have the lines of the page? A line `…` stands for any lines, `…` inside one for any text."""
    parts = ["".join(".*" if piece == "…" else re.escape(piece) for piece in re.split("(…)", shape(line))) for line in shown]
    pattern = "".join(r"(?:.*\n)*" if part == ".*" else part + r"\n" for part in parts)
    return re.fullmatch(pattern, "".join(shape(line) + "\n" for line in printed)) is not None


def commands(block):
    """[(command, lines shown)] of a console block."""
    found = []
    for line in block.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        else:
            found[-1][1].append(line)
    return found


def execute(command, folder):
    env = os.environ | {"PATH": f"{REFIT.parent}:{os.environ['PATH']}", "PYTHONPATH": str(PACKAGE), "TMPDIR": str(folder.parent.parent)}
    return subprocess.run(["bash", "-euc", command], cwd=folder, env=env, capture_output=True, text=True, timeout=120)


def place(home):
    """A folder that looks to the commands as build/try of a built tree does."""
    home.mkdir()
    for name in ("examples", ".cache"):
        (home / name).symlink_to(ROOT / name)
    folder = home / "build/try"
    folder.mkdir(parents=True)
    return folder


def run_consoles(scratch):
    count = 0
    for page in PAGES:
        folder = None
        for kind, block in FENCE.findall(page.read_text()):
            if kind != "console":
                continue
            folder = folder or place(scratch / page.stem)
            for command, shown in commands(block):
                done = execute(command, folder)
                printed = (done.stdout + done.stderr).splitlines()
                count += 1
                if done.returncode:
                    yield f"{page.name}: `{command}` exits with {done.returncode}:\n" + "\n".join(printed)
                elif not matches(shown, printed):
                    yield f"{page.name}: `{command}` prints otherwise than the page says:\n" + "\n".join(printed)
    if count < 10:
        yield f"only {count} commands in console blocks"


def run_readme(scratch):
    text = re.search(r"^## Other commands\n```\n(.*?)^```", (ROOT / "README.md").read_text(), re.S | re.M)[1]
    folder, count = place(scratch / "README-commands"), 0
    made = execute("python3 ../../examples/tiny_checkpoint.py tiny; python3 ../../examples/tiny_checkpoint.py run --steps 1", folder)
    assert made.returncode == 0, made.stderr
    for line in text.splitlines():
        words = shlex.split(line, comments=True)
        if words[1] not in RUN:
            continue
        count += 1
        command = shlex.join(f"out{count}" if word == "OUT" or before == "--out" else FILES.get(word, word) for before, word in zip(["", *words], words))
        done = execute(command, folder)
        if done.returncode:
            yield f"README.md: `{command}` exits with {done.returncode}: {done.stdout}{done.stderr}"
    if count < len(RUN):
        yield f"README.md: only {count} of its commands ran"


def help_of(known, *path):
    if path not in known:
        done = subprocess.run([REFIT, *path, "--help"], capture_output=True, text=True, timeout=20)
        known[path] = done.stdout if done.returncode == 0 else None
    return known[path]


def complaints(line, known):
    """What is wrong with one command line: an unknown command, an unknown option."""
    names = re.match(r"(?:refit )(\S+)(?: ([a-z]+(?:\|[a-z]+)*)(?= |$))?", line)
    for first in names[1].split("|"):
        top = help_of(known, first)
        if top is None:
            yield f"there is no command '{first}'"
            continue
        seconds = [s for s in (names[2] or "").split("|") if s] if "SUBCOMMAND" in top else []
        for second in seconds:
            if help_of(known, first, second) is None:
                yield f"`refit {first}` has no command '{second}'"
        text = top + "".join(help_of(known, first, s) or "" for s in seconds)
        for option in re.findall(r"(?<=[\s\[(])--[a-z][a-z-]*", line):
            if not re.search(rf"{option}(?![a-z-])", text):
                yield f"`refit {first}` has no option {option}"


def check_lines():
    known, count = {}, 0
    for page in PAGES:
        if page.name == "command-line.md":
            continue
        for kind, block in FENCE.findall(page.read_text()):
            for line in block.replace("\\\n", " ").splitlines():
                for command in re.split(r" {4,}(?=refit )", line.removeprefix("$ ").strip()):
                    if not re.match(r"refit [a-z]", command):
                        continue
                    count += 1
                    for problem in complaints(command.split("#")[0].rstrip(), known):
                        yield f"{page.relative_to(ROOT)}: `{command}`: {problem}"
    if count < 30:
        yield f"only {count} command lines were found"


def main():
    with tempfile.TemporaryDirectory(prefix="refit-pages-") as scratch:
        found = [*check_lines(), *run_consoles(pathlib.Path(scratch)), *run_readme(pathlib.Path(scratch))]
    print("\n".join(found) if found else "the pages' commands do what the pages say")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
