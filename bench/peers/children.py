"""Programs of a run: each ends by its deadline, and nothing that it started outlives it."""

import ctypes
import json
import os
import pathlib
import signal
import subprocess
import time

_PR_SET_CHILD_SUBREAPER = 36


def adopt():
    """Orphans of our programs become our own children, so that reap() finds them whatever session they moved to."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def _children():
    me, out = os.getpid(), []
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended meanwhile
        if int(fields[1]) == me:
            out.append(int(stat.parent.name))
    return out


def reap(seconds=20):
    """Ends what is left below this process; a killed parent's children come up to us and follow. Returns how many there were."""
    deadline, ended = time.monotonic() + seconds, set()
    while (left := _children()) and time.monotonic() < deadline:
        for pid in left:
            ended.add(pid)
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            except (ProcessLookupError, ChildProcessError):
                pass
    return len(ended)


def run(command, seconds, env=None):
    """The JSON object that a program prints last, or {"error": reason}."""
    environment = {**os.environ, **(env or {})}
    program = subprocess.Popen(
        [str(c) for c in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace", env=environment
    )  # fmt: skip
    try:
        out, err = program.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        program.kill()
        reap()
        program.stdout.close()
        program.stderr.close()
        program.wait(20)
        return {"error": f"deadline of {seconds:g} s"}
    finally:
        reap()
    for line in reversed(out.splitlines()):
        if line.startswith("{"):
            try:
                said = json.loads(line)
            except ValueError:
                break
            if program.returncode and said.get("errors"):  # as the command line of Refit says it
                return {"error": str(said["errors"][0].get("message"))[:400]}
            return said
    last = [line for line in err.strip().splitlines() if line.strip()][-1:]
    return {"error": f"exit code {program.returncode}: {last[0].strip() if last else 'no word'}"[:400]}
