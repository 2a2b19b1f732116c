"""Child processes that are steered by lines of JSON, for tests. Every wait has a deadline."""

import json
import pathlib
import queue
import subprocess
import sys
import threading

HERE = pathlib.Path(__file__).parent
WAIT_S = 120  # importing torch in seven processes at once takes its time on two cores


class Child:
    """A script of this folder: send() a command, hear() the answer."""

    def __init__(self, script, *arguments):
        self.name = f"{script} {arguments[-1] if arguments else ''}"
        self.process = subprocess.Popen([sys.executable, HERE / script, *map(str, arguments)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.lines = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(None)

    def send(self, verb, **arguments):
        self.process.stdin.write(json.dumps({"verb": verb, **arguments}) + "\n")
        self.process.stdin.flush()

    def hear(self, timeout_s=WAIT_S):
        try:
            line = self.lines.get(timeout=timeout_s)
        except queue.Empty:
            raise TimeoutError(f"{self.name} did not answer within {timeout_s} s") from None
        if line is None:
            raise RuntimeError(f"{self.name} ended with exit code {self.process.wait(10)}")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"{self.name}: {answer['error']}")
        return answer

    def kill(self):
        self.process.kill()
        self.process.wait()

    def close(self):
        if self.process.poll() is None:
            self.process.stdin.close()
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.kill()
        self.process.stdout.close()
        if not self.process.stdin.closed:
            self.process.stdin.close()


def answer(**fields):
    print(json.dumps(fields), flush=True)


def commands():
    """The child's side: each command until the parent is gone."""
    for line in sys.stdin:
        yield json.loads(line)
