#!/usr/bin/env python3
"""transformers' own models of every family: saved, converted to each side and back, rebuilt; every tensor equal bit for bit
and the forward pass equal to the last bit. What `fsdp` holds is compared with the module's own state dict.

usage: transformers_models.py [--refit BINARY] [--only FAMILY] [--rows FILE]
"""

import shutil

import support

support.need("torch", "transformers", "safetensors")
import models  # noqa: E402
import torch  # noqa: E402

torch.set_num_threads(1)
SIDES = ["fsdp=3", "tp=4", "fsdp=2,tp=2", "megatron:tp=2,pp=2", "megatron:tp=4,spec=local", "megatron:pp=2,vpp=2", "vllm:tp=2", "vllm:tp=4", "sglang:tp=2", "sglang:tp=4"]
EXPERTS = ["megatron:tp=2,ep=4", "megatron:tp=2,pp=2,ep=2,etp=2", "megatron:ep=2,experts=stacked", "vllm:tp=2,dp=2,ep=4", "vllm:tp=2,dp=2", "sglang:tp=4,ep=2", "fsdp=2,tp=2,naming=fused"]
JAX_FAMILIES = {"Llama", "Qwen2", "Qwen3", "Qwen3Moe", "Qwen3Next", "Gemma3Text", "Gemma4Text"}
# Sides that refuse a family, or a form of it, by name.
WITHOUT = {"gemma4": ("megatron",), "gemma4, experts, k = v": ("megatron:ep=2,experts=stacked",), "gpt_oss": ("megatron:ep=2,experts=stacked",), "nemotron_h": ("sglang",),
           "nemotron_h, one group": ("sglang", "megatron:tp")}


def sides(name):
    out = SIDES + EXPERTS * models.has_experts(name) + ["jax"] * (models.FAMILIES[name][0] in JAX_FAMILIES)
    return [s for s in out if not s.startswith(WITHOUT.get(name, ("-",)))]


def round_trips(desk, name, source, saved, want, specs):
    for spec in specs:
        with desk.row(name, "save_pretrained → side → back: every tensor and the rebuilt model's logits, exactly", spec) as row:
            there, back = desk.base / "there", desk.base / "back"
            desk.convert(source, spec, there)
            desk.convert(there, "hf", back, source=spec)
            row["checked"] = support.equal(support.tensors(back, "model"), saved, spec)
            rebuilt = models.model_class(name).from_pretrained(back, dtype="auto").eval()
            assert torch.equal(models.logits(rebuilt), want), f"{spec}: logits differ"


def state_dict(desk, name, model, source, want):
    """Shards of `fsdp` with the module's own (stacked) names: joined they load strictly into a fresh model."""
    naming = ",naming=fused" if models.has_experts(name) else ""
    for ranks in (2, 3):
        spec = f"fsdp={ranks}{naming}"
        with desk.row(name, "shards joined = the module's state_dict(), loaded strictly; logits exactly", spec) as row:
            there = desk.base / "there"
            desk.convert(source, spec, there)
            held = [support.tensors(there, f"rank{r}") for r in range(ranks)]
            own = model.state_dict()
            held = [{n.replace("backbone.", "model.", 1): t for n, t in h.items()} for h in held]  # transformers 5 renames Nemotron-H on the way in
            whole = own.keys() - dict(model.named_parameters()).keys()  # buffers: FSDP2 leaves them alone
            joined = {n: held[0][n] if n in whole else torch.cat([h[n] for h in held if n in h]) for n in dict.fromkeys(n for h in held for n in h)}
            for n, t in own.items():
                if n in joined:
                    for h, chunk in zip(held, [t] * ranks if n in whole else t.chunk(ranks)):  # FSDP2's cut
                        assert torch.equal(h[n], chunk), f"{n}: {list(h[n].shape)} is not {list(chunk.shape)}"
            tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
            row["checked"] = support.equal(joined, {n: t for n, t in own.items() if n not in tied}, spec)
            fresh = models.build(name, seed=2)
            missing, unexpected = fresh.load_state_dict(joined, strict=False)
            assert set(missing) <= tied and not unexpected, (missing, unexpected)
            assert torch.equal(models.logits(fresh), want), "logits differ"


def main():
    desk = support.Desk("transformers", ["transformers", "torch", "safetensors"])
    for name in desk.wanted(models.FAMILIES):
        source = desk.base / "hf"
        # An odd vocabulary where shards may be uneven; JAX cuts evenly only.
        for changes, specs in [({}, sides(name))] + [(dict(vocab_size=132), ["jax:tp=2"])] * (models.FAMILIES[name][0] in JAX_FAMILIES):
            model = models.build(name, **changes)
            models.save(model, source)
            if not desk.knows(source, name):
                shutil.rmtree(source)
                break
            saved, want = support.tensors(source, "model"), models.logits(model)
            assert want.isfinite().all() and want.std() > 0.01
            round_trips(desk, name, source, saved, want, specs)
            if not changes:
                state_dict(desk, name, model, source, want)
            shutil.rmtree(source)
    desk.finish()


if __name__ == "__main__":
    main()
