"""A real vLLM engine in this process takes weights from a sharded torch trainer through Refit; its greedy tokens equal
those of transformers before and after, after failed refits, and after their repair.

Usage: offline.py MODEL_DIR BUILD_DIR"""
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import support  # noqa: E402


def break_next_load(worker):
    """Runs in the engine's worker: the next installation stops half way."""
    target = worker.weight_transfer_engine._target
    whole, target.calls = target._fill, 0

    def fill(*arguments):
        target.calls += 1
        if target.calls > len(target.places) // 2:
            target._fill = whole
            raise RuntimeError("broken by the test")
        whole(*arguments)

    target._fill = fill


def main():
    source, build = sys.argv[1], pathlib.Path(sys.argv[2]).resolve()
    site = support.installed(build)
    sys.path.insert(0, str(site))
    support.os.environ["PYTHONPATH"] = str(site)
    support.os.environ["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"  # break_next_load travels to the worker
    import refit
    import refit.vllm

    base = pathlib.Path(tempfile.mkdtemp(prefix="refit-vllm-"))
    a, b = support.save_models(source, base)
    import json

    asked = support.prompts(json.loads((a / "config.json").read_text())["vocab_size"])
    tokens_a, tokens_b = support.greedy(a, asked), support.greedy(b, asked)
    assert tokens_a != tokens_b

    from vllm import LLM, SamplingParams

    llm = LLM(str(a), dtype="float32", max_model_len=256, max_num_seqs=4, enforce_eager=True, seed=0, skip_tokenizer_init=True, enable_prefix_caching=True,
              weight_transfer_config={"backend": refit.vllm.BACKEND})
    greedy = SamplingParams(temperature=0, max_tokens=support.TOKENS, min_tokens=support.TOKENS, ignore_eos=True, detokenize=False)

    def generated():
        return [list(r.outputs[0].token_ids) for r in llm.generate([{"prompt_token_ids": ids} for ids in asked], greedy, use_tqdm=False)]

    support.check("before any refit", generated(), tokens_a)
    with refit.Coordinator(2, 1, 1, stall_timeout_s=10) as coordinator:
        sync = refit.vllm.VllmWeightSynchronizer(coordinator, [refit.vllm.LocalEngine(llm)])
        trainer = support.Trainer(coordinator.address, a)
        sync.init_communicator()
        trainer.joined()
        trainer.publish(1, b)
        sync.mark_stale()
        report = sync.sync_weights()
        print(f"   version {report.version.number}: {report.seconds:.3f} s, generation stood still {list(sync.pause_seconds.values())[0]:.3f} s", flush=True)
        assert not sync.is_stale()
        support.check("after a refit", generated(), tokens_b)

        trainer.publish(2, a)
        trainer.kill(1)
        try:
            sync.sync_weights()
            raise AssertionError("a sync without one of its sources succeeded")
        except refit.Error as e:
            print(f"   as it should: {e}", flush=True)
            assert "source:0.1" in str(e), e
        support.check("a trainer rank was killed: the old weights serve", generated(), tokens_b)
        trainer.close()

        trainer = support.Trainer(coordinator.address, a)
        trainer.joined()
        trainer.publish(3, a)
        sync.sync_weights()
        support.check("after its repair", generated(), tokens_a)

        trainer.publish(4, b)
        llm.collective_rpc(break_next_load)
        try:
            sync.sync_weights()
            raise AssertionError("a load that broke half way was reported as success")
        except refit.Error as e:
            print(f"   as it should: {e}", flush=True)
        assert sync.is_stale()
        trainer.publish(5, b)
        sync.sync_weights()
        support.check("after a load that broke half way, and its repair", generated(), tokens_b)
        trainer.close()
        sync.shutdown()
    print("passed")


if __name__ == "__main__":
    main()
