"""Models of transformers under FSDP2, HSDP, expert and tensor parallelism and DDP, in four processes (gloo, CPU), published over
shm to vLLM ranks: equal to torch's own cast of the checkpoint bit for bit."""

import pathlib
import shutil
import tempfile
import unittest

import jobs
import models
import refit
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

POLICY = MixedPrecisionPolicy(param_dtype=torch.bfloat16)


def fsdp(model, mesh, **options):
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=POLICY, **options)
    fully_shard(model, mesh=mesh, mp_policy=POLICY, **options)
    return model


def hybrid(model):
    """Replicas over one axis, shards over the other; offloaded to the CPU."""
    return fsdp(model, init_device_mesh("cpu", (2, 2), mesh_dim_names=("replica", "shard")), offload_policy=CPUOffloadPolicy(pin_memory=False))


def experts(model):
    """Experts over one axis, everything sharded over the other."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "ep"))
    for module in model.modules():
        bias = module._buffers.pop("e_score_correction_bias", None)
        if bias is not None:  # a parameter in other makers' modules: FSDP2 then computes with it in bf16
            module.register_parameter("e_score_correction_bias", torch.nn.Parameter(bias, requires_grad=False))
        for name, p in list(module.named_parameters(recurse=False)):
            if name in ("gate_up_proj", "down_proj") and p.dim() == 3:
                module.register_parameter(name, torch.nn.Parameter(distribute_tensor(p.detach(), mesh["ep"], [Shard(0)], src_data_rank=None)))
            else:  # FSDP2 wants parameters of one mesh in a group
                module.register_parameter(name, torch.nn.Parameter(distribute_tensor(p.detach(), mesh["ep"], [Replicate()], src_data_rank=None)))
    return fsdp(model, mesh["dp"])


def tensors(model):
    """A plan on a plain module: DTensors without FSDP; under torch.compile's wrapper."""
    mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))
    plan = {"mlp.gate_proj": ColwiseParallel(), "mlp.up_proj": ColwiseParallel(), "mlp.down_proj": RowwiseParallel(), "self_attn.q_proj": ColwiseParallel(), "self_attn.o_proj": RowwiseParallel()}
    for layer in model.model.layers:
        parallelize_module(layer, mesh, plan)
    return torch.compile(model)


def copies(model):
    return DistributedDataParallel(model)


class Rank:
    def __init__(self, model):
        self.model = model

    def join(self, address, dtypes=None, config=None):
        self.publisher = refit.Publisher.from_torch(address, self.model, dtypes=dtypes, config=config)
        return self.publisher.layout.tensors

    def publish(self, step):
        self.publisher.publish(step)

    def forward(self):
        """Leaves the root's parameters whole, as an evaluation does."""
        with torch.no_grad():
            self.model(torch.arange(8)[None] + 3)

    def double(self):
        with torch.no_grad():
            local = [t.to_local() if isinstance(t, DTensor) else t for t in self.model.state_dict().values()]
            for t in {t.data_ptr(): t for t in local if t.numel()}.values():  # tied ones once
                t.mul_(2)

    def assign(self, factor):
        """Every parameter is another object afterwards."""
        state = {n: t * factor for n, t in self.model.state_dict().items()}
        self.model.load_state_dict(state, assign=True)


def make(rank, model, arrange):
    return Rank(arrange(model))


class Transformers(unittest.TestCase):
    def job(self, family, arrange, target="vllm:tp=2", **changes):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="refit-transformers-"))
        self.addCleanup(shutil.rmtree, folder)
        _, stored = jobs.saved(family, folder, dtype="float32", **changes)
        wide = models.model_class(family).from_pretrained(folder, dtype=torch.float32)
        self.trainers = jobs.Trainers(self, 4, make, wide, arrange)
        config = wide.config.to_dict() | {"dtype": "bfloat16"}
        layout = refit.Layout.from_config(config, target)
        self.want = {n: (t if layout.tensors[n][1] == "f32" else t.bfloat16()) for n, t in stored.items()}
        self.coordinator = refit.Coordinator(4, layout.instances, layout.world // layout.instances, **jobs.FAST)
        self.addCleanup(self.coordinator.shutdown)
        return layout

    def sync(self, step, factor):
        self.trainers.all("publish", step)
        self.coordinator.mark_stale()
        self.assertEqual(self.coordinator.sync_weights().version.step, step)
        self.engines.equal({n: t * factor for n, t in self.want.items()})

    def begin(self, layout, **options):
        wire = self.trainers.all("join", self.coordinator.address, *options.values())
        self.engines = jobs.Engines(self, self.coordinator.address, layout)
        self.trainers.all("publish", 0)
        self.coordinator.init_communicator()
        self.sync(1, 1)
        return wire[0]

    def test_experts_and_what_stays_in_float32(self):
        layout = self.job("glm4_moe", experts, "vllm:tp=2,ep=2,draft=skip")
        wire = self.begin(layout)
        name = "model.layers.1.mlp.gate.e_score_correction_bias"
        self.assertEqual((wire[name][1], self.want[name].dtype), ("f32", torch.float32))
        self.assertNotIn("model.layers.1.mlp.experts.gate_up_proj", wire)
        self.trainers.all("double")
        self.sync(2, 2)

    def test_hybrid_shards_offloaded(self):
        self.begin(self.job("qwen3", hybrid))
        self.trainers.all("forward")
        self.trainers.all("double")
        self.sync(2, 2)
        self.trainers.all("assign", 2)
        self.sync(3, 4)

    def test_a_plan_on_a_compiled_module(self):
        self.begin(self.job("llama, tied", tensors), dtypes={"*": "bf16"})
        self.trainers.all("double")
        self.sync(2, 2)

    def test_replicas(self):
        self.begin(self.job("qwen3_moe", copies), dtypes={"*": "bf16"})
        self.trainers.all("assign", 2)
        self.sync(2, 2)

    def test_what_does_not_fit_is_listed(self):
        self.job("qwen3_moe", copies)
        shorter = self.trainers.all("join", self.coordinator.address, None, models.config("qwen3_moe", num_hidden_layers=3).to_dict(), fails=True)
        for why in shorter:
            self.assertRegex(why, r"InvalidError.*names are no parameters of this configuration.*model\.layers\.3\.")
        longer = self.trainers.all("join", self.coordinator.address, None, models.config("qwen3_moe", num_hidden_layers=5).to_dict(), fails=True)
        for why in longer:
            self.assertRegex(why, r"InvalidError.*parameters.*missing.*model\.layers\.4\.")
        wider = self.trainers.all("join", self.coordinator.address, None, models.config("qwen3_moe", moe_intermediate_size=48).to_dict(), fails=True)
        for why in wider:
            self.assertRegex(why, r"MismatchError.*has shape \(8, 80, 72\), by the configuration it has \(8, 96, 72\)")


if __name__ == "__main__":
    unittest.main()
