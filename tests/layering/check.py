"""Reads every #include under src/, include/, cli/, bench/ and python/ and fails on an arrow that the house does not allow.

Usage: check.py REPOSITORY. Rules: a room includes only rooms below it (transitively allowed pairs are spelled out),
another room only through its front header <room>/<room>.h, and vendor headers only where the table allows them; the public headers include the standard library and
each other, the Python module sees nothing but them.
"""
import pathlib
import re
import sys

# room -> rooms whose front header it may include (the arrows of the architecture, closed transitively).
ARROWS = {
    "core": set(),
    "kernel": {"core", "memory"},
    "memory": {"core"},
    "codec": {"core", "memory", "kernel"},
    "store": {"core", "memory", "kernel", "codec"},
    "wire": {"core"},
    "model": {"core"},
    "files": {"core", "memory", "model"},
    "plan": {"core", "model"},
    "transport": {"core", "memory"},
    "engine": {"core", "memory", "model"},
    "install": {"core", "memory", "kernel", "codec", "wire"},
    "coordinator": {"core", "wire", "transport", "memory"},
}
ARROWS["agent"] = set(ARROWS)
ARROWS["sync"] = set(ARROWS)
ARROWS["observe"] = set(ARROWS)
ARROWS["facade"] = set(ARROWS)
# Prefix of a vendor header -> rooms (and tops) whose *sources* may include it. Movers are named transport/<mover>.
VENDOR = {
    "xxhash.h": {"core"}, "xxh_x86dispatch.h": {"core"},
    "hwy/": {"kernel", "codec"},
    "prometheus/": {"observe"}, "civetweb.h": {"observe"},
    "nlohmann/": {"observe", "store", "model", "files", "sync", "cli", "bench", "coordinator", "agent"},
    "flatbuffers/": {"wire"},
    "zmq.hpp": {"transport/zmq"}, "zmq.h": {"transport/zmq", "transport/zmq_sparse"}, "openssl/": {"transport/tcp", "store"}, "curl/": {"store"}, "pugixml.hpp": {"store"},
    "yaml-cpp/": {"sync"},
    "CLI/": {"cli"},
    "fmt/": {"cli"}, "spdlog/": {"cli"}, "nanobind/": {"python"},
}
# What stands on the public interface alone.
PUBLIC = {"include": ("refit/",), "python": ("refit/", "native/", "nanobind/")}
INCLUDE = re.compile(r'^\s*#\s*include\s+["<]([^">]+)[">]')


def place(path, root):
    parts = path.relative_to(root).parts
    if parts[0] != "src":
        return parts[0], parts[0]
    room = parts[1]
    mover = f"{room}/{parts[2]}" if room == "transport" and len(parts) > 3 else room
    return room, mover


def problems(root):
    rooms = {p.name for p in (root / "src").iterdir() if p.is_dir()}
    for path in sorted(p for top in ("src", "include", "cli", "bench", "python") for p in (root / top).rglob("*") if p.suffix in (".h", ".cpp", ".cc", ".cu")):
        room, mover = place(path, root)
        where = path.relative_to(root)
        for number, line in enumerate(path.read_text().splitlines(), 1):
            match = INCLUDE.match(line)
            if not match:
                continue
            name = match.group(1)
            head = name.split("/")[0]
            standard = "/" not in name and not name.endswith(".h")
            if room in PUBLIC and not standard and not name.startswith(PUBLIC[room]):
                yield f"{where}:{number}: {room} may not include {name}"
            if head in rooms and "/" in name and head != room:
                if name != f"{head}/{head}.h":
                    yield f"{where}:{number}: {name} is not the front header of {head}"
                if room in rooms and head not in ARROWS.get(room, set()):
                    yield f"{where}:{number}: {room} may not include {head}"
            for prefix, allowed in VENDOR.items():
                if name == prefix or (prefix.endswith("/") and name.startswith(prefix)):
                    if room not in allowed and mover not in allowed:
                        yield f"{where}:{number}: {name} does not belong in {mover}"
                    if path.suffix == ".h" and not path.name.endswith("-inl.h") and room in rooms:
                        yield f"{where}:{number}: vendor header {name} in a header"


def main():
    root = pathlib.Path(sys.argv[1]).resolve()
    found = list(problems(root))
    print("\n".join(found) if found else "layering holds")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
