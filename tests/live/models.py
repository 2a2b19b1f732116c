"""Tiny random models of every family, as transformers builds them.

`FAMILIES[name]` is (configuration class, keys beyond the common ones). Sizes are uneven where the framework allows it:
the vocabulary is odd, widths differ pairwise. Head sizes are ones for which engines have attention kernels.
"""
import json
import pathlib

import torch
import transformers

COMMON = dict(vocab_size=131, hidden_size=72, intermediate_size=104, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=2,
              head_dim=32, max_position_embeddings=64, tie_word_embeddings=False, bos_token_id=1, eos_token_id=2, pad_token_id=0, dtype="bfloat16")
EXPERTS = dict(num_experts=8, num_experts_per_tok=2, moe_intermediate_size=40)
LATENT = dict(num_key_value_heads=8, head_dim=16, q_lora_rank=56, kv_lora_rank=32, qk_nope_head_dim=32, qk_rope_head_dim=16, v_head_dim=32, n_routed_experts=8,
              num_experts_per_tok=2, n_shared_experts=2, moe_intermediate_size=40, n_group=2, topk_group=1, first_k_dense_replace=1, topk_method="noaux_tc")
DELTA = dict(linear_num_key_heads=4, linear_num_value_heads=8, linear_key_head_dim=32, linear_value_head_dim=32, linear_conv_kernel_dim=4,
             layer_types=["linear_attention", "full_attention"] * 2)
GEMMA4 = dict(tie_word_embeddings=True, layer_types=["sliding_attention", "full_attention"] * 2, sliding_window=8, global_head_dim=64,
              hidden_size_per_layer_input=16, vocab_size_per_layer_input=131)
NEMOTRON = dict(layers_block_type=["mamba", "moe", "attention", "mlp"], num_hidden_layers=None, mamba_num_heads=8, mamba_head_dim=16, ssm_state_size=24, n_groups=4, expand=2, conv_kernel=4,
                n_routed_experts=8, num_experts_per_tok=2, moe_intermediate_size=40, moe_shared_expert_intermediate_size=48, n_group=2, topk_group=1)

FAMILIES = {
    "llama": ("Llama", {}),
    "llama, tied": ("Llama", dict(tie_word_embeddings=True)),
    "llama, biases": ("Llama", dict(attention_bias=True, mlp_bias=True)),
    "qwen2": ("Qwen2", dict(head_dim=None, hidden_size=256, tie_word_embeddings=True)),
    "qwen3": ("Qwen3", {}),
    "qwen3_moe": ("Qwen3Moe", EXPERTS | dict(mlp_only_layers=[1], norm_topk_prob=True)),
    "deepseek_v3": ("DeepseekV3", LATENT),
    "deepseek_v3, no q-LoRA": ("DeepseekV3", LATENT | dict(q_lora_rank=None)),
    "glm4_moe": ("Glm4Moe", dict(n_routed_experts=8, num_experts_per_tok=2, n_shared_experts=1, moe_intermediate_size=40, first_k_dense_replace=1, n_group=2,
                                 topk_group=1, use_qk_norm=True, attention_bias=True)),
    "qwen3_next": ("Qwen3Next", EXPERTS | DELTA | dict(shared_expert_intermediate_size=48)),
    "qwen3_5": ("Qwen3_5Text", DELTA),
    "qwen3_5_moe": ("Qwen3_5MoeText", EXPERTS | DELTA | dict(shared_expert_intermediate_size=48)),
    "gemma3": ("Gemma3Text", dict(tie_word_embeddings=True, layer_types=["sliding_attention", "full_attention"] * 2, sliding_window=8)),
    "gpt_oss": ("GptOss", dict(intermediate_size=40, num_local_experts=8, num_experts_per_tok=2, layer_types=["sliding_attention", "full_attention"] * 2,
                               sliding_window=8)),
    "gemma4": ("Gemma4Text", GEMMA4 | dict(num_kv_shared_layers=2, use_double_wide_mlp=True)),
    "gemma4, experts, k = v": ("Gemma4Text", GEMMA4 | dict(attention_k_eq_v=True, num_global_key_value_heads=1, enable_moe_block=True, num_experts=8, top_k_experts=2,
                                                           moe_intermediate_size=40, hidden_size_per_layer_input=0)),
    "nemotron_h": ("NemotronH", NEMOTRON),
    "nemotron_h, one group": ("NemotronH", NEMOTRON | dict(n_groups=1)),
}


def config(name, **changes):
    """The family's tiny configuration. Raises AttributeError where this transformers does not have it."""
    kind, keys = FAMILIES[name]
    return getattr(transformers, kind + "Config")(**{k: v for k, v in (COMMON | keys | changes).items() if v is not None or k == "q_lora_rank"})


def model_class(name):
    return getattr(transformers, FAMILIES[name][0].removesuffix("Text") + "ForCausalLM")


def build(name, seed=1, **changes):
    """A model in evaluation mode whose every parameter and buffer of the state dict is random, so that none is one of the
    constants that a fresh model has everywhere. Norm weights stay near 1: w - 1 is exact in float32. What families keep
    in float32 whatever the model's type is (correction biases) is so here."""
    torch.manual_seed(seed)
    made = config(name, **changes)
    out = model_class(name)._from_config(made, dtype=made.dtype).eval()
    generator = torch.Generator().manual_seed(seed)
    tensors = out.state_dict()
    done = set()
    for key in sorted(tensors):
        t = tensors[key]
        if t.data_ptr() in done:
            continue  # tied
        done.add(t.data_ptr())
        if key.endswith(("norm.weight", "layernorm.weight", "A_log")):
            t.copy_(torch.rand(t.shape, generator=generator) + 0.5)
            if key.endswith("q_norm.weight") and name.startswith("gemma4"):
                t.mul_(0.1)  # its scores have no other scale
        else:
            t.copy_(torch.randn(t.shape, generator=generator) * 0.08)
    for module in out.modules():
        bias = getattr(module, "e_score_correction_bias", None)
        if bias is not None:
            module.e_score_correction_bias = torch.randn(bias.shape, generator=generator)
    return out


def save(model, directory):
    model.save_pretrained(pathlib.Path(directory))


def add_drafts(model, directory, copies=False):
    """To a saved checkpoint, one draft layer as real ones have it, with random values: a layer like the last, and what joins
    it to the model; with `copies` those of the embedding and the head that checkpoints of numbered layers have. transformers
    makes none."""
    from safetensors.torch import load_file, save_file
    path, config = pathlib.Path(directory) / "model.safetensors", model.config
    width, last, numbered = config.hidden_size, f"model.layers.{config.num_hidden_layers - 1}.", hasattr(config, "first_k_dense_replace")
    tensors, random = load_file(path), torch.Generator().manual_seed(3)
    prefix = f"model.layers.{config.num_hidden_layers}." if numbered else "mtp.layers.0."
    shapes = {prefix + n.removeprefix(last): (t.shape, t.dtype) for n, t in tensors.items() if n.startswith(last)}
    names = [f"{prefix}{n}.weight" for n in ("enorm", "hnorm", "shared_head.norm", "eh_proj")] if numbered else [f"mtp.{n}.weight" for n in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm", "fc")]
    shapes |= dict.fromkeys(names[:3], ((width,), torch.bfloat16)) | {names[3]: ((width, 2 * width), torch.bfloat16)}
    tensors |= {n: torch.randn(shape, generator=random).to(dtype) for n, (shape, dtype) in shapes.items()}
    if copies and numbered:
        tensors |= {prefix + "embed_tokens.weight": tensors["model.embed_tokens.weight"].clone(), prefix + "shared_head.head.weight": tensors["lm_head.weight"].clone()}
    save_file(tensors, path, {"format": "pt"})
    config.num_nextn_predict_layers = config.refit_drafts = 1
    text = json.loads((path.parent / "config.json").read_text())
    (path.parent / "config.json").write_text(json.dumps(text | {"num_nextn_predict_layers": 1}))


def logits(model):
    """Of one fixed batch; the same code on the same bits gives the same bits."""
    tokens = torch.randint(3, model.config.vocab_size, (2, 11), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        return model(tokens).logits


def has_experts(name):
    return any("num_experts" in k or "n_routed_experts" in k or "num_local_experts" in k for k in FAMILIES[name][1])
