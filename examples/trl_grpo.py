"""TRL's GRPOTrainer, whose rollouts come from a vLLM engine that gets its weights through Refit.

The trainer is TRL's own; `rollout_func` is the one place where Refit comes in: it publishes the model's weights once per optimizer
step, lets the engine take them, and generates. With `--lora` the trainer's model is a PEFT one: it travels merged.

    python examples/trl_grpo.py MODEL_DIR --steps 4 [--lora]     # needs torch, transformers, trl, vllm and weight-refit

MODEL_DIR: a small causal model with its tokenizer. One trainer process: with several, see refit.spmd (docs/guides/frameworks.md).
"""

import argparse
import json
import os

os.environ.update(HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", VLLM_LOGGING_LEVEL="ERROR", VLLM_CPU_KVCACHE_SPACE="1", TRL_EXPERIMENTAL_SILENCE="1")
ANSWER, ANSWERS = 16, 4  # tokens, and how many for each prompt


class Rollouts:
    """What GRPOTrainer calls for completions."""

    def __init__(self, llm, tokenizer):
        self.llm, self.tokenizer, self.sync, self.step, self.versions = llm, tokenizer, None, -1, []

    def refresh(self, trainer):
        """The engine has the weights of the trainer's step, whole and verified, when this returns; else it raises."""
        import refit
        import refit.vllm

        if self.sync is None:
            coordinator = refit.Coordinator(source_ranks=1, targets=1, target_ranks=1)
            self.sync = refit.vllm.VllmWeightSynchronizer(coordinator, [refit.vllm.LocalEngine(self.llm)])
            self.publisher = refit.Publisher.from_torch(coordinator.address, trainer.model)
            self.sync.init_communicator()
        step = trainer.state.global_step
        if step != self.step:
            self.publisher.publish(step)
            self.sync.mark_stale()
            self.versions.append(self.sync.sync_weights(step).version.number)
            self.step = step

    def __call__(self, prompts, trainer):
        from vllm import SamplingParams

        self.refresh(trainer)
        asked = [self.tokenizer(p)["input_ids"] for p in prompts]
        how = SamplingParams(temperature=1.0, max_tokens=ANSWER, min_tokens=ANSWER, ignore_eos=True, logprobs=1, detokenize=False)
        answers = [r.outputs[0] for r in self.llm.generate([{"prompt_token_ids": ids} for ids in asked], how, use_tqdm=False)]
        return {
            "prompt_ids": asked,
            "completion_ids": [list(a.token_ids) for a in answers],
            "logprobs": [[at[t].logprob for t, at in zip(a.token_ids, a.logprobs)] for a in answers],
        }

    def close(self):
        if self.sync is not None:
            self.publisher.close()
            self.sync.shutdown()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--lora", action="store_true")
    parser.add_argument("--out", help="write rewards, versions and a check as JSON")
    arguments = parser.parse_args()

    import datasets
    import torch
    import transformers
    from trl import GRPOConfig, GRPOTrainer
    from vllm import LLM, SamplingParams

    tokenizer = transformers.AutoTokenizer.from_pretrained(arguments.model)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    llm = LLM(arguments.model, dtype="float32", max_model_len=64, max_num_seqs=16, enforce_eager=True, seed=0, enable_prefix_caching=True, weight_transfer_config={"backend": "refit"})
    model = transformers.AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32)
    rollouts, rewards = Rollouts(llm, tokenizer), []

    def low_tokens(completion_ids, **_):
        """The share of tokens below the middle of the vocabulary: anyone can verify it."""
        scores = [sum(t < len(tokenizer) // 2 for t in ids) / len(ids) for ids in completion_ids]
        rewards.append(sum(scores) / len(scores))
        return scores

    words = [" ".join(tokenizer.convert_ids_to_tokens([10 + 3 * i, 40 + i, 70 + 2 * i])) for i in range(8)]
    options = {}
    if arguments.lora:
        import peft

        options["peft_config"] = peft.LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj", "up_proj", "down_proj"])
    trainer = GRPOTrainer(
        model=model, reward_funcs=low_tokens, processing_class=tokenizer, rollout_func=rollouts, train_dataset=datasets.Dataset.from_dict({"prompt": words}),
        args=GRPOConfig(output_dir=os.path.join(os.environ.get("TMPDIR", "/tmp"), f"refit-trl-{os.getpid()}"), use_cpu=True, bf16=False, max_steps=arguments.steps, num_generations=ANSWERS, per_device_train_batch_size=16,
                        max_completion_length=ANSWER, learning_rate=1e-2, beta=0.0, report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True, seed=0),
        **options,
    )  # fmt: skip
    trainer.train()
    # What the engine generates with and what the trainer holds are the same weights: greedy tokens of both.
    rollouts.refresh(trainer)
    ids = tokenizer(words[0])["input_ids"]
    engine = list(llm.generate([{"prompt_token_ids": ids}], SamplingParams(temperature=0, max_tokens=ANSWER, min_tokens=ANSWER, ignore_eos=True, detokenize=False), use_tqdm=False)[0].outputs[0].token_ids)
    trainer.model.eval()
    with torch.no_grad():
        made = trainer.model.generate(input_ids=torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long), max_new_tokens=ANSWER, min_new_tokens=ANSWER, do_sample=False, pad_token_id=tokenizer.pad_token_id)
    rollouts.close()
    told = {"rewards": rewards, "versions": rollouts.versions, "engine": engine, "trainer": made[0, len(ids):].tolist()}
    print(json.dumps(told), flush=True)
    if arguments.out:
        with open(arguments.out, "w") as f:
            json.dump(told, f)


if __name__ == "__main__":
    main()
