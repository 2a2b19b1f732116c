"""Gemma 4 (text) in Flax NNX, in the tree that Refit's `jax` side documents: norms are leaves `weight`, per-layer embeddings stand
under `model.per_layer`, experts stay fused, `layer_scalar` is a leaf. Plain rotary positions in all layers."""
import jax
import jax.numpy as jnp
from flax import nnx

from nnx_trees import Dense, Embedding, Linear, parameter, rotate


def gelu(x):
    return jax.nn.gelu(x, approximate=True)


def unit(x, eps):
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + eps)


class Norm(nnx.Module):
    def __init__(self, size, eps, dtype):
        self.weight, self.eps = parameter(size, dtype=dtype), eps

    def __call__(self, x):
        return unit(x, self.eps) * self.weight[...]


class Attention(nnx.Module):
    """`store` carries keys and values to the layers that borrow them."""

    def __init__(self, c, layer, dtype):
        self.kind = c.layer_types[layer]
        own = c.per_layer_config[layer]
        self.hd, self.heads, self.kv, self.eps = own.head_dim, c.num_attention_heads, own.num_key_value_heads, c.rms_norm_eps
        self.window = c.sliding_window if self.kind == "sliding_attention" else None
        self.theta = c.rope_parameters[self.kind]["rope_theta"]
        self.q_proj, self.q_norm = Linear(c.hidden_size, self.heads * self.hd, dtype), Norm(self.hd, c.rms_norm_eps, dtype)
        self.borrows = layer >= c.num_hidden_layers - c.num_kv_shared_layers
        if not self.borrows:
            self.k_proj, self.k_norm = Linear(c.hidden_size, self.kv * self.hd, dtype), Norm(self.hd, c.rms_norm_eps, dtype)
            if not c.attention_k_eq_v or self.window:
                self.v_proj = Linear(c.hidden_size, self.kv * self.hd, dtype)
        self.o_proj = Linear(self.heads * self.hd, c.hidden_size, dtype)

    def __call__(self, x, store):
        b, t, _ = x.shape
        q = rotate(self.q_norm(self.q_proj(x).reshape(b, t, self.heads, self.hd)), self.theta)
        if not self.borrows:
            k = self.k_proj(x).reshape(b, t, self.kv, self.hd)
            v = self.v_proj(x).reshape(k.shape) if hasattr(self, "v_proj") else k
            store[self.kind] = rotate(self.k_norm(k), self.theta), unit(v, self.eps)
        k, v = (jnp.repeat(a, self.heads // self.kv, 2) for a in store[self.kind])
        far = jnp.arange(t)[:, None] - jnp.arange(t)[None]
        seen = (far >= 0) & (far < (self.window or t))
        scores = jnp.where(seen, jnp.einsum("bqhd,bkhd->bhqk", q, k), -jnp.inf)
        return self.o_proj(jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, -1), v).reshape(b, t, -1))


class Router(nnx.Module):
    def __init__(self, c, dtype):
        self.proj, self.scale, self.per_expert_scale = Linear(c.hidden_size, c.num_experts, dtype), parameter(c.hidden_size, dtype=dtype), parameter(c.num_experts, dtype=dtype)
        self.eps, self.chosen = c.rms_norm_eps, c.top_k_experts

    def __call__(self, x):
        scores = jax.nn.softmax(self.proj(unit(x, self.eps) * self.scale[...] * x.shape[-1] ** -0.5), -1)
        best, which = jax.lax.top_k(scores, self.chosen)
        best = best / best.sum(-1, keepdims=True)
        return (jax.nn.one_hot(which, scores.shape[-1]) * best[..., None]).sum(-2) * self.per_expert_scale[...]


class Experts(nnx.Module):
    def __init__(self, c, dtype):
        e, f, d = c.num_experts, c.moe_intermediate_size, c.hidden_size
        self.gate_up_proj, self.down_proj = parameter(e, 2 * f, d, dtype=dtype), parameter(e, d, f, dtype=dtype)

    def __call__(self, x, weights):
        gate, up = jnp.split(jnp.einsum("btd,efd->btef", x, self.gate_up_proj[...]), 2, -1)
        return jnp.einsum("btef,edf,bte->btd", gelu(gate) * up, self.down_proj[...], weights)


class Layer(nnx.Module):
    def __init__(self, c, layer, dtype):
        def norm():
            return Norm(c.hidden_size, c.rms_norm_eps, dtype)
        self.self_attn = Attention(c, layer, dtype)
        wide = c.use_double_wide_mlp and self.self_attn.borrows
        self.mlp = Dense(c.hidden_size, c.intermediate_size * (2 if wide else 1), dtype, gelu)
        self.input_layernorm, self.post_attention_layernorm, self.pre_feedforward_layernorm, self.post_feedforward_layernorm = norm(), norm(), norm(), norm()
        self.layer_scalar = parameter(1, dtype=dtype)
        if c.hidden_size_per_layer_input:
            self.per_layer_input_gate, self.per_layer_projection = Linear(c.hidden_size, c.hidden_size_per_layer_input, dtype), Linear(c.hidden_size_per_layer_input, c.hidden_size, dtype)
            self.post_per_layer_input_norm = norm()
        if c.enable_moe_block:
            self.router, self.experts = Router(c, dtype), Experts(c, dtype)
            self.post_feedforward_layernorm_1, self.post_feedforward_layernorm_2, self.pre_feedforward_layernorm_2 = norm(), norm(), norm()

    def __call__(self, x, extra, store):
        x = x + self.post_attention_layernorm(self.self_attn(self.input_layernorm(x), store))
        y = self.mlp(self.pre_feedforward_layernorm(x))
        if hasattr(self, "router"):
            routed = self.experts(self.pre_feedforward_layernorm_2(x), self.router(x))
            y = self.post_feedforward_layernorm_1(y) + self.post_feedforward_layernorm_2(routed)
        x = x + self.post_feedforward_layernorm(y)
        if extra is not None:
            x = x + self.post_per_layer_input_norm(self.per_layer_projection(gelu(self.per_layer_input_gate(x)) * extra))
        return x * self.layer_scalar[...]


class PerLayer(nnx.Module):
    """A small input of its own for each layer: a table by token, and a projection of the embedding."""

    def __init__(self, c, dtype):
        p = c.hidden_size_per_layer_input
        self.embed_tokens_per_layer = Embedding(c.vocab_size_per_layer_input, c.num_hidden_layers * p, dtype)
        self.per_layer_model_projection = Linear(c.hidden_size, c.num_hidden_layers * p, dtype)
        self.per_layer_projection_norm = Norm(p, c.rms_norm_eps, dtype)
        self.layers, self.size = c.num_hidden_layers, p

    def __call__(self, tokens, x):
        shape = (*tokens.shape, self.layers, self.size)
        table = self.embed_tokens_per_layer.embedding[...][tokens].reshape(shape) * self.size ** 0.5
        projected = self.per_layer_projection_norm((self.per_layer_model_projection(x) * x.shape[-1] ** -0.5).reshape(shape))
        return (projected + table) * 2 ** -0.5


class Decoder(nnx.Module):
    def __init__(self, c, dtype):
        self.embed_tokens = Embedding(c.vocab_size, c.hidden_size, dtype)
        if c.hidden_size_per_layer_input:
            self.per_layer = PerLayer(c, dtype)
        self.layers = nnx.List([Layer(c, i, dtype) for i in range(c.num_hidden_layers)])
        self.norm = Norm(c.hidden_size, c.rms_norm_eps, dtype)

    def __call__(self, tokens):
        x = self.embed_tokens.embedding[...][tokens]
        x = x * x.shape[-1] ** 0.5
        extra = self.per_layer(tokens, x) if hasattr(self, "per_layer") else None
        store = {}
        for i, layer in enumerate(self.layers):
            x = layer(x, None if extra is None else extra[:, :, i], store)
        return self.norm(x)


class CausalLM(nnx.Module):
    def __init__(self, c, dtype):
        self.model = Decoder(c, dtype)

    def __call__(self, tokens):
        return self.model(tokens) @ self.model.embed_tokens.embedding[...].T
