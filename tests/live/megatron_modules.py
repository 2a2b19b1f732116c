#!/usr/bin/env python3
"""Megatron-Core's own GPT modules on CPU (local spec, gloo, one process a rank, TP, PP, VPP, EP, ETP): names, shapes and
dtypes of every rank's live module = what `refit convert --to megatron:…,spec=local` writes; the files load strictly, and the
modules' state goes back to the checkpoint bit for bit. Where the forward pass runs on CPU, float32 logits of the loaded
Megatron model equal transformers' within 1e-4: then the arrangement is right and not only self-consistent.

usage: megatron_modules.py [--refit BINARY] [--only FAMILY] [--rows FILE]
"""
import contextlib
import dataclasses
import math
import multiprocessing
import os
import pathlib
import shutil
import socket
import sys
import traceback
import types
import warnings

import support

warnings.filterwarnings("ignore")
os.environ.update(OMP_NUM_THREADS="1", TORCHDYNAMO_DISABLE="1")
support.need("torch", "transformers", "safetensors")
import torch  # noqa: E402


class GroupNorm(torch.nn.Module):
    """The one module with a parameter that Megatron's Mamba mixer takes from another package, whose kernels need a GPU."""

    def __init__(self, size, device=None, dtype=None, **_):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(size, device=device, dtype=dtype))


for name, members in {"mamba_ssm": {}, "mamba_ssm.ops": {}, "mamba_ssm.ops.triton": {}, "mamba_ssm.ops.triton.layernorm_gated": {"RMSNorm": GroupNorm},
                      "mamba_ssm.ops.triton.ssd_combined": {"mamba_chunk_scan_combined": None, "mamba_split_conv1d_scan_combined": None}}.items():
    sys.modules[name] = types.ModuleType(name)
    vars(sys.modules[name]).update(members)
support.need("megatron.core")
import torch.nn.functional as F  # noqa: E402
from megatron.core import parallel_state  # noqa: E402
from megatron.core.activations import squared_relu  # noqa: E402
from megatron.core.fusions.fused_bias_geglu import quick_gelu  # noqa: E402
from megatron.core.models.gpt import GPTModel  # noqa: E402
from megatron.core.models.gpt import gpt_layer_specs  # noqa: E402
from megatron.core.models.mamba import MambaModel  # noqa: E402
from megatron.core.resharding.copy_services.base import CopyService  # noqa: E402
from megatron.core.resharding.refit import reshard_model_weights  # noqa: E402
from megatron.core.ssm import gated_delta_net  # noqa: E402
from megatron.core.ssm.mamba_block import MambaStack, MambaStackSubmodules  # noqa: E402
from megatron.core.ssm.mamba_layer import MambaLayer, MambaLayerSubmodules  # noqa: E402
from megatron.core.ssm.mamba_mixer import MambaMixer, MambaMixerSubmodules  # noqa: E402
from megatron.core.ssm.mlp_layer import MLPLayer  # noqa: E402
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear  # noqa: E402
from megatron.core.tensor_parallel.random import CudaRNGStatesTracker  # noqa: E402
from megatron.core.transformer import multi_latent_attention  # noqa: E402
from megatron.core.transformer.moe import moe_utils  # noqa: E402
from megatron.core.transformer.module import Float16Module  # noqa: E402
from megatron.core.transformer.multi_token_prediction import mtp_on_this_rank  # noqa: E402
from megatron.core.transformer.spec_utils import ModuleSpec  # noqa: E402
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build  # noqa: E402
from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig  # noqa: E402
from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add  # noqa: E402
from megatron.core.ssm import mamba_block  # noqa: E402
from megatron.core.transformer.transformer_layer import MoETransformerLayer, TransformerLayer, TransformerLayerSubmodules, get_transformer_layer_offset  # noqa: E402

import models  # noqa: E402

torch.set_num_threads(1)
DEADLINE = 120
# Stand-ins that a machine without a GPU needs: the current device, moving a tensor there, and the GPU's random state,
# which dropout (of probability 0 here) asks for.
torch.cuda.current_device = lambda: torch.device("cpu")
torch.Tensor.cuda = lambda self, *_, **__: self
# Names that these modules use without their import where Transformer Engine is missing.
moe_utils.te_general_gemm = None
multi_latent_attention.TELinear = type("TELinear", (), {})
CudaRNGStatesTracker.fork = lambda self, *_, **__: contextlib.nullcontext()

DENSE = ["tp=1", "tp=2,pp=2", "tp=4", "pp=2,vpp=2", "tp=2,pp=4,first=1"]
PIPELINES = ["tp=2,pp=2,layout=Et*3|tL", "pp=4,layout=E|tt|tt|L", "pp=2,vpp=2,layout=Ett|t||tL", "pp=3,account=both", "pp=5,account=loss", "tp=2,pp=5,account=embedding"]
# Of a model with one draft layer. Not on the first rank of several chunks: Megatron waits for ever for the embedding then.
DRAFTS = ["tp=1", "tp=2,pp=2", "pp=4,layout=Et|tt|tm|L", "tp=2,pp=4,layout=Ett|tt|m|L", "pp=2,vpp=2,layout=Et|t|t|tmL", "pp=2,layout=Ettttm|L", "pp=5,account=loss"]
EXPERTS = ["tp=1", "tp=2,pp=2", "tp=2,ep=2", "ep=4", "tp=2,pp=2,ep=2,etp=1", "tp=2,ep=2,etp=2"]
PLAIN_BIAS = ["tp=1", "tp=2,pp=2", "tp=2,ep=2", "ep=4", "tp=2,pp=2,ep=2,etp=1"]  # Megatron itself refuses expert biases with etp > 1

# Family -> (specs, whether the forward pass runs on CPU).
FAMILIES = {"llama": (DENSE + PIPELINES, True), "llama, tied": (DENSE + ["pp=3,layout=Et|tt|tL", "pp=3,account=both"], True), "llama, biases": (DENSE, True), "qwen2": (DENSE, True), "qwen3": (DENSE, True), "qwen3_moe": (EXPERTS, True),
            "deepseek_v3": (EXPERTS, True), "deepseek_v3, no q-LoRA": (EXPERTS, True), "glm4_moe": (EXPERTS, True), "gpt_oss": (PLAIN_BIAS, True),
            "qwen3_next": (EXPERTS, True), "qwen3_5": (["tp=1", "tp=2,pp=2", "tp=4"], True), "qwen3_5_moe": (EXPERTS, True),
            "deepseek_v3, drafts": (DRAFTS, False), "qwen3_next, drafts": (DRAFTS, False),
            "nemotron_h": (["tp=1", "tp=2", "tp=4", "tp=2,ep=2", "ep=4", "tp=2,ep=2,etp=2"], False)}
# Megatron's own resharder as a second opinion: four ranks of one layout to four of another.
# Not experts: its planner takes the tp group for those of etp=1, and then refuses their sizes.
RESHARDS = {"llama": [("tp=2,pp=2", "tp=4")], "qwen2": [("tp=2,pp=2", "tp=4")], "qwen3": [("tp=4", "tp=2,pp=2")]}
# What Megatron's local modules do without: sliding windows and yarn.
PLAIN = {"gpt_oss": dict(sliding_window=64, rope_parameters={"rope_type": "default", "rope_theta": 10000.0})}


def sizes(spec):
    out = dict(tp=1, pp=1, vpp=1, ep=1, etp=1, first=0, account="", layout="")
    out |= {k: int(v) if isinstance(out[k], int) else v for k, v in (part.split("=") for part in spec.split(","))}
    width, experts = out["tp"], out["ep"] * out["etp"]
    dp = experts // math.gcd(width, experts)
    return out, width * dp * out["pp"]


def drafts_of(hf):
    return getattr(hf, "refit_drafts", 0)  # models of transformers have none: see models.add_drafts()


def config_of(hf, par, dtype):
    """Megatron's configuration for a transformers one."""
    kind = hf.model_type
    moe = getattr(hf, "num_experts", None) or getattr(hf, "n_routed_experts", None) or getattr(hf, "num_local_experts", None)
    out = dict(
        num_layers=hf.num_hidden_layers, hidden_size=hf.hidden_size, num_attention_heads=hf.num_attention_heads, num_query_groups=hf.num_key_value_heads, kv_channels=getattr(hf, "head_dim", None) or hf.hidden_size // hf.num_attention_heads,
        ffn_hidden_size=getattr(hf, "intermediate_size", None) or hf.moe_intermediate_size, gated_linear_unit=True, activation_func=F.silu, normalization="RMSNorm",
        layernorm_epsilon=getattr(hf, "rms_norm_eps", 1e-5), hidden_dropout=0.0, attention_dropout=0.0, add_bias_linear=kind == "gpt_oss" or bool(getattr(hf, "mlp_bias", False)),
        add_qkv_bias=kind in ("qwen2", "glm4_moe", "gpt_oss") or bool(getattr(hf, "attention_bias", False)), qk_layernorm=kind in ("qwen3", "qwen3_moe", "glm4_moe", "deepseek_v3") or "linear_key_head_dim" in vars(hf) or hasattr(hf, "linear_key_head_dim"),
        use_cpu_initialization=True, params_dtype=dtype, pipeline_dtype=dtype, bf16=dtype == torch.bfloat16, tensor_model_parallel_size=par["tp"], pipeline_model_parallel_size=par["pp"],
        virtual_pipeline_model_parallel_size=par["vpp"] if par["vpp"] > 1 else None, expert_model_parallel_size=par["ep"], expert_tensor_parallel_size=par["etp"],
        num_layers_in_first_pipeline_stage=par["first"] or None, account_for_embedding_in_pipeline_split=par["account"] in ("embedding", "both"),
        account_for_loss_in_pipeline_split=par["account"] in ("loss", "both"), pipeline_model_parallel_layout=par["layout"] or None, mtp_num_layers=drafts_of(hf) or None, bias_dropout_fusion=False, bias_activation_fusion=False, masked_softmax_fusion=False, apply_rope_fusion=False, gradient_accumulation_fusion=False)
    if moe:
        sigmoid = kind in ("deepseek_v3", "glm4_moe", "nemotron_h")
        dense = [i in getattr(hf, "mlp_only_layers", []) or i < getattr(hf, "first_k_dense_replace", 0) for i in range(hf.num_hidden_layers)]
        out |= dict(num_moe_experts=moe, moe_ffn_hidden_size=hf.moe_intermediate_size if kind != "gpt_oss" else hf.intermediate_size, moe_router_topk=hf.num_experts_per_tok, moe_layer_freq=[int(not d) for d in dense],
                    moe_router_load_balancing_type="none", moe_router_score_function="sigmoid" if sigmoid else "softmax", moe_router_enable_expert_bias=sigmoid, moe_token_dispatcher_type="allgather",
                    moe_router_dtype="fp32")
        if sigmoid:
            out |= dict(moe_router_num_groups=hf.n_group, moe_router_group_topk=hf.topk_group, moe_router_topk_scaling_factor=hf.routed_scaling_factor, moe_shared_expert_intermediate_size=hf.n_shared_experts * hf.moe_intermediate_size)
        if hasattr(hf, "shared_expert_intermediate_size"):
            out |= dict(moe_shared_expert_intermediate_size=hf.shared_expert_intermediate_size, moe_shared_expert_gate=True)
    if kind == "gpt_oss":
        out |= dict(softmax_type="learnable", activation_func=quick_gelu, glu_linear_offset=1.0, activation_func_clamp_value=7.0)
    if hasattr(hf, "linear_key_head_dim"):
        out |= dict(attention_output_gate=True, experimental_attention_variant="gated_delta_net", linear_attention_freq=[int(t == "linear_attention") for t in hf.layer_types], linear_conv_kernel_dim=hf.linear_conv_kernel_dim,
                    linear_key_head_dim=hf.linear_key_head_dim, linear_value_head_dim=hf.linear_value_head_dim, linear_num_key_heads=hf.linear_num_key_heads, linear_num_value_heads=hf.linear_num_value_heads, deterministic_mode=True)
    if kind == "nemotron_h":
        del out["moe_layer_freq"]
        out |= dict(gated_linear_unit=False, activation_func=squared_relu, qk_layernorm=False, layernorm_epsilon=hf.layer_norm_epsilon, mamba_num_heads=hf.mamba_num_heads, mamba_head_dim=hf.mamba_head_dim,
                    mamba_state_dim=hf.ssm_state_size, mamba_num_groups=hf.n_groups, moe_shared_expert_intermediate_size=hf.moe_shared_expert_intermediate_size, is_hybrid_model=True)
    if kind == "deepseek_v3":
        del out["kv_channels"]
        return MLATransformerConfig(**out, multi_latent_attention=True, q_lora_rank=hf.q_lora_rank, kv_lora_rank=hf.kv_lora_rank, qk_head_dim=hf.qk_nope_head_dim, qk_pos_emb_head_dim=hf.qk_rope_head_dim,
                                    v_head_dim=hf.v_head_dim, rope_type="rope", rotary_base=hf.rope_parameters["rope_theta"], rotary_percent=1.0)
    return TransformerConfig(**out)


class ZeroCentredNorm(torch.nn.Module):
    """RMS norm whose weight counts from 1, in float32: what Transformer Engine does under layernorm_zero_centered_gamma."""

    def __init__(self, config, hidden_size, eps=1e-6, **_):
        super().__init__()
        self.eps, self.weight = eps, torch.nn.Parameter(torch.zeros(hidden_size, dtype=config.params_dtype))

    def forward(self, x):
        return F.rms_norm(x.float(), x.shape[-1:], self.weight.float() + 1, self.eps).to(x.dtype)


class CausalAttention(torch.nn.Module):
    """Stands where latent attention wants Transformer Engine's kernel: it has no parameters. [s, b, heads, size] each."""

    def __init__(self, config, softmax_scale=None, **_):
        super().__init__()
        self.scale = softmax_scale

    def forward(self, query, key, value, attention_mask=None, **_):
        q, k, v = (t.permute(1, 2, 0, 3) for t in (query, key, value))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.scale)
        return out.permute(2, 0, 1, 3).flatten(2)


def layer_specs(config, hf):
    """A spec for each of the model's layers, from modules that need no GPU."""
    specs = gpt_layer_specs.get_gpt_decoder_layer_specs(config, use_transformer_engine=False, normalization="RMSNorm")
    if config.multi_latent_attention:
        for s in specs:
            s.submodules.self_attention.submodules.core_attention = CausalAttention
    if config.experimental_attention_variant != "gated_delta_net":
        return specs
    # The module wants Flash Linear Attention when it is made, though only its forward pass calls it.
    gated_delta_net.HAVE_FLA = True
    gated_delta_net.l2norm = lambda x: x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)
    delta = ModuleSpec(module=gated_delta_net.GatedDeltaNet, submodules=gated_delta_net.GatedDeltaNetSubmodules(in_proj=ColumnParallelLinear, out_norm=ZeroCentredNorm, out_proj=RowParallelLinear))
    for s in specs:
        s.submodules.input_layernorm = s.submodules.pre_mlp_layernorm = ZeroCentredNorm
        s.submodules.self_attention.submodules.q_layernorm = s.submodules.self_attention.submodules.k_layernorm = ZeroCentredNorm
    return [ModuleSpec(module=s.module, params=s.params, submodules=dataclasses.replace(s.submodules, self_attention=delta)) if linear else s for s, linear in zip(specs, config.linear_attention_freq)]


def draft_specs(config, hf, stage):
    """Of this stage's draft layers; None where it has none."""
    if not drafts_of(hf) or not mtp_on_this_rank(config, ignore_virtual=False, vp_stage=stage):
        return None
    norm = ZeroCentredNorm if config.experimental_attention_variant else gpt_layer_specs.LNImpl
    specs = gpt_layer_specs.get_gpt_mtp_block_spec(config, TransformerBlockSubmodules(layer_specs=layer_specs(config, hf)), use_transformer_engine=False, vp_stage=stage)
    for s in specs.layer_specs:
        s.submodules.enorm = s.submodules.hnorm = s.submodules.layer_norm = norm
    return specs


def hybrid(config, hf, vocabulary):
    """Nemotron-H: one mixer a layer, each with a norm before it."""
    dense, moe = (gpt_layer_specs.get_gpt_layer_local_spec(num_experts=n, normalization="RMSNorm").submodules for n in (None, config.num_moe_experts))
    norm = dense.input_layernorm
    mixer = ModuleSpec(module=MambaMixer, submodules=MambaMixerSubmodules(in_proj=ColumnParallelLinear, out_proj=RowParallelLinear))
    stack = MambaStackSubmodules(
        mamba_layer=ModuleSpec(module=MambaLayer, submodules=MambaLayerSubmodules(norm=norm, mixer=mixer, mamba_bda=get_bias_dropout_add)),
        attention_layer=ModuleSpec(module=TransformerLayer, submodules=TransformerLayerSubmodules(input_layernorm=norm, self_attention=dense.self_attention, self_attn_bda=get_bias_dropout_add)),
        mlp_layer=ModuleSpec(module=MLPLayer, submodules=TransformerLayerSubmodules(pre_mlp_layernorm=norm, mlp=dense.mlp, mlp_bda=get_bias_dropout_add)),
        moe_layer=ModuleSpec(module=MoETransformerLayer, submodules=TransformerLayerSubmodules(pre_mlp_layernorm=norm, mlp=moe.mlp, mlp_bda=get_bias_dropout_add)))
    pattern = "".join({"mamba": "M", "linear_attention": "M", "attention": "*", "full_attention": "*", "mlp": "-", "moe": "E"}[t] for t in hf.layers_block_type)
    mamba_block.TENorm = norm  # of the stack's end
    return MambaModel(config, ModuleSpec(module=MambaStack, submodules=stack), vocab_size=vocabulary, max_sequence_length=64, hybrid_override_pattern=pattern,
                      pre_process=parallel_state.is_pipeline_first_stage(), post_process=parallel_state.is_pipeline_last_stage(), share_embeddings_and_output_weights=False, parallel_output=False)


def build(hf, par, dtype):
    """[(prefix of Refit's names, module)]: one for each virtual chunk of this rank."""
    config = config_of(hf, par, dtype)
    multiple = par.get("multiple", 128) * par["tp"]
    out = []
    for v in range(par["vpp"]):
        if hf.model_type == "nemotron_h":
            out.append(("", as_trained(config, hybrid(config, hf, -(-hf.vocab_size // multiple) * multiple), dtype)))
            continue
        stage = v if par["vpp"] > 1 else None
        offset, count = get_transformer_layer_offset(config, vp_stage=stage), get_num_layers_to_build(config, vp_stage=stage)
        block = TransformerBlockSubmodules(layer_specs=layer_specs(config, hf)[offset:offset + count], layer_norm=ZeroCentredNorm if config.experimental_attention_variant else gpt_layer_specs.LNImpl)
        model = GPTModel(config, block, vocab_size=-(-hf.vocab_size // multiple) * multiple, max_sequence_length=64, position_embedding_type="rope", share_embeddings_and_output_weights=hf.tie_word_embeddings,
                         pre_process=parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=stage), post_process=parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=stage),
                         rotary_base=int(hf.rope_parameters.get("rope_theta", 10000)), rotary_percent=hf.rope_parameters.get("partial_rotary_factor", 1.0), parallel_output=False, vp_stage=stage,
                         mtp_block_spec=draft_specs(config, hf, stage))
        out.append((f"chunk{v}." if par["vpp"] > 1 else "", as_trained(config, model, dtype)))
    return out


def as_trained(config, model, dtype):
    """With the parameters' types of training: what Megatron keeps in float32 stays so."""
    if dtype == torch.bfloat16:
        kept = {n: p.detach().clone() for n, p in model.named_parameters() if n.endswith(("mixer.A_log", "mixer.D"))}  # its optimizer's wrapper skips them
        model = Float16Module(config, model).module
        for n, p in model.named_parameters():
            if n in kept:
                p.data = kept[n]
        for m in model.modules():
            if hasattr(m, "_maintain_float32_expert_bias"):
                m._maintain_float32_expert_bias()
    return model.eval()


def state_of(model):
    return {n: t.detach() for n, t in model.state_dict().items() if isinstance(t, torch.Tensor) and not n.endswith("_extra_state")}


def older(name):
    """This release names the mixer's convolution as a module of its own; later ones, and Refit, do not. Its draft layers'
    inner layer has another name."""
    return name.replace("mixer.conv1d_", "mixer.conv1d.").replace(".mtp_model_layer.", ".transformer_layer.")


def newer(name):
    return name.replace("mixer.conv1d.", "mixer.conv1d_").replace(".transformer_layer.", ".mtp_model_layer.")


def check_rank(rank, hf, par, there, back, tokens):
    """Names, shapes, dtypes; a strict load; the modules' own state written out. Returns logits if asked and possible."""
    from safetensors.torch import save_file
    files, saved, counted = support.tensors(there, f"rank{rank}"), {}, 0
    chunks = build(hf, par, torch.float32 if tokens is not None else torch.bfloat16)
    for prefix, model in chunks:
        mine = {older(n.removeprefix(prefix)): t for n, t in files.items() if n.startswith(prefix)}
        own = state_of(model)
        assert own.keys() == mine.keys(), f"rank {rank}: names differ: {sorted(own.keys() ^ mine.keys())[:8]}"
        for n, t in own.items():
            assert t.shape == mine[n].shape and (t.dtype == mine[n].dtype or n.endswith("out_norm.weight")), f"rank {rank}: {n}: module {t.dtype} {list(t.shape)}, file {mine[n].dtype} {list(mine[n].shape)}"
        missing, unexpected = model.load_state_dict(mine, strict=False)
        assert not unexpected and all(m.endswith("_extra_state") for m in missing), (missing, unexpected)
        for n, t in state_of(model).items():
            # Megatron keeps this norm in its parameter type; Refit writes float32, in which w - 1 is exact.
            saved[prefix + newer(n)] = mine[n] if n.endswith("out_norm.weight") else t.clone()
            counted += 1
    save_file(saved, back / f"rank{rank}.safetensors")
    if tokens is None:
        return counted, None
    (_, model), = chunks
    positions = torch.arange(tokens.shape[1]).expand(tokens.shape)
    mask = torch.ones(1, 1, tokens.shape[1], tokens.shape[1], dtype=torch.bool).triu(1)
    with torch.no_grad():
        return counted, model(tokens, positions, mask)[..., :hf.vocab_size]


def groups(par):
    parallel_state.initialize_model_parallel(par["tp"], par["pp"], par["vpp"] if par["vpp"] > 1 else None, expert_model_parallel_size=par["ep"], expert_tensor_parallel_size=par["etp"])


class Copies(CopyService):
    """Megatron's resharder hands over what goes where; this sends it over gloo."""

    def __init__(self):
        self.out, self.into = [], []

    def submit_send(self, src_tensor, dest_rank):
        self.out.append((src_tensor, dest_rank))

    def submit_recv(self, dest_tensor, src_rank):
        self.into.append((dest_tensor, src_rank))

    def run(self):
        me = torch.distributed.get_rank()
        own = [t for t, r in self.out if r == me]
        for t, r in self.into:
            if r == me:
                t.copy_(own.pop(0))
        waits = [torch.distributed.isend(t, r) for t, r in self.out if r != me] + [torch.distributed.irecv(t, r) for t, r in self.into if r != me]
        for w in waits:
            w.wait()


def loaded(rank, hf, par, directory):
    (prefix, model), = build(hf, par, torch.bfloat16)
    files = {older(n): t for n, t in support.tensors(directory, f"rank{rank}").items()}
    missing, unexpected = model.load_state_dict(files, strict=False)
    assert not unexpected and all(m.endswith("_extra_state") for m in missing), (missing, unexpected)
    return model


def second_opinion(rank, hf, par, there, back, other):
    """Megatron's own resharder from one live module to another, whose parameters must then be Refit's files of `back`."""
    source = loaded(rank, hf, par, there)
    parallel_state.destroy_model_parallel()
    groups(other)
    target = loaded(rank, hf, other, back)
    want = {n: p.detach().clone() for n, p in target.named_parameters()}
    for p in target.parameters():
        p.data.fill_(7.0)
    reshard_model_weights(source, target, service=Copies())
    real = {"embedding.word_embeddings.weight": None, "output_layer.weight": None}
    for n, p in target.named_parameters():
        keep = slice(None)
        if n in real:  # padding is nobody's
            first = parallel_state.get_tensor_model_parallel_rank() * p.shape[0]
            keep = slice(0, max(0, hf.vocab_size - first))
        assert torch.equal(p[keep], want[n][keep]), f"rank {rank}: {n} differs"
    return len(want), None


def child(rank, world, port, hf, par, there, back, tokens, out):
    try:
        torch.distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
        groups(par)
        torch.save(second_opinion(rank, hf, par, there, back, tokens) if isinstance(tokens, dict) else check_rank(rank, hf, par, there, back, tokens), out)
        torch.distributed.barrier()
    except BaseException:
        pathlib.Path(str(out) + ".failed").write_text(traceback.format_exc())
        os._exit(1)
    os._exit(0)


def on_ranks(hf, par, world, there, back, tokens=None):
    """`check_rank` in a process for each rank; the first failure's text is raised."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    results = back.parent / "results"
    shutil.rmtree(results, ignore_errors=True)
    results.mkdir()
    context = multiprocessing.get_context("fork")
    all_ranks = [context.Process(target=child, args=(r, world, port, hf, par, there, back, tokens, results / f"{r}")) for r in range(world)]
    for p in all_ranks:
        p.start()
    for p in all_ranks:
        p.join(DEADLINE)
        if p.exitcode is None or p.exitcode:
            for q in all_ranks:
                q.kill()
                q.join()
            texts = sorted(results.glob("*.failed"))
            raise AssertionError("\n".join(texts[0].read_text().splitlines()[-7:]) if texts else f"a rank ended with {p.exitcode} or passed {DEADLINE} s")
    return [torch.load(results / f"{r}", weights_only=True) for r in range(world)]


def round_trip(desk, name, source, saved, hf, spec):
    par, world = sizes(spec)
    full = f"megatron:{spec},spec=local"
    with desk.row(name, "names, shapes, dtypes of live modules = files; strict load; modules' state → HF exactly", full) as row:
        there, back, again = desk.base / "there", desk.base / "back", desk.base / "again"
        desk.convert(source, full, there)
        shutil.rmtree(back, ignore_errors=True)
        shutil.copytree(there, back, ignore=shutil.ignore_patterns("rank*"))
        row["checked"] = sum(n for n, _ in on_ranks(hf, par, world, there, back))
        desk.convert(back, "hf", again, source=full)
        support.equal(support.tensors(again, "model"), saved, full)


def reshard(desk, name, source, hf, spec, other):
    """Refit's files of two layouts, and Megatron's way from one to the other."""
    # One padded vocabulary for both: Megatron's resharder takes whole shards.
    pars = [dict(sizes(s)[0], multiple=256 // sizes(s)[0]["tp"]) for s in (spec, other)]
    full = [f"megatron:{s},spec=local,vocab_multiple={p['multiple']}" for s, p in zip((spec, other), pars)]
    with desk.row(name, "Megatron's own resharder between live modules = the files of the target's layout", f"megatron:{spec} → {other}") as row:
        there, back = desk.base / "there", desk.base / "back"
        desk.convert(source, full[0], there)
        desk.convert(source, full[1], back)
        row["checked"] = sum(n for n, _ in on_ranks(hf, pars[0], 4, there, back, pars[1]))


def forward(desk, name):
    """In float32, on one rank and, where the family's modules allow it, with tp=2."""
    model = models.build(name, dtype="float32", **PLAIN.get(name, {}))
    source, there, back = desk.base / "hf32", desk.base / "there", desk.base / "back"
    shutil.rmtree(source, ignore_errors=True)
    models.save(model, source)
    tokens = torch.randint(3, 131, (2, 11), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        want = model(tokens).logits
    for spec in ("tp=1", "tp=2"):
        par, world = sizes(spec)
        with desk.row(name, "forward pass in float32: logits equal transformers' within 1e-4", f"megatron:{spec},spec=local") as row:
            desk.convert(source, f"megatron:{spec},spec=local", there)
            shutil.rmtree(back, ignore_errors=True)
            back.mkdir()
            for _, got in on_ranks(model.config, par, world, there, back, tokens):
                far = (got - want).abs().max().item()
                assert far < 1e-4 and want.std() > 0.01, f"{spec}: logits differ by {far} (of {want.abs().max().item()})"
                row["checked"] += got.numel()


def main():
    desk = support.Desk("megatron-core", ["megatron-core", "transformers", "torch"])
    for name in desk.wanted(FAMILIES):
        specs, runs = FAMILIES[name]
        model = models.build(name.removesuffix(", drafts"))
        source = desk.base / "hf"
        models.save(model, source)
        if name.endswith(", drafts"):
            models.add_drafts(model, source)
        if not desk.knows(source, name):
            shutil.rmtree(source)
            continue
        saved = support.tensors(source, "model")
        for spec in specs:
            round_trip(desk, name, source, saved, model.config, spec)
        for spec, other in RESHARDS.get(name, []):
            reshard(desk, name, source, model.config, spec, other)
        shutil.rmtree(source)
        if runs:
            forward(desk, name)
    desk.finish()


if __name__ == "__main__":
    main()
