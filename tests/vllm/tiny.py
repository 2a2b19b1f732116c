"""Tiny random models in a real vLLM engine over several ranks: each rank's receiver installs its own shard; greedy tokens
equal transformers' before and after refits, and a process that publishes is one rank with whole tensors.

Usage: tiny.py BUILD_DIR FAMILY [TENSOR_PARALLEL_SIZE [LAYOUT]]      (LAYOUT: where the ranks' layout comes from, e.g. traced)"""
import json
import pathlib
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "live")]
import support  # noqa: E402


def main():
    build, family, ranks = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 2
    layout = sys.argv[4] if len(sys.argv) > 4 else "auto"
    site = support.installed(build)
    sys.path.insert(0, str(site))
    support.os.environ.update(PYTHONPATH=str(site), VLLM_CPU_OMP_THREADS_BIND="|".join(str(r % (support.os.cpu_count() or 1)) for r in range(ranks)))
    import models
    import refit
    import refit.vllm
    import safetensors.torch

    base = pathlib.Path(tempfile.mkdtemp(prefix="refit-vllm-"))
    paths = [base / "a", base / "b"]
    # Widths that the engine's kernels for a mixture of experts take; the uneven ones are compared in tests/live.
    sizes = dict(hidden_size=128, intermediate_size=256) | (dict(moe_intermediate_size=64) if "moe" in family else {})
    for seed, path in enumerate(paths, 1):
        models.build(family, seed=seed, dtype="float32", max_position_embeddings=256, **sizes).save_pretrained(path)
    asked = support.prompts(json.loads((paths[0] / "config.json").read_text())["vocab_size"])
    tokens = [support.greedy(path, asked) for path in paths]
    assert tokens[0] != tokens[1]
    weights = [{k: v.contiguous() for f in sorted(path.glob("*.safetensors")) for k, v in safetensors.torch.load_file(f).items()} for path in paths]

    from vllm import LLM, SamplingParams

    llm = LLM(str(paths[0]), dtype="float32", max_model_len=256, max_num_seqs=4, enforce_eager=True, seed=0, skip_tokenizer_init=True, enable_prefix_caching=True, tensor_parallel_size=ranks,
              distributed_executor_backend="mp" if ranks > 1 else None, weight_transfer_config={"backend": refit.vllm.BACKEND})
    greedy = SamplingParams(temperature=0, max_tokens=support.TOKENS, min_tokens=support.TOKENS, ignore_eos=True, detokenize=False)

    def generated():
        return [list(r.outputs[0].token_ids) for r in llm.generate([{"prompt_token_ids": ids} for ids in asked], greedy, use_tqdm=False)]

    support.check(f"{family}, tp={ranks}: before any refit", generated(), tokens[0])
    with refit.Coordinator(1, 1, ranks, stall_timeout_s=10) as coordinator:
        sync = refit.vllm.VllmWeightSynchronizer(coordinator, [refit.vllm.LocalEngine(llm)], init_info={"layout": layout})
        live = {k: v.clone() for k, v in weights[1].items()}
        import concurrent.futures

        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            joined = pool.submit(sync.init_communicator)
            publisher = refit.Publisher.from_arrays(coordinator.address, live)
            joined.result()
        for step, which in enumerate((1, 0, 1), 1):
            with publisher.writing(step):
                for name, array in live.items():
                    array.copy_(weights[which][name])
            sync.mark_stale()
            sync.sync_weights()
            support.check(f"{family}, tp={ranks}: after refit {step}", generated(), tokens[which])
        publisher.close()
        sync.shutdown()
    print(f"passed, layout: {layout}")


if __name__ == "__main__":
    main()
