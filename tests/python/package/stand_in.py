"""An HTTP server on loopback that answers as it is told, in every wrong way too: for the drivers of engines."""

import http.server
import json
import threading
import time


class StandIn:
    """HTTP server on loopback; `answers` maps a path to (status, body) or to a function of the handler."""

    def __init__(self):
        outer = self
        self.answers, self.calls = {}, []

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _any(self):
                path = self.path.split("?")[0]
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length) or b"null")
                outer.calls.append((self.command, self.path, body, dict(self.headers)))
                answer = outer.answers[path] if path in outer.answers else outer.answer(self.command, self.path, body, dict(self.headers))
                if callable(answer):
                    answer(self)
                    return
                status, body = answer
                data = body.encode() if isinstance(body, str) else body
                self.send_response(status)
                if status in (301, 302, 307, 308):
                    self.send_header("Location", "http://127.0.0.1:9/elsewhere")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = _any

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def answer(self, method, path, body, headers):
        """(status, text) where `answers` has nothing."""
        return 200, "{}"

    def close(self):
        self.server.shutdown()
        self.server.server_close()


def half(handler):
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"succ')
    handler.close_connection = True


def nothing(handler):
    time.sleep(1)


def drip(handler):
    """A byte now and then, for ever."""
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    try:
        for _ in range(40):
            handler.wfile.write(b"x")
            handler.wfile.flush()
            time.sleep(0.1)
    except OSError:
        pass


def too_long(handler):
    handler.send_response(200)
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    try:
        for _ in range(40):
            handler.wfile.write(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
        handler.wfile.write(b"0\r\n\r\n")
    except OSError:
        pass


# What a server may answer, (what, part of the message, class, seconds to give it): for any call, on any engine.
def wrong_answers(engine_error, deadline_error):
    return [
        ((500, '{"error": {"message": "boom"}}'), "HTTP 500: boom", engine_error, 5),
        ((400, '{"detail": "no such thing"}'), "no such thing", engine_error, 5),
        ((401, "Unauthorized"), "HTTP 401", engine_error, 5),
        ((200, "<html>"), "no JSON", engine_error, 5),
        ((200, '{"success": false, "message": "not now"}'), "not now", engine_error, 5),
        ((307, ""), "HTTP 307", engine_error, 5),
        (half, "broke off, 994 bytes", engine_error, 5),
        (hang_up, "RemoteDisconnected", engine_error, 5),
        (too_long, "longer than", engine_error, 5),
        (nothing, "within 0.3 s", deadline_error, 0.3),
        (drip, "no whole answer within 0.3 s", deadline_error, 0.3),
    ]


def hang_up(handler):
    handler.close_connection = True
