"""rotary_embedding, rms_norm and fused_add_rms_norm in plain torch, in place as the originals work."""
import torch


def rotary_embedding(positions, query, key, head_size, cos_sin_cache, is_neox=True):
    cos, sin = cos_sin_cache[positions.flatten()].float().unsqueeze(1).chunk(2, dim=-1)
    for tensor in filter(lambda t: t is not None, (query, key)):
        heads = tensor.view(positions.numel(), -1, head_size)
        turned = heads[..., : 2 * cos.shape[-1]]
        x, y = (turned.chunk(2, dim=-1) if is_neox else (turned[..., 0::2], turned[..., 1::2]))
        x, y = x.float(), y.float()
        parts = (x * cos - y * sin, y * cos + x * sin)
        turned.copy_(torch.cat(parts, dim=-1) if is_neox else torch.stack(parts, dim=-1).flatten(-2))


def rms_norm(out, x, weight, epsilon):
    wide = x.float()
    out.copy_((wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)).to(x.dtype) * weight)


def fused_add_rms_norm(x, residual, weight, epsilon):
    residual.add_(x)
    rms_norm(x, residual, weight, epsilon)
