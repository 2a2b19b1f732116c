"""A real SGLang server on a CPU takes weights of a sharded torch trainer through Refit, in each way that there is; its greedy
tokens equal those of transformers. The stand-in of the fast tests gives the same answers as this server.

Usage: serve.py BUILD_DIR [tp=N] [WAY...]"""
import json
import pathlib
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import refits  # noqa: E402
import support  # noqa: E402
from support import common  # noqa: E402


def ask(url, method, path, body):
    """(status, body) of any answer."""
    request = urllib.request.Request(url + path, None if body is None else json.dumps(body).encode(), {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as e:
        return e.code, e.read().decode()


def shape(answer):
    """What the stand-in promises: the status, and of JSON its keys, `success` and the message of a rule."""
    status, text = answer
    try:
        found = json.loads(text)
    except ValueError:
        return status, text.splitlines()[:1]
    if isinstance(found, dict):
        message = found.get("message", "") if "success" in found or "status" in found else ""
        return status, sorted(found), found.get("success"), message.split(" Group ")[0]
    return status, found


def same_answers(url, model):
    from sglang_stand_in import SCRIPT, SglangStandIn

    stand_in = SglangStandIn(model)
    for method, path, body in SCRIPT:
        real, double = shape(ask(url, method, path, body)), shape(ask(stand_in.url, method, path, body))
        assert real == double, f"{method} {path} {body}: the server says {real}, the stand-in {double}"
    for path, keys in (("/server_info", {"version", "tp_size", "pp_size", "dp_size", "model_path"}), ("/model_info", {"model_path", "weight_version"})):
        status, text = ask(url, "GET", path, None)
        assert status == 200 and keys <= set(json.loads(text)), (path, text[:400])
    stand_in.close()
    print(f"ok: the stand-in answers {len(SCRIPT)} calls as this server does", flush=True)


def beside_requests(engine, generated, paths, tokens):
    """Requests all the time; each answer is a whole one of one version, or was aborted."""
    import refit
    import refit.sglang

    seen, stop, trouble = {0: 0, 1: 0, "aborted": 0}, threading.Event(), []
    with refit.Coordinator(2, 1, 1, stall_timeout_s=10, gate_timeout_s=60, join_timeout_s=90) as coordinator:
        sync = refit.sglang.SGLangWeightSynchronizer(coordinator, [engine], in_flight="abort")
        trainer = common.Trainer(coordinator.address, paths[0])
        sync.init_communicator()
        trainer.joined()

        def run():
            while not stop.is_set():
                try:
                    for i, got in enumerate(generated()):
                        whose = [k for k in (0, 1) if tokens[k][i] == got]
                        short = [k for k in (0, 1) if len(got) < common.TOKENS and tokens[k][i][: len(got)] == got]
                        assert whose or short, f"prompt {i}: tokens of neither version: {got}"
                        seen[whose[0] if whose else "aborted"] += 1
                except Exception as e:  # noqa: BLE001 - told below
                    trouble.append(e)
                    return

        asker = threading.Thread(target=run)
        asker.start()
        for step, which in enumerate((1, 0, 1, 0), 1):
            trainer.publish(step, paths[which])
            sync.mark_stale()
            sync.sync_weights()
            # The next refit aborts what runs: first let some answers of this version be whole.
            until, before = time.monotonic() + 60, seen[which]
            while seen[which] == before and not trouble and time.monotonic() < until:
                time.sleep(0.05)
        stop.set()
        asker.join(60)
        label = engine.call("GET", "/model_info")["weight_version"]
        assert label == str(sync.coordinator.status()["version"]["number"]), label
        trainer.close()
        sync.shutdown()
    assert not trouble, trouble
    assert seen[0] and seen[1], seen
    print(f"ok: beside refits {seen[0]} answers of one version, {seen[1]} of the other, {seen['aborted']} cut short, none of neither", flush=True)


def main():
    path = support.prepare(pathlib.Path(sys.argv[1]).resolve())
    import refit.sglang

    ways = [a for a in sys.argv[2:] if "=" not in a] or list(refit.sglang.server.VIAS)
    ranks = next((int(a.removeprefix("tp=")) for a in sys.argv[2:] if a.startswith("tp=")), 1)
    base = pathlib.Path(tempfile.mkdtemp(prefix="refit-sglang-"))
    paths, asked, tokens = support.two_models(base)
    server = common.Server(lambda port: support.command(paths[0], port, "--tp-size", str(ranks), "--custom-weight-loader", refit.sglang.LOADER), base / "server.log",
                           {"PYTHONPATH": path} | ({"SGLANG_CPU_OMP_THREADS_BIND": "|".join(str(r % (support.os.cpu_count() or 1)) for r in range(ranks))} if ranks > 1 else {}))
    try:
        engines = {via: refit.sglang.HttpEngine(server.url, via=via, folder=str(base)) for via in ways}
        first = next(iter(engines.values()))
        server.ready(first, support.START_S)

        def generated():
            answers = first.call("POST", "/generate", {"input_ids": asked, "sampling_params": support.sampling()}, 120)
            return [a["output_ids"] for a in answers]

        if ranks == 1:
            same_answers(server.url, paths[0])
        for via, engine in engines.items():
            refits.tell(engine, generated, paths, tokens, f"{via} over HTTP, tp={ranks}", ranks if via == "loader" else 1)
        if "loader" in engines and ranks == 1:
            beside_requests(engines["loader"], generated, paths, tokens)
            refits.compare(engines["loader"], generated, paths, tokens)
    except BaseException:
        print(server.tail())
        raise
    finally:
        server.close()
    print("passed")


if __name__ == "__main__":
    main()
