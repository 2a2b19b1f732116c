"""Ceilings of the machine in GB/s (1e9 bytes of one side): ceilings.py --bytes N --repeats K --build FOLDER. Works take turns, so that
noise meets all of them alike; each is checked once. Threads are pinned to one processor each: unpinned, two often share one."""

import argparse
import concurrent.futures
import ctypes
import hashlib
import json
import mmap
import os
import pathlib
import socket
import subprocess
import threading
import time

_CHUNK = 1 << 20
_DEADLINE_S = 60


def library(build):
    source = pathlib.Path(__file__).with_name("copy.c")
    so = pathlib.Path(build) / f"copy-{hashlib.sha1(source.read_bytes()).hexdigest()[:10]}.so"
    if not so.exists():
        so.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cc", "-O3", "-march=native", "-shared", "-fPIC", "-o", f"{so}.{os.getpid()}", source], check=True, timeout=60)
        os.replace(f"{so}.{os.getpid()}", so)
    out = ctypes.CDLL(str(so))
    out.copy_streaming.argtypes = out.scan_two.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    out.copy_streaming.restype, out.scan_two.restype = None, ctypes.c_uint64
    return out


class Buffer:
    """Mapped and touched; huge pages are asked for where the memory is private."""

    def __init__(self, count, shared=False):
        if shared:
            fd = os.memfd_create("ceiling")
            os.ftruncate(fd, count)
            self.map = mmap.mmap(fd, count)
            os.close(fd)
        else:
            self.map = mmap.mmap(-1, count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            self.map.madvise(mmap.MADV_HUGEPAGE)
        self.count, self.view = count, memoryview(self.map)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        ctypes.memset(self.address, 0x5A, count)

    def fill(self, byte):
        ctypes.memset(self.address, byte, self.count)


class Workers:
    """`threads` threads, each pinned to a processor of its own."""

    def __init__(self, threads):
        allowed = sorted(os.sched_getaffinity(0))
        free = iter(allowed * (threads // len(allowed) + 1))
        self.threads = threads
        self.pool = concurrent.futures.ThreadPoolExecutor(threads, initializer=lambda: os.sched_setaffinity(0, {next(free)}))
        ready = threading.Barrier(threads)
        list(self.pool.map(lambda _: ready.wait(10), range(threads)))

    def over(self, count, call):
        """call(offset, bytes) over one slice a thread."""
        each = count // self.threads & ~4095
        parts = [(i * each, each if i < self.threads - 1 else count - i * each) for i in range(self.threads)]
        return lambda: list(self.pool.map(lambda part: call(*part), parts))


def sockets(streams, a, b, count):
    """`count` bytes over bare loopback connections, a thread at each end."""

    def work():
        with socket.create_server(("127.0.0.1", 0)) as server, concurrent.futures.ThreadPoolExecutor(2 * streams) as pool:
            pairs = [(socket.create_connection(server.getsockname()), server.accept()[0]) for _ in range(streams)]
            each = count // streams

            def send(i):
                for at in range(i * each, (i + 1) * each, _CHUNK):
                    pairs[i][0].sendall(a.view[at : min(at + _CHUNK, (i + 1) * each)])

            def receive(i):
                at = i * each
                while at < (i + 1) * each:
                    n = pairs[i][1].recv_into(b.view[at : min(at + _CHUNK, (i + 1) * each)])
                    if n == 0:
                        raise ConnectionError("the sender closed early")
                    at += n

            for pair in pairs:
                for end in pair:
                    end.settimeout(_DEADLINE_S)
            start = time.monotonic()
            for done in [pool.submit(f, i) for f in (send, receive) for i in range(streams)]:
                done.result(_DEADLINE_S)
            seconds = time.monotonic() - start
            for pair in pairs:
                for end in pair:
                    end.close()
            return seconds

    return work


def timed(work):
    start = time.monotonic()
    work()
    return time.monotonic() - start


def measure(count, repeats, build):
    """{name: [GB/s of each repeat]}"""
    native = library(build)
    count = count & ~8191
    private, other, memfd = Buffer(count), Buffer(count), Buffer(count, shared=True)
    works = {}
    for threads in (1, 2):
        workers = Workers(threads)

        def copies(call, source, workers=workers):
            return workers.over(count, lambda at, n: call(other.address + at, source.address + at, n))

        works[f"memcpy{threads}"] = copies(ctypes.memmove, private)
        works[f"memfd_memcpy{threads}"] = copies(ctypes.memmove, memfd)
        works[f"memfd_streaming{threads}"] = copies(native.copy_streaming, memfd)
        works[f"scan_two{threads}"] = copies(native.scan_two, private)
        works[f"sockets{4 * threads}"] = sockets(4 * threads, memfd, other, count)
    for name, work in works.items():
        if not name.startswith("scan"):
            other.fill(0x11)
            private.fill(0x77)
            memfd.fill(0x99)
            work()
            want = (0x77 if name.startswith("memcpy") else 0x99).to_bytes(1, "little")
            if bytes(other.view[:: count // 4096 | 1]) != want * len(range(0, count, count // 4096 | 1)) or other.map[count - 1] != want[0]:
                raise RuntimeError(f"ceiling {name}: other bytes than were copied")
    out = {name: [] for name in works}
    for r in range(repeats + 1):
        for name, work in works.items():
            seconds = work() if name.startswith("sockets") else timed(work)
            if r:
                out[name].append(count / seconds / 1e9)
    return out


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bytes", type=int, default=1 << 30)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--build", default="build/peers")
    o = parser.parse_args()
    print(json.dumps(measure(o.bytes, o.repeats, o.build)))
