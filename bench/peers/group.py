"""Trainer and rollout ranks as processes that take one command at a time. The parent passes what they publish and starts a
repeat in all of them at once; every answer has a deadline, and whatever is still alive at the end is ended."""

import multiprocessing
import multiprocessing.connection
import os
import time
import traceback


class Failure(Exception):
    """A row's reason."""


class Rank:
    """What a row's rank offers. All run in the rank's own process."""

    def publish(self):
        """Once: what the other side needs to reach this rank; picklable."""

    def connect(self, published):
        """Once: {rank: what it published} of all ranks. Registration and plans belong here, outside the clock."""

    def step(self):
        """Untimed, before each repeat: trainers change every element."""

    def go(self):
        """Timed: the bytes move. Returns when this rank has its own."""

    def wrong(self, version):
        """Untimed, after each repeat: tensors that do not hold exactly this version."""
        return 0

    def close(self):
        pass


def _serve(make, arguments, pipe):
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        rank = make(*arguments)
        pipe.send(("ok", None))
        while True:
            name, args = pipe.recv()
            if name == "end":
                rank.close()
                pipe.send(("ok", None))
                break
            if name == "go":
                start, cpu = time.monotonic(), time.process_time()
                rank.go()
                pipe.send(("ok", (start, time.monotonic(), time.process_time() - cpu)))
            else:
                pipe.send(("ok", getattr(rank, name)(*args)))
    except BaseException:
        try:
            pipe.send(("failed", traceback.format_exc()))
        except OSError:
            pass
        os._exit(1)
    os._exit(0)  # no destructor of a peer's library may hang the row


class Group:
    def __init__(self, members, seconds):
        """members: (name, function that makes a Rank, its arguments). seconds: how long the whole row may take."""
        self.deadline = time.monotonic() + seconds
        context = multiprocessing.get_context("spawn")
        self.names, self.pipes, self.processes = [], [], []
        try:
            for name, make, arguments in members:
                ours, theirs = context.Pipe()
                process = context.Process(target=_serve, args=(make, arguments, theirs), daemon=True)
                process.start()
                theirs.close()
                self.names.append(name)
                self.pipes.append(ours)
                self.processes.append(process)
            self._answers()
        except BaseException:
            self.kill()
            raise

    def ask(self, name, *args, only=None):
        """One command to all (or to the names that begin with `only`); the answers by name."""
        chosen = [i for i, n in enumerate(self.names) if only is None or n.startswith(only)]
        for i in chosen:
            self.pipes[i].send((name, args))
        return self._answers(chosen)

    def _answers(self, chosen=None):
        out, waiting = {}, list(range(len(self.names)) if chosen is None else chosen)
        while waiting:
            left = self.deadline - time.monotonic()
            if left <= 0:
                raise Failure(f"deadline: no answer from {', '.join(self.names[i] for i in waiting)}")
            for pipe in multiprocessing.connection.wait([self.pipes[i] for i in waiting], left):
                i = self.pipes.index(pipe)
                try:
                    kind, value = pipe.recv()
                except EOFError:
                    self.processes[i].join(5)
                    raise Failure(f"{self.names[i]} died, exit code {self.processes[i].exitcode}") from None
                if kind == "failed":
                    raise Failure(f"{self.names[i]}: {value.strip().splitlines()[-1]}")
                out[self.names[i]] = value
                waiting.remove(i)
        return out

    def end(self):
        self.ask("end")
        self.kill(patience=5)

    def kill(self, patience=0):
        for process in self.processes:
            process.join(patience)
            if process.is_alive():
                process.kill()
                process.join(10)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            self.end()
        else:
            self.kill()


def ranks(model, trainer, rollout, *arguments):
    """Members of a group: trainers first."""
    return [(f"trainer{i}", trainer, (model, i, *arguments)) for i in range(model.trainers)] + [
        (f"rollout{i}", rollout, (model, i, *arguments)) for i in range(model.rollouts)
    ]


def repeats(group, count, first_version=1):
    """One repeat that does not count, then `count`: (walls, processor seconds, wrong tensors of all repeats)."""
    walls, cpus, wrong = [], [], 0
    for n in range(count + 1):
        group.ask("step")
        times = group.ask("go")
        wrong += sum(group.ask("wrong", first_version + n).values())
        if n:
            begin = min(t[0] for name, t in times.items() if name.startswith("trainer"))
            walls.append(max(t[1] for name, t in times.items() if name.startswith("rollout")) - begin)
            cpus.append(sum(t[2] for t in times.values()))
    return walls, cpus, wrong
