"""What the engine tests share: a model in float32 with a second set of weights, reference tokens, trainer processes."""
import json
import multiprocessing as mp
import os
import pathlib
import signal
import socket
import subprocess
import tempfile
import time
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[2]
os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", HF_HUB_DISABLE_PROGRESS_BARS="1", TOKENIZERS_PARALLELISM="false",
                  VLLM_NO_USAGE_STATS="1", VLLM_CPU_KVCACHE_SPACE="1", VLLM_LOGGING_LEVEL="WARNING")
TOKENS = 24
WAIT_S = 120  # for anything that a process is asked for


def installed(build):
    """A folder for PYTHONPATH in which the built package counts as installed, entry points included."""
    project = tomllib.loads((ROOT / "python/pyproject.toml").read_text())["project"]
    site = pathlib.Path(tempfile.mkdtemp(prefix="refit-site-"))
    (site / "refit").symlink_to(pathlib.Path(build) / "python/refit")
    info = site / "weight_refit-0.0.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 0.0.0\n")
    (info / "entry_points.txt").write_text("".join(f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in points.items()) for group, points in project["entry-points"].items()))
    return site


def prompts(vocabulary):
    """Token ids: short ones, and two with a common beginning longer than a block of the prefix cache."""
    import random

    draw = random.Random(5)
    long = [draw.randrange(100, vocabulary) for _ in range(150)]
    return [[draw.randrange(100, vocabulary) for _ in range(n)] for n in (5, 17)] + [long, long[:140] + [7, 8, 9]]


def save_models(source, base):
    """A: the checkpoint in float32; B: every weight moved a little. Paths."""
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    a, b = base / "a", base / "b"
    model.save_pretrained(a)
    with torch.no_grad():
        for i, p in enumerate(model.parameters()):
            noise = torch.randn(p.shape, generator=torch.Generator().manual_seed(i))
            p.add_(noise, alpha=0.05 * float(p.std()) if p.ndim > 1 else 0.0)
    model.save_pretrained(b)
    for path in (a, b):
        _words(path, model.config.vocab_size)
    return a, b


def _words(path, vocabulary):
    """A tokenizer of one word a token, for servers that want one; the tests speak in token ids."""
    import tokenizers

    tokenizers.Tokenizer(tokenizers.models.WordLevel({f"w{i}": i for i in range(vocabulary)}, unk_token="w0")).save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "w0", "eos_token": "w1"}))


def greedy(path, asked):
    """Tokens that transformers generates."""
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    out = []
    with torch.no_grad():
        for ids in asked:
            made = model.generate(torch.tensor([ids]), max_new_tokens=TOKENS, min_new_tokens=TOKENS, do_sample=False, pad_token_id=0, attention_mask=torch.ones(1, len(ids), dtype=torch.long))
            out.append(made[0, len(ids):].tolist())
    return out


def _train(rank, world, port, address, path, orders, answers):
    import torch
    import torch.distributed as dist
    import transformers
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import distribute_tensor

    import refit

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    mesh = dist.device_mesh.init_device_mesh("cpu", (world,))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    publisher = refit.Publisher.from_torch(address, model)
    answers.put("joined")
    while True:
        order = orders.get()
        if order is None:
            break
        step, path = order
        whole = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).state_dict()
        publisher.guard()
        with torch.no_grad():
            for name, p in model.named_parameters():
                p.copy_(distribute_tensor(whole[name], p.device_mesh, p.placements))
        publisher.publish(step)
        answers.put(step)
    publisher.close()
    dist.destroy_process_group()


class Trainer:
    """Processes of a sharded torch trainer (FSDP2 over gloo)."""

    def __init__(self, address, path, world=2):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        self._context = mp.get_context("spawn")
        self._orders = [self._context.Queue() for _ in range(world)]
        self._answers = self._context.Queue()
        self._ranks = [self._context.Process(target=_train, args=(r, world, port, address, path, self._orders[r], self._answers), daemon=True) for r in range(world)]
        for p in self._ranks:
            p.start()

    def _each(self, expected):
        for _ in self._ranks:
            got = self._answers.get(timeout=WAIT_S)
            assert got == expected, got

    def joined(self):
        self._each("joined")

    def publish(self, step, path):
        """All ranks hold the weights of `path`, as step `step`."""
        for orders in self._orders:
            orders.put((step, str(path)))
        self._each(step)

    def kill(self, rank):
        os.kill(self._ranks[rank].pid, signal.SIGKILL)
        self._ranks[rank].join(WAIT_S)

    def close(self):
        for orders, p in zip(self._orders, self._ranks):
            orders.put(None)
        for p in self._ranks:
            p.join(10)
            if p.is_alive():
                p.kill()


def check(what, got, expected):
    same = [a == b for a, b in zip(got, expected)]
    assert len(got) == len(expected) and all(same), f"{what}: prompts {[i for i, s in enumerate(same) if not s]} differ: {json.dumps([got, expected])}"
    print(f"ok: {what}", flush=True)


class Server:
    """A server process of an engine on a free port of loopback. command: a function of the port."""

    def __init__(self, command, log, environment):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.log = open(log, "w")
        self.process = subprocess.Popen(command(port), env=os.environ | environment, stdout=self.log, stderr=subprocess.STDOUT, start_new_session=True)

    def tail(self):
        return pathlib.Path(self.log.name).read_text()[-4000:]

    def ready(self, engine, timeout_s=WAIT_S):
        import refit

        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.tail()
            try:
                engine.call("GET", "/health", timeout_s=2)
                return
            except refit.Error:
                time.sleep(0.3)
        raise AssertionError("the server is not ready: " + self.tail())

    def close(self):
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.log.close()
