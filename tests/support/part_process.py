"""A process of the command line in a test: its events as they come, each wait with a deadline."""
import json
import pathlib
import queue
import signal
import subprocess
import threading
import time

PATIENCE_S = 30


class Part:
    """A process that tells one JSON event a line."""

    def __init__(self, refit, *arguments, env=None):
        self.process = subprocess.Popen([refit, *map(str, arguments), "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
        self.command = pathlib.Path(f"/proc/{self.process.pid}/cmdline").read_bytes()
        self.lines, self.told = queue.Queue(), []
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(None)

    def event(self, what, **fields):
        """The next event of that name (and with these fields) from now on; others are kept in `told`."""
        end = time.monotonic() + PATIENCE_S
        while True:
            line = self.lines.get(timeout=max(0.01, end - time.monotonic()))
            assert line is not None, f"ended ({self.process.wait()}) before '{what}' {fields}; told {self.told[-4:]}; {self.process.stderr.read()}"
            event = json.loads(line)
            self.told.append(event)
            if event.get("event") == what and all(event.get(k) == v for k, v in fields.items()):
                return event

    def finish(self):
        """Exit status; everything that it told is in `told` then."""
        status = self.process.wait(timeout=PATIENCE_S)
        while (line := self.lines.get(timeout=PATIENCE_S)) is not None:
            self.told.append(json.loads(line))
        return status

    def errors(self):
        """What it ended with."""
        assert self.finish() != 0
        return self.told[-1]["errors"]

    def end(self, how=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(how)
        return self.process.wait(timeout=PATIENCE_S)
