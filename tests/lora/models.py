"""What the LoRA tests train: tiny transformers models with real PEFT adapters."""

import peft
import torch
import transformers

SMALL = {
    "vocab_size": 131, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 32, "max_position_embeddings": 128, "tie_word_embeddings": False,
}  # fmt: skip
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]


def base(dtype=torch.float32, tied=False, seed=1):
    torch.manual_seed(seed)
    config = transformers.Qwen3Config(**{**SMALL, "tie_word_embeddings": tied}, dtype=dtype)
    config.architectures = ["Qwen3ForCausalLM"]
    return transformers.Qwen3ForCausalLM(config).to(dtype)


def noisy(model, seed=2):
    """PEFT starts B at zero: an adapter that changes something."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_" in name or "modules_to_save" in name:
                p.copy_(torch.randn(p.shape, generator=generator) * 0.1)
    return model


def adapted(dtype=torch.float32, tied=False, **options):
    options = {"r": 8, "lora_alpha": 24, "target_modules": ATTENTION + ["gate_proj", "up_proj", "down_proj"], "lora_dropout": 0.1} | options
    return noisy(peft.get_peft_model(base(dtype, tied), peft.LoraConfig(task_type="CAUSAL_LM", **options)))
