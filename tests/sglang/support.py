"""What the SGLang tests share beside tests/vllm/support.py: a server's command, environment, tiny models."""
import importlib.util
import json
import os
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "live"), str(HERE.parent / "python/package")]
_spec = importlib.util.spec_from_file_location("engine_support", HERE.parent / "vllm/support.py")
common = importlib.util.module_from_spec(_spec)
sys.modules["engine_support"] = common  # processes that are spawned import it by this name
_spec.loader.exec_module(common)

common.WAIT_S = 300  # trainer processes too take long to start beside other work
START_S = 400  # a server of SGLang takes a minute and a half to start, more beside other work
ENGINE = dict(device="cpu", dtype="float32", attention_backend="torch_native", sampling_backend="pytorch", disable_cuda_graph=True, disable_overlap_schedule=True,
              mem_fraction_static=0.1, max_total_tokens=4096, max_running_requests=4, context_length=256, skip_server_warmup=True, skip_tokenizer_init=True, random_seed=0)


def prepare(build):
    """PYTHONPATH and environment of this process and its children; refit and SGLang can be imported then."""
    site = common.installed(build)
    sys.path[:0] = [str(site), str(HERE / "stub")]
    path = os.pathsep.join([str(site), str(HERE / "stub"), str(HERE.parent / "vllm")])
    os.environ.update(PYTHONPATH=path, SGLANG_DISABLE_SHARED_EXPERTS_FUSION="1", GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1")
    return path


def two_models(base, family="llama"):
    """Paths of two tiny random checkpoints of one shape in float32, prompts, and the tokens of both."""
    import models

    paths = [base / "a", base / "b"]
    sizes = dict(hidden_size=128, intermediate_size=256, max_position_embeddings=256)
    for seed, path in enumerate(paths, 1):
        models.build(family, seed=seed, dtype="float32", **sizes).save_pretrained(path)
        common._words(path, json.loads((path / "config.json").read_text())["vocab_size"])
    asked = common.prompts(json.loads((paths[0] / "config.json").read_text())["vocab_size"])
    tokens = [common.greedy(path, asked) for path in paths]
    assert tokens[0] != tokens[1]
    return paths, asked, tokens


def sampling():
    return {"temperature": 0, "max_new_tokens": common.TOKENS, "ignore_eos": True}


def command(model, port, *more):
    flags = [f for key, value in ENGINE.items() for f in ([f"--{key.replace('_', '-')}"] if value is True else [f"--{key.replace('_', '-')}", str(value)])]
    return [sys.executable, str(HERE / "launch.py"), "--model-path", str(model), "--host", "127.0.0.1", "--port", str(port), *flags, *more]
