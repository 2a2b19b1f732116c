"""What a figure belongs to: machine, versions, load."""

import json
import os
import pathlib
import platform
import subprocess


def load():
    return [round(x, 2) for x in os.getloadavg()]


def describe():
    def first(path, key):
        for line in pathlib.Path(path).read_text().splitlines():
            if line.startswith(key):
                return line.partition(":")[2].strip()
        return "unknown"

    def text(path):
        try:
            return pathlib.Path(path).read_text().strip()
        except OSError:
            return "unknown"

    return {
        "processor": first("/proc/cpuinfo", "model name"),
        "flags": [f for f in ("avx2", "avx512f", "avx512_vbmi2", "avx512_vnni") if f in first("/proc/cpuinfo", "flags").split()],
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(int(first("/proc/meminfo", "MemTotal").split()[0]) / 2**20, 1),
        "huge_pages": text("/sys/kernel/mm/transparent_hugepage/enabled"),
        "shared_huge_pages": text("/sys/kernel/mm/transparent_hugepage/shmem_enabled"),
        "system": f"{platform.system()} {platform.release().partition('-')[0]}",
        "python": platform.python_version(),
    }


def versions(python):
    """Of what an environment has installed."""
    script = "import importlib.metadata as m, json; print(json.dumps({d.metadata['Name']: d.version for d in m.distributions()}))"
    done = subprocess.run([str(python), "-c", script], stdout=subprocess.PIPE, text=True, timeout=60, check=True)
    return json.loads(done.stdout)


def commit(root):
    """Of the sources, with a + where they differ from it."""

    def git(*words):
        return subprocess.run(["git", "-C", str(root), *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=60).stdout.strip()

    return git("rev-parse", "--short", "HEAD") + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")
