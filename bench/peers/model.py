"""The dense work that every peer does: a Llama-like bf16 model, rows over T trainer ranks (FSDP) to R rollout ranks (tensor
parallel, as vLLM keeps it: fused qkv and gate_up, o and down cut by columns). Values are a function of tensor, row, column and
version, so that each rank can check every byte it holds without asking anybody."""

import dataclasses

import numpy as np

HIDDEN, INTERMEDIATE, HEADS, KV_HEADS = 2048, 5632, 32, 8
KV = HIDDEN // HEADS * KV_HEADS
STEP = 31  # what a training step adds to the 16 bits of every element, modulo 2^16: no element ever stays the same


@dataclasses.dataclass(frozen=True)
class Tensor:
    name: str
    rows: int
    cols: int  # 1: a vector
    cut: str  # rows, columns or whole: how tensor parallelism takes it
    into: str  # the rollout rank's parameter that it is part of


@dataclasses.dataclass(frozen=True)
class Model:
    layers: int
    vocabulary: int
    trainers: int = 4
    rollouts: int = 2

    @classmethod
    def of_bytes(cls, count):
        """The nearest number of layers; below 1 GB a small vocabulary too."""
        vocabulary = 32000 if count >= 10**9 else 4096
        layer = 2 * sum(t.rows * t.cols for t in cls(1, 0).tensors() if t.name.startswith("model.layers."))
        return cls(max(1, round((count - 4 * vocabulary * HIDDEN) / layer)), vocabulary)

    def tensors(self):
        out = [Tensor("model.embed_tokens.weight", self.vocabulary, HIDDEN, "rows", "embed")]
        for i in range(self.layers):
            at = f"model.layers.{i}."
            for name, rows, cols, cut, into in (
                ("self_attn.q_proj", HIDDEN, HIDDEN, "rows", "qkv"),
                ("self_attn.k_proj", KV, HIDDEN, "rows", "qkv"),
                ("self_attn.v_proj", KV, HIDDEN, "rows", "qkv"),
                ("self_attn.o_proj", HIDDEN, HIDDEN, "columns", "o"),
                ("mlp.gate_proj", INTERMEDIATE, HIDDEN, "rows", "gate_up"),
                ("mlp.up_proj", INTERMEDIATE, HIDDEN, "rows", "gate_up"),
                ("mlp.down_proj", HIDDEN, INTERMEDIATE, "columns", "down"),
                ("input_layernorm", HIDDEN, 1, "whole", "norm1"),
                ("post_attention_layernorm", HIDDEN, 1, "whole", "norm2"),
            ):
                out.append(Tensor(f"{at}{name}.weight", rows, cols, cut, f"{i}.{into}"))
        return out + [Tensor("model.norm.weight", HIDDEN, 1, "whole", "norm"), Tensor("lm_head.weight", self.vocabulary, HIDDEN, "rows", "head")]

    def config(self):
        """As config.json says it."""
        return {
            "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": HIDDEN, "intermediate_size": INTERMEDIATE,
            "num_hidden_layers": self.layers, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "vocab_size": self.vocabulary,
            "rms_norm_eps": 1e-5, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
        }  # fmt: skip

    def useful_bytes(self):
        """What all rollout ranks need together."""
        return sum(2 * t.rows * t.cols * (self.rollouts if t.cut == "whole" else 1) for t in self.tensors())

    def source_rows(self, tensor, rank):
        each = tensor.rows // self.trainers
        return rank * each, (rank + 1) * each

    def target_box(self, tensor, rank):
        """(row, end, column, end) of a rollout rank."""
        rows, cols = tensor.rows, tensor.cols
        if tensor.cut == "rows":
            return rank * (rows // self.rollouts), (rank + 1) * (rows // self.rollouts), 0, cols
        if tensor.cut == "columns":
            return 0, rows, rank * (cols // self.rollouts), (rank + 1) * (cols // self.rollouts)
        return 0, rows, 0, cols

    def piece(self, tensor, source, target):
        """What goes from a trainer rank to a rollout rank: (row, end, column, end) of the tensor, or None."""
        low, high = self.source_rows(tensor, source)
        row, end, col, col_end = self.target_box(tensor, target)
        row, end = max(row, low), min(end, high)
        return (row, end, col, col_end) if row < end else None


def values(index, box, version):
    """The 16 bits of a box (row, end, column, end) of tensor number `index` at a version."""
    row, end, col, col_end = box
    rows = (np.arange(row, end, dtype=np.uint32) * 40503).astype(np.uint16)[:, None]
    cols = (np.arange(col, col_end, dtype=np.uint32) * 25931).astype(np.uint16)[None, :]
    out = rows + cols
    out += np.uint16((index * 977 + version * STEP) & 0xFFFF)
    return out


class Trainer:
    """One trainer rank's rows of every tensor, in one flat array."""

    def __init__(self, model, rank, flat=None):
        self.model, self.rank, self.tensors = model, rank, model.tensors()
        sizes = [t.rows // model.trainers * t.cols for t in self.tensors]
        self.flat = np.empty(sum(sizes), np.uint16) if flat is None else flat
        self.shards, at = [], 0
        for t, size in zip(self.tensors, sizes):
            self.shards.append(self.flat[at : at + size].reshape(-1, t.cols))
            at += size
        for i, t in enumerate(self.tensors):
            self.shards[i][:] = values(i, (*model.source_rows(t, rank), 0, t.cols), 0)

    @staticmethod
    def elements(model):
        return sum(t.rows // model.trainers * t.cols for t in model.tensors())

    def step(self):
        self.flat += np.uint16(STEP)

    def part(self, index, box):
        """A box of a tensor out of this rank's rows: a view."""
        low = self.model.source_rows(self.tensors[index], self.rank)[0]
        return self.shards[index][box[0] - low : box[1] - low, box[2] : box[3]]


class Rollout:
    """One rollout rank: its fused parameters, and each tensor's place in them, which is contiguous."""

    def __init__(self, model, rank):
        self.model, self.rank, self.tensors = model, rank, model.tensors()
        height, width, places = {}, {}, []
        for t in self.tensors:
            row, end, col, col_end = model.target_box(t, rank)
            places.append((t.into, height.get(t.into, 0), end - row))
            height[t.into], width[t.into] = height.get(t.into, 0) + end - row, col_end - col
        self.parameters = {name: np.zeros((height[name], width[name]), np.uint16) for name in height}
        self.views = [self.parameters[into][at : at + rows] for into, at, rows in places]

    def place(self, index, box):
        """Where a piece of a tensor goes: a contiguous view."""
        low = self.model.target_box(self.tensors[index], self.rank)[0]
        return self.views[index][box[0] - low : box[1] - low]

    def wrong(self, version):
        """How many tensors do not hold exactly this version."""
        return sum(not np.array_equal(v, values(i, self.model.target_box(t, self.rank), version)) for i, (t, v) in enumerate(zip(self.tensors, self.views)))
