"""Calls of an engine's HTTP endpoints: every one ends by its deadline, and every wrong answer is an error of its own."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
import threading
import time
import urllib.parse
from typing import Any

from ._errors import DeadlineError, InvalidError, PeerLostError

MAX_ANSWER = 1 << 20


class EngineError(PeerLostError):
    """An engine refused a call, answered nonsense, or not at all. Fields: peer (its URL), stage (the call)."""

    status = 0  # of HTTP, where there was an answer


class HttpClient:
    """One origin. `headers` are sent with every call, to this origin alone; redirects are errors."""

    def __init__(self, url: str, *, headers: dict[str, str] | None = None, context: ssl.SSLContext | None = None) -> None:
        try:
            parts = urllib.parse.urlsplit(url)
        except ValueError:
            raise InvalidError("an engine's URL is http(s)://HOST:PORT, and this is none") from None
        # What is printed leaves out where secrets are put: user and password, path, query.
        shown = f"{parts.scheme}://{parts.hostname}" if parts.hostname else "one without a host"
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/") or parts.query or parts.fragment or "@" in parts.netloc:
            raise InvalidError(f"an engine's URL is http(s)://HOST:PORT and nothing else, not {shown}…")
        try:
            port = parts.port
        except ValueError:
            port = 0
        if port == 0:
            raise InvalidError(f"the port of an engine's URL is a number from 1 to 65535; that of {shown} is none")
        self.name = f"{parts.scheme}://{parts.hostname}:{parts.port or (443 if parts.scheme == 'https' else 80)}"
        for key, value in (headers or {}).items():
            if not value.isprintable():  # http.client would print it in its own complaint
                raise InvalidError(f"headers['{key}'] has a line break or another control character")
        self._parts, self._headers, self._context = parts, dict(headers or {}), context

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    def call(self, method: str, path: str, body: Any = None, timeout_s: float = 30, query: dict[str, str] | None = None, *, text: bool = False) -> Any:
        """The JSON of a 200 answer (None when it is empty), or its text. The whole answer is there by timeout_s, or
        DeadlineError; EngineError for anything else: other statuses, redirects among them, `success` false, an answer
        that is no JSON, breaks off or is longer than MAX_ANSWER."""
        status, answer = self._exchange(method, path, body, timeout_s, query)
        if status != 200:
            error = EngineError(f"HTTP {status}: {_reason(answer)}", peer=self.name, stage=path)
            error.status = status
            raise error
        if text:
            return answer
        if not answer:
            return None
        try:
            found = json.loads(answer)
        except ValueError:
            raise EngineError(f"the answer is no JSON: {answer[:200]!r}", peer=self.name, stage=path) from None
        if isinstance(found, dict) and found.get("success") is False:
            raise EngineError(f"success is false: {_reason(answer)}", peer=self.name, stage=path)
        return found

    def _exchange(self, method: str, path: str, body: Any, timeout_s: float, query: dict[str, str] | None) -> tuple[int, str]:
        deadline = time.monotonic() + timeout_s
        if timeout_s <= 0:
            raise DeadlineError("no time was left for the call", peer=self.name, stage=path)
        context: ssl.SSLContext | None = None
        if self._parts.scheme == "https":
            context = self._context or ssl.create_default_context()
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(self._parts.hostname, self._parts.port, timeout=timeout_s, context=context)
        else:
            connection = http.client.HTTPConnection(self._parts.hostname, self._parts.port, timeout=timeout_s)
        target = path + ("?" + urllib.parse.urlencode(query) if query else "")
        headers = {"Content-Type": "application/json", **self._headers}
        watch: threading.Timer | None = None
        over = threading.Event()
        try:
            line = _dial(self._parts.hostname or "", connection.port, deadline)
            if context is not None:
                line = context.wrap_socket(line, server_hostname=self._parts.hostname, do_handshake_on_connect=False)
            connection.sock = line

            def cut() -> None:
                over.set()
                with contextlib.suppress(OSError):
                    socket.socket.shutdown(line, socket.SHUT_RDWR)

            # A socket's own timeout is for each read: a server that sends a byte now and then would never meet it.
            watch = threading.Timer(max(0.0, deadline - time.monotonic()), cut)
            watch.daemon = True
            watch.start()
            if isinstance(line, ssl.SSLSocket):
                line.do_handshake()
            connection.request(method, target, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            data = answer.read(MAX_ANSWER + 1)
            if len(data) > MAX_ANSWER:
                raise http.client.HTTPException(f"the answer is longer than {MAX_ANSWER} bytes")
            if answer.length:  # bytes that were promised and did not come
                raise http.client.HTTPException(f"the answer broke off, {answer.length} bytes are missing")
            if over.is_set():
                raise TimeoutError
            return answer.status, data.decode("utf-8", "replace")
        except TimeoutError:
            raise DeadlineError(f"no answer within {timeout_s:.1f} s", peer=self.name, stage=path) from None
        except (OSError, http.client.HTTPException) as e:
            if over.is_set():
                raise DeadlineError(f"no whole answer within {timeout_s:.1f} s", peer=self.name, stage=path) from None
            raise EngineError(f"{type(e).__name__}: {e}", peer=self.name, stage=path) from None
        finally:
            if watch is not None:
                watch.cancel()
            connection.close()


def _dial(host: str, port: int, deadline: float) -> socket.socket:
    """The first of the host's addresses that takes a connection by the deadline."""
    failed: OSError | None = None
    for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        line = socket.socket(family, kind, protocol)
        try:
            line.settimeout(left)
            line.connect(address)
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return line
        except OSError as e:
            line.close()
            failed = e
    raise failed or OSError("the host has no address")


def _reason(text: str) -> str:
    """What an error's body says, in one line."""
    try:
        found = json.loads(text)
    except ValueError:
        found = text
    if isinstance(found, dict):
        found = found.get("error", found.get("detail", found))
        found = found.get("message", found) if isinstance(found, dict) else found
    return " ".join(str(found).split())[:500]
