"""What the trainers of these tests train."""

import torch
from torch import nn
from torch.nn import functional as F

CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 96, "intermediate_size": 120, "num_hidden_layers": 2,
    "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 16, "vocab_size": 131, "tie_word_embeddings": True,
    "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu", "torch_dtype": "bfloat16",
    "attention_bias": False, "mlp_bias": False,
}  # fmt: skip


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.heads, self.kv, self.size = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        h = c["hidden_size"]
        self.q_proj = nn.Linear(h, self.heads * self.size, bias=False)
        self.k_proj = nn.Linear(h, self.kv * self.size, bias=False)
        self.v_proj = nn.Linear(h, self.kv * self.size, bias=False)
        self.o_proj = nn.Linear(self.heads * self.size, h, bias=False)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = (p(x).view(b, t, n, self.size).transpose(1, 2) for p, n in ((self.q_proj, self.heads), (self.k_proj, self.kv), (self.v_proj, self.kv)))
        k, v = (y.repeat_interleave(self.heads // self.kv, 1) for y in (k, v))
        return self.o_proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, -1))


class MLP(nn.Module):
    def __init__(self, c):
        super().__init__()
        h, i = c["hidden_size"], c["intermediate_size"]
        self.gate_proj, self.up_proj = nn.Linear(h, i, bias=False), nn.Linear(h, i, bias=False)
        self.down_proj = nn.Linear(i, h, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.self_attn, self.mlp = Attention(c), MLP(c)
        self.input_layernorm, self.post_attention_layernorm = nn.RMSNorm(c["hidden_size"]), nn.RMSNorm(c["hidden_size"])

    def forward(self, x):
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    """The names and shapes of transformers' Llama; positions are left out, no test asks for them."""

    def __init__(self, c=CONFIG):
        super().__init__()
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.model.layers = nn.ModuleList(Layer(c) for _ in range(c["num_hidden_layers"]))
        self.model.norm = nn.RMSNorm(c["hidden_size"])
        self.lm_head = nn.Linear(c["hidden_size"], c["vocab_size"], bias=False)
        self.lm_head.weight = self.model.embed_tokens.weight
        # No weight, and not in the state dict: it must not travel.
        self.register_buffer("rope", torch.arange(8.0), persistent=False)

    def forward(self, ids):
        x = self.model.embed_tokens(ids)
        for layer in self.model.layers:
            x = layer(x)
        return self.lm_head(self.model.norm(x))


def sharded_llama(mesh):
    """FSDP2 over "dp" and tensor parallelism of the MLPs over "tp"; computes in bf16, keeps fp32."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    torch.manual_seed(7)
    model = Llama()
    plan = {"mlp.gate_proj": ColwiseParallel(), "mlp.up_proj": ColwiseParallel(), "mlp.down_proj": RowwiseParallel()}
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    for layer in model.model.layers:
        parallelize_module(layer, mesh["tp"], plan)
        fully_shard(layer, mesh=mesh["dp"], mp_policy=policy)
    fully_shard(model, mesh=mesh["dp"], mp_policy=policy)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

    def step(number):
        ids = torch.randint(0, 131, (2, 9), generator=torch.Generator().manual_seed(number))
        optimizer.zero_grad()
        F.cross_entropy(model(ids[:, :-1]).float().flatten(0, 1), ids[:, 1:].flatten()).backward()
        optimizer.step()

    return model, step


def one_rank_differs(mesh):
    """Rank 3's names carry a wrapper that nobody knows."""
    name = "w._checkpoint_wrapped_module" if mesh.get_rank() == 3 else "w"
    return {name: torch.zeros(4)}, None


def odd_tensors(mesh):
    """Tensors of sizes that no mesh divides, under every kind of placement."""
    from torch.distributed.tensor import DTensor, Replicate, Shard
    from torch.distributed.tensor.placement_types import _StridedShard

    torch.manual_seed(3)
    cases = {
        "rows": ((7, 3), (Shard(0), Replicate()), torch.float32),
        "rows.twice": ((7, 3), (Shard(0), Shard(0)), torch.bfloat16),
        "both": ((5, 9), (Shard(1), Shard(0)), torch.float32),
        "columns": ((3, 5, 2), (Replicate(), Shard(1)), torch.float16),
        "strided": ((13, 2), (_StridedShard(0, split_factor=2), Shard(0)), torch.float32),
        "strided.columns": ((2, 11), (_StridedShard(1, split_factor=2), Shard(1)), torch.bfloat16),
        "single": ((1, 4), (Shard(0), Shard(0)), torch.float32),
        "scalar": ((), (Replicate(), Replicate()), torch.float32),
        "counts": ((6,), (Shard(0), Replicate()), torch.int64),
    }
    full = {n: (torch.randn(s) * 40).to(d) for n, (s, _, d) in cases.items()}

    def distributed(whole, placements):
        """Cut by torch's own code, mesh axis after mesh axis."""
        local = whole
        for placement, size, at in zip(placements, mesh.shape, mesh.get_coordinate()):
            if not isinstance(placement, Replicate):
                local = placement._split_tensor(local, size, with_padding=False)[0][at]
        return DTensor.from_local(local.clone(), mesh, placements, run_check=False, shape=whole.shape, stride=whole.stride())

    tensors = {"module._orig_mod." + n: distributed(full[n], p) for n, (_, p, _) in cases.items()}
    tensors["module.plain"] = torch.arange(10.0)

    def step(number):
        for t in tensors.values():
            (t.to_local() if hasattr(t, "to_local") else t).add_(number)

    return tensors, step
