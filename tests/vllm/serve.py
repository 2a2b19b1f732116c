"""A real vLLM server takes weights over HTTP while it answers requests: every answer is that of one whole version.

Usage: serve.py MODEL_DIR BUILD_DIR"""
import json
import pathlib
import sys
import tempfile
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import support  # noqa: E402


def command(model, port):
    return [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--served-model-name", "m", "--host", "127.0.0.1", "--port", str(port),
            "--dtype", "float32", "--max-model-len", "256", "--max-num-seqs", "4", "--enforce-eager", "--weight-transfer-config", '{"backend": "refit"}']


def main():
    source, build = sys.argv[1], pathlib.Path(sys.argv[2]).resolve()
    site = support.installed(build)
    sys.path.insert(0, str(site))
    support.os.environ["PYTHONPATH"] = str(site)
    import refit
    import refit.vllm

    base = pathlib.Path(tempfile.mkdtemp(prefix="refit-vllm-"))
    a, b = support.save_models(source, base)
    server = support.Server(lambda port: command(a, port), base / "server.log", {"PYTHONPATH": str(site), "VLLM_SERVER_DEV_MODE": "1"})
    try:
        asked = support.prompts(json.loads((a / "config.json").read_text())["vocab_size"])
        tokens = {"a": support.greedy(a, asked), "b": support.greedy(b, asked)}
        engine = refit.vllm.HttpEngine(server.url)
        server.ready(engine)

        def generated():
            answer = engine.call("POST", "/v1/completions", {"model": "m", "prompt": asked, "max_tokens": support.TOKENS, "min_tokens": support.TOKENS, "temperature": 0, "ignore_eos": True, "return_token_ids": True}, 60)
            return [c["token_ids"] for c in sorted(answer["choices"], key=lambda c: c["index"])]

        support.check("before any refit", generated(), tokens["a"])
        with refit.Coordinator(2, 1, 1, stall_timeout_s=10) as coordinator:
            sync = refit.vllm.VllmWeightSynchronizer(coordinator, [engine], in_flight="wait")
            trainer = support.Trainer(coordinator.address, a)
            sync.init_communicator()
            trainer.joined()

            # Requests all the time: each must be wholly of one version. Pausing, the prompts of one request may fall on
            # both sides, so prompts are judged one by one.
            seen, stop, trouble = {"a": 0, "b": 0}, threading.Event(), []

            def ask():
                while not stop.is_set():
                    try:
                        for i, got in enumerate(generated()):
                            whose = [k for k in tokens if tokens[k][i] == got]
                            assert whose, f"prompt {i}: tokens of neither version: {got}"
                            seen[whose[0]] += 1
                    except Exception as e:  # noqa: BLE001 - told below
                        trouble.append(e)
                        return

            asker = threading.Thread(target=ask)
            asker.start()
            for step, name in enumerate("bab", 1):
                trainer.publish(step, {"a": a, "b": b}[name])
                sync.mark_stale()
                report = sync.sync_weights()
                print(f"   version {report.version.number}: {report.seconds:.3f} s, generation stood still {list(sync.pause_seconds.values())[0]:.3f} s", flush=True)
                support.check(f"after refit {step}, requests beside it", generated(), tokens[name])
            stop.set()
            asker.join(60)
            assert not trouble, trouble
            assert seen["a"] and seen["b"], seen
            label = engine.call("GET", "/weight_info")["weight_version"]
            assert label == str(report.version.number), label
            print(f"ok: {seen['a']} answers of the one version, {seen['b']} of the other, none of neither", flush=True)
            trainer.close()
            sync.shutdown()
    except BaseException:
        print(pathlib.Path(server.log.name).read_text()[-4000:])
        raise
    finally:
        server.close()
    print("passed")


if __name__ == "__main__":
    main()
