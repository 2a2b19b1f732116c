"""Decoder models in Flax NNX, in the trees that Refit's `jax` side documents: leaf `kernel` (in, out) of a matrix, `embedding`,
`scale` of a norm, stacked experts w1, w3, w2 in torch's order. Written for these comparisons; slow and plain."""
import jax
import jax.numpy as jnp
from flax import nnx


def parameter(*shape, dtype):
    return nnx.Param(jnp.zeros(shape, dtype))


class Linear(nnx.Module):
    def __init__(self, inputs, outputs, dtype, bias=False):
        self.kernel = parameter(inputs, outputs, dtype=dtype)
        if bias:
            self.bias = parameter(outputs, dtype=dtype)

    def __call__(self, x):
        out = x @ self.kernel[...]
        return out + self.bias[...] if hasattr(self, "bias") else out


class Embedding(nnx.Module):
    def __init__(self, rows, size, dtype):
        self.embedding = parameter(rows, size, dtype=dtype)


class Norm(nnx.Module):
    """RMS norm; `plus` is added to the stored scale (families that store the difference to 1)."""

    def __init__(self, size, eps, dtype, plus=0.0):
        self.scale, self.eps, self.plus = parameter(size, dtype=dtype), eps, plus

    def __call__(self, x):
        return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + self.eps) * (self.scale[...] + self.plus)


class GatedNorm(nnx.Module):
    """Of the delta net: leaf `weight`, a plain factor."""

    def __init__(self, size, eps, dtype):
        self.weight, self.eps = parameter(size, dtype=dtype), eps

    def __call__(self, x, gate):
        return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + self.eps) * self.weight[...] * jax.nn.silu(gate)


def rotate(x, theta, fraction=1.0):
    """Rotary positions over the first part of each head, halves apart. [batch, time, heads, size]"""
    size = int(x.shape[-1] * fraction)
    frequency = theta ** -(jnp.arange(0, size, 2) / size)
    angle = jnp.arange(x.shape[1])[:, None] * frequency
    cos, sin = (jnp.concatenate([f(angle)] * 2, -1)[None, :, None] for f in (jnp.cos, jnp.sin))
    turned, rest = x[..., :size], x[..., size:]
    a, b = jnp.split(turned, 2, -1)
    return jnp.concatenate([turned * cos + jnp.concatenate([-b, a], -1) * sin, rest], -1)


class Attention(nnx.Module):
    def __init__(self, c, layer, dtype):
        hd = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
        kind = c.model_type
        self.hd, self.heads, self.kv = hd, c.num_attention_heads, c.num_key_value_heads
        self.gated = kind == "qwen3_next"
        bias = kind == "qwen2" or bool(getattr(c, "attention_bias", False))
        self.q_proj = Linear(c.hidden_size, self.heads * hd * (2 if self.gated else 1), dtype, bias)
        self.k_proj = Linear(c.hidden_size, self.kv * hd, dtype, bias)
        self.v_proj = Linear(c.hidden_size, self.kv * hd, dtype, bias)
        self.o_proj = Linear(self.heads * hd, c.hidden_size, dtype, bias and kind != "qwen2")
        if kind in ("qwen3", "qwen3_moe", "qwen3_next", "gemma3_text"):
            plus = float(kind in ("qwen3_next", "gemma3_text"))
            self.q_norm, self.k_norm = (Norm(hd, c.rms_norm_eps, dtype, plus) for _ in "qk")
        gemma = kind == "gemma3_text"
        rope = c.rope_parameters[c.layer_types[layer]] if gemma else c.rope_parameters
        self.theta, self.fraction = rope["rope_theta"], rope.get("partial_rotary_factor", 1.0)
        self.window = c.sliding_window if gemma and c.layer_types[layer] == "sliding_attention" else None
        self.scale = (c.query_pre_attn_scalar if gemma else hd) ** -0.5

    def __call__(self, x):
        b, t, _ = x.shape
        q, k, v = self.q_proj(x), self.k_proj(x).reshape(b, t, self.kv, self.hd), self.v_proj(x).reshape(b, t, self.kv, self.hd)
        if self.gated:
            q, gate = jnp.split(q.reshape(b, t, self.heads, 2 * self.hd), 2, -1)
        q = q.reshape(b, t, self.heads, self.hd)
        if hasattr(self, "q_norm"):
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = rotate(q, self.theta, self.fraction), rotate(k, self.theta, self.fraction)
        k, v = (jnp.repeat(a, self.heads // self.kv, 2) for a in (k, v))
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * self.scale
        far = jnp.arange(t)[:, None] - jnp.arange(t)[None]
        seen = (far >= 0) & (far < (self.window or t))
        out = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), -1), v).reshape(b, t, -1)
        if self.gated:
            out = out * jax.nn.sigmoid(gate.reshape(b, t, -1))
        return self.o_proj(out)


class DeltaNet(nnx.Module):
    """Gated delta rule, step by step. Inputs are grouped by key head, as on disk."""

    def __init__(self, c, dtype):
        self.nk, self.nv, self.hk, self.hv, self.taps = c.linear_num_key_heads, c.linear_num_value_heads, c.linear_key_head_dim, c.linear_value_head_dim, c.linear_conv_kernel_dim
        kd, vd = self.nk * self.hk, self.nv * self.hv
        self.in_proj_qkvz = Linear(c.hidden_size, 2 * kd + 2 * vd, dtype)
        self.in_proj_ba = Linear(c.hidden_size, 2 * self.nv, dtype)
        self.conv_weight = parameter(2 * kd + vd, self.taps, dtype=dtype)
        self.dt_bias, self.A_log = parameter(self.nv, dtype=dtype), parameter(self.nv, dtype=dtype)
        self.norm = GatedNorm(self.hv, c.rms_norm_eps, dtype)
        self.out_proj = Linear(vd, c.hidden_size, dtype)

    def __call__(self, x):
        n, t, _ = x.shape
        r = self.nv // self.nk
        parts = self.in_proj_qkvz(x).reshape(n, t, self.nk, -1)
        q, k, v, z = jnp.split(parts, [self.hk, 2 * self.hk, 2 * self.hk + r * self.hv], -1)
        b, a = (y.reshape(n, t, self.nv) for y in jnp.split(self.in_proj_ba(x).reshape(n, t, self.nk, -1), 2, -1))
        mixed = jnp.concatenate([y.reshape(n, t, -1) for y in (q, k, v)], -1)
        padded = jnp.pad(mixed, ((0, 0), (self.taps - 1, 0), (0, 0)))
        mixed = jax.nn.silu(sum(padded[:, i:i + t] * self.conv_weight[...][:, i] for i in range(self.taps)))
        q, k, v = jnp.split(mixed, [self.nk * self.hk, 2 * self.nk * self.hk], -1)
        q, k = (jnp.repeat(y.reshape(n, t, self.nk, self.hk), r, 2) for y in (q, k))
        q, k = (y * jax.lax.rsqrt((y * y).sum(-1, keepdims=True) + 1e-6) for y in (q, k))
        v, z = v.reshape(n, t, self.nv, self.hv), z.reshape(n, t, self.nv, self.hv)
        decay = jnp.exp(-jnp.exp(self.A_log[...]) * jax.nn.softplus(a + self.dt_bias[...]))
        beta, state, out = jax.nn.sigmoid(b), jnp.zeros((n, self.nv, self.hk, self.hv)), []
        for i in range(t):
            state = state * decay[:, i, :, None, None]
            change = (v[:, i] - jnp.einsum("nhk,nhkv->nhv", k[:, i], state)) * beta[:, i, :, None]
            state = state + jnp.einsum("nhk,nhv->nhkv", k[:, i], change)
            out.append(jnp.einsum("nhk,nhkv->nhv", q[:, i] * self.hk ** -0.5, state))
        return self.out_proj(self.norm(jnp.stack(out, 1), z).reshape(n, t, -1))


class Dense(nnx.Module):
    def __init__(self, hidden, width, dtype, act=jax.nn.silu, bias=False):
        self.gate_proj, self.up_proj, self.down_proj = Linear(hidden, width, dtype, bias), Linear(hidden, width, dtype, bias), Linear(width, hidden, dtype, bias)
        self.act = act

    def __call__(self, x):
        return self.down_proj(self.act(self.gate_proj(x)) * self.up_proj(x))


class Router(nnx.Module):
    def __init__(self, c, dtype):
        self.gate = Linear(c.hidden_size, c.num_experts, dtype)


class Experts(nnx.Module):
    def __init__(self, c, dtype):
        e, f, d = c.num_experts, c.moe_intermediate_size, c.hidden_size
        self.w1_EFD, self.w3_EFD, self.w2_EDF = parameter(e, f, d, dtype=dtype), parameter(e, f, d, dtype=dtype), parameter(e, d, f, dtype=dtype)


class Shared(nnx.Module):
    def __init__(self, c, dtype):
        self.mlp = Dense(c.hidden_size, c.shared_expert_intermediate_size, dtype)
        self.shared_expert_gate = Linear(c.hidden_size, 1, dtype)


class MoE(nnx.Module):
    """Every expert for every token, weighted by the normalised scores of the chosen ones."""

    def __init__(self, c, dtype):
        self.router, self.experts, self.chosen, self.normalise = Router(c, dtype), Experts(c, dtype), c.num_experts_per_tok, c.norm_topk_prob
        if hasattr(c, "shared_expert_intermediate_size"):
            self.shared_experts = Shared(c, dtype)

    def __call__(self, x):
        scores = jax.nn.softmax(self.router.gate(x), -1)
        best, which = jax.lax.top_k(scores, self.chosen)
        if self.normalise:
            best = best / best.sum(-1, keepdims=True)
        weights = (jax.nn.one_hot(which, scores.shape[-1]) * best[..., None]).sum(-2)
        e = self.experts
        inner = jax.nn.silu(jnp.einsum("btd,efd->btef", x, e.w1_EFD[...])) * jnp.einsum("btd,efd->btef", x, e.w3_EFD[...])
        out = jnp.einsum("btef,edf,bte->btd", inner, e.w2_EDF[...], weights)
        if hasattr(self, "shared_experts"):
            out = out + self.shared_experts.mlp(x) * jax.nn.sigmoid(self.shared_experts.shared_expert_gate(x))
        return out


class Layer(nnx.Module):
    def __init__(self, c, layer, dtype):
        kind = c.model_type
        plus = float(kind in ("qwen3_next", "gemma3_text"))
        self.input_layernorm, self.post_attention_layernorm = (Norm(c.hidden_size, c.rms_norm_eps, dtype, plus) for _ in range(2))
        if kind == "gemma3_text":
            self.pre_feedforward_layernorm, self.post_feedforward_layernorm = (Norm(c.hidden_size, c.rms_norm_eps, dtype, plus) for _ in range(2))
        if kind == "qwen3_next" and c.layer_types[layer] == "linear_attention":
            self.linear_attn = DeltaNet(c, dtype)
        else:
            self.self_attn = Attention(c, layer, dtype)
        sparse = hasattr(c, "num_experts") and layer not in (c.mlp_only_layers or [])
        act = (lambda x: jax.nn.gelu(x, approximate=True)) if kind == "gemma3_text" else jax.nn.silu
        self.mlp = MoE(c, dtype) if sparse else Dense(c.hidden_size, c.intermediate_size, dtype, act, bool(getattr(c, "mlp_bias", False)))

    def __call__(self, x):
        mixer = self.linear_attn if hasattr(self, "linear_attn") else self.self_attn
        if hasattr(self, "pre_feedforward_layernorm"):
            x = x + self.post_attention_layernorm(mixer(self.input_layernorm(x)))
            return x + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x)))
        x = x + mixer(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nnx.Module):
    def __init__(self, c, dtype):
        self.embed_tokens = Embedding(c.vocab_size, c.hidden_size, dtype)
        self.layers = nnx.List([Layer(c, i, dtype) for i in range(c.num_hidden_layers)])
        self.norm = Norm(c.hidden_size, c.rms_norm_eps, dtype, float(c.model_type in ("qwen3_next", "gemma3_text")))
        self.factor = c.hidden_size ** 0.5 if c.model_type == "gemma3_text" else 1.0

    def __call__(self, tokens):
        x = self.embed_tokens.embedding[...][tokens] * self.factor
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


class CausalLM(nnx.Module):
    """`c` is a transformers configuration. Tied models have no `lm_head`."""

    def __init__(self, c, dtype):
        self.model = Decoder(c, dtype)
        if not c.tie_word_embeddings:
            self.lm_head = Linear(c.hidden_size, c.vocab_size, dtype)

    def __call__(self, tokens):
        x = self.model(tokens)
        return self.lm_head(x) if hasattr(self, "lm_head") else x @ self.model.embed_tokens.embedding[...].T
