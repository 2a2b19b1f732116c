"""A real vLLM engine takes versions of a LoRA adapter from a real PEFT model; greedy tokens equal those of transformers with PEFT,
and those without the adapter stay the base's.

Usage: lora.py BUILD_DIR [TP]"""
import os
import pathlib
import sys
import tempfile

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent), str(pathlib.Path(__file__).resolve().parents[1] / "lora")]
import support  # noqa: E402


def break_next_load(worker):
    """Runs in the engine's worker: the next version of the adapter is put half way."""
    target = worker.weight_transfer_engine._target
    whole = target._put

    def put(adapter):
        target._put = whole
        target._manager.remove_adapter(adapter.id)
        raise RuntimeError("broken by the test")

    target._put = put


def main():
    build, tp = pathlib.Path(sys.argv[1]).resolve(), int(sys.argv[2]) if len(sys.argv) > 2 else 1
    site = support.installed(build)
    sys.path.insert(0, str(site))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    os.environ["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"
    if tp > 1:
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "|".join(str(r % (os.cpu_count() or 1)) for r in range(tp))
    import models
    import refit
    import refit.vllm
    import torch
    from refit.trainers import lora

    folder = pathlib.Path(tempfile.mkdtemp(prefix="refit-lora-"))
    models.base().save_pretrained(folder / "base")
    support._words(folder / "base", models.SMALL["vocab_size"])
    trained = models.adapted(use_rslora=True, lora_alpha=3, rank_pattern={"k_proj": 2}, lora_dropout=0.0).eval()
    other = models.noisy(models.adapted(r=4, target_modules=["v_proj"]), 30).eval()
    other.save_pretrained(folder / "other")
    asked = [[5, 6, 7, 8, 9], [11, 12, 13], list(range(20, 60))]

    @torch.no_grad()
    def want(model):
        out = []
        for ids in asked:
            made = model.generate(input_ids=torch.tensor([ids]), max_new_tokens=support.TOKENS, min_new_tokens=support.TOKENS, do_sample=False, pad_token_id=0, attention_mask=torch.ones(1, len(ids), dtype=torch.long))
            out.append(made[0, len(ids):].tolist())
        return out

    def step(number):
        models.noisy(trained, 100 + number)
        return want(trained)

    base_tokens, other_tokens = want(models.base().eval()), want(other)

    from vllm import LLM, SamplingParams
    from vllm.lora.request import LoRARequest

    llm = LLM(str(folder / "base"), dtype="float32", max_model_len=128, max_num_seqs=4, enforce_eager=True, seed=0, skip_tokenizer_init=True, enable_prefix_caching=True, tensor_parallel_size=tp,
              enable_lora=True, max_lora_rank=8, max_loras=2, max_cpu_loras=2, weight_transfer_config={"backend": refit.vllm.BACKEND})
    greedy = SamplingParams(temperature=0, max_tokens=support.TOKENS, min_tokens=support.TOKENS, ignore_eos=True, detokenize=False)

    def generated(request=None):
        return [list(r.outputs[0].token_ids) for r in llm.generate([{"prompt_token_ids": ids} for ids in asked], greedy, use_tqdm=False, lora_request=request)]

    policy, second = LoRARequest("policy", 1, "refit"), LoRARequest("other", 2, str(folder / "other"))
    support.check("the base before any refit", generated(), base_tokens)
    with refit.Coordinator(1, 1, tp, stall_timeout_s=20) as coordinator:
        sync = refit.vllm.VllmWeightSynchronizer(coordinator, [refit.vllm.LocalEngine(llm)], init_info={"adapter": lora.adapter_info(trained)})
        with refit.Publisher.from_torch(coordinator.address, trained, adapter="default") as publisher:
            # The trainer's engine has joined when the engines have: they join from the call below.
            sync.init_communicator()
            for number in (1, 2):
                tokens = step(number)
                assert tokens != base_tokens
                publisher.publish(number)
                sync.mark_stale()
                report = sync.sync_weights()
                support.check(f"version {report.version.number} of the adapter", generated(policy), tokens)
                support.check("the base beside it", generated(), base_tokens)
            support.check("an adapter of its own beside it", generated(second), other_tokens)
            third = LoRARequest("third", 3, str(folder / "other"))  # more than fit: others make room, this one is pinned
            support.check("another one in its place", generated(third), other_tokens)
            support.check("the pinned one", generated(policy), tokens)

            step(3)
            publisher.publish(3)
            sync.mark_stale()
            llm.collective_rpc(break_next_load)
            try:
                sync.sync_weights()
                raise AssertionError("a load that broke half way was reported as success")
            except refit.Error as e:
                print(f"   as it should: {e}", flush=True)
            assert sync.is_stale()
            llm.reset_prefix_cache()
            support.check("after a load that broke: the former adapter", generated(policy), tokens)
            tokens = step(4)
            publisher.publish(4)
            sync.sync_weights()
            support.check("after its repair", generated(policy), tokens)
            support.check("the base after all of it", generated(), base_tokens)
        sync.shutdown()
    print("passed")


if __name__ == "__main__":
    main()
