"""A reinforcement-learning loop that learns, with two trainer processes (torch FSDP2) and a vLLM engine on a CPU.

The model is a tiny random Llama; the reward of an answer is the share of its tokens below the middle of the vocabulary, which
anyone can verify; the learner is REINFORCE with the mean reward as baseline. After every optimizer step the engine gets
the new weights through Refit, and the version that each answer came from is known.

    python examples/rl_loop.py --steps 30            # needs torch, transformers, vllm and weight-refit

Which way the weights go stands in rl_loop.yaml alone: set `refit_transport: vllm_zmq_sparse` there, or `colocated.enabled: true`,
and the same loop runs over another mover.
"""
import argparse
import json
import multiprocessing as mp
import os
import pathlib
import socket
import tempfile

os.environ.update(HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", VLLM_LOGGING_LEVEL="ERROR", VLLM_CPU_KVCACHE_SPACE="1")
VOCABULARY, PROMPT, ANSWER, ANSWERS = 64, 8, 24, 32
TRAINERS = 2


def trainer(rank, port, address, path, rollouts, done):
    """One rank: takes its half of the answers, steps, publishes."""
    import refit
    import torch
    import torch.distributed as dist
    import transformers
    from torch.distributed.fsdp import fully_shard

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=TRAINERS)
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    mesh = dist.device_mesh.init_device_mesh("cpu", (TRAINERS,))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    publisher = refit.Publisher.from_torch(address, model)
    publisher.publish(0)
    done.put(("joined", rank))
    step = 0
    while (batch := rollouts.get()) is not None:
        ids, advantages = torch.tensor(batch["ids"]), torch.tensor(batch["advantages"])
        logits = model(input_ids=ids[:, :-1]).logits[:, PROMPT - 1:]
        chosen = torch.log_softmax(logits, -1).gather(-1, ids[:, PROMPT:, None]).squeeze(-1)
        loss = -(advantages[:, None] * chosen).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        publisher.publish(step)  # copies what will travel: the next step may begin
        done.put((step, rank))
    publisher.close()
    dist.destroy_process_group()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def answers_of(done, expected):
    """One word of each trainer rank."""
    for _ in range(TRAINERS):
        word, rank = done.get(timeout=120)
        assert word == expected, (word, rank)


class Phases:
    """What a synchronizer asks of trainer and engine beside weights: nothing here, since no device is shared."""

    def __init__(self, engines=()):
        self.refit_engines = list(engines)

    def offload_before_refit(self, tags=None):
        pass

    offload_after_refit = prepare_for_generation = offload_before_refit


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--config", default=str(pathlib.Path(__file__).with_suffix(".yaml")))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=pathlib.Path, help="rewards as JSON")
    options = parser.parse_args()

    import refit
    import refit.vllm
    import torch
    import transformers
    from vllm import LLM, SamplingParams

    torch.manual_seed(options.seed)
    path = tempfile.mkdtemp(prefix="refit-rl-")
    shape = dict(vocab_size=VOCABULARY, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=32,
                 max_position_embeddings=64, tie_word_embeddings=False, dtype="float32")
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape)).save_pretrained(path)

    llm = LLM(path, dtype="float32", max_model_len=64, max_num_seqs=ANSWERS, enforce_eager=True, skip_tokenizer_init=True, seed=options.seed, weight_transfer_config={"backend": refit.vllm.BACKEND})
    sync = refit.create_weight_synchronizer(options.config, Phases(), Phases([refit.vllm.LocalEngine(llm)]), train_cluster=TRAINERS, inference_world_size=1)

    context, port = mp.get_context("spawn"), free_port()
    rollouts, done = [context.Queue() for _ in range(TRAINERS)], context.Queue()
    ranks = [context.Process(target=trainer, args=(r, port, sync.coordinator.address, path, rollouts[r], done), daemon=True) for r in range(TRAINERS)]
    for rank in ranks:
        rank.start()
    sync.init_communicator()
    answers_of(done, "joined")

    draw = torch.Generator().manual_seed(options.seed)
    rewards = []
    for step in range(options.steps):
        if sync.is_stale:
            report = sync.sync_weights(step=step).report
        prompts = torch.randint(VOCABULARY, (ANSWERS, PROMPT), generator=draw).tolist()
        sampling = [SamplingParams(temperature=1.0, max_tokens=ANSWER, min_tokens=ANSWER, ignore_eos=True, detokenize=False, seed=hash((options.seed, step, i)) % 2**31) for i in range(ANSWERS)]
        made = llm.generate([{"prompt_token_ids": p} for p in prompts], sampling, use_tqdm=False)
        ids = [p + list(m.outputs[0].token_ids) for p, m in zip(prompts, made)]
        reward = [sum(t < VOCABULARY // 2 for t in row[PROMPT:]) / ANSWER for row in ids]
        mean = sum(reward) / len(reward)
        rewards.append(mean)
        proof = f"{report.tensors_live} tensors proven live" + (" and read again" if report.proof else "")
        print(f"step {step:3}  version {report.version.number:3}  reward {mean:.3f}  refit {report.seconds * 1e3:6.1f} ms  {proof}", flush=True)
        for r in range(TRAINERS):
            rollouts[r].put({"ids": ids[r::TRAINERS], "advantages": [x - mean for x in reward[r::TRAINERS]]})
        answers_of(done, step + 1)
        sync.mark_stale()

    for queue in rollouts:
        queue.put(None)
    for rank in ranks:
        rank.join(20)
    sync.shutdown()
    if options.out:
        options.out.write_text(json.dumps(rewards))
    print(f"reward {rewards[0]:.3f} -> {rewards[-1]:.3f}")


if __name__ == "__main__":
    main()
