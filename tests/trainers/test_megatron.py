"""Megatron-Core modules in processes of their own (gloo, CPU), published over shm to vLLM ranks: equal to the checkpoint bit
for bit."""

import pathlib
import shutil
import tempfile
import unittest

import jobs
import megatron_modules
import models
import refit
import support
import torch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.distributed.param_and_grad_buffer import shard_buffer


class Rank:
    """One trainer rank, in its own process."""

    def __init__(self, rank, hf, par, there, data_parallel):
        self.config = hf
        self.models = megatron_modules.build(hf, par, torch.bfloat16)
        files = support.tensors(there, f"rank{rank}")
        for prefix, model in self.models:
            mine = {megatron_modules.older(n.removeprefix(prefix)): t for n, t in files.items() if n.startswith(prefix)}
            _, unexpected = model.load_state_dict(mine, strict=False)
            assert not unexpected, unexpected
        self.model = [m for _, m in self.models]
        if data_parallel:
            config = megatron_modules.config_of(hf, par, torch.bfloat16)
            settings = DistributedDataParallelConfig(use_distributed_optimizer=True, overlap_param_gather=True, overlap_grad_reduce=True)
            self.model = [DistributedDataParallel(config, settings, m) for m in self.model]

    def join(self, address, changes=None, **options):
        config = self.config.to_dict() | (changes or {})
        if not changes:
            assert refit.Layout.from_megatron(self.model, config).world == torch.distributed.get_world_size()
        self.publisher = refit.Publisher.from_megatron(address, self.model if len(self.model) > 1 else self.model[0], config, **options)
        return self.publisher.layout.to_json()

    def publish(self, step):
        self.publisher.publish(step)

    def double(self):
        with torch.no_grad():
            for _, model in self.models:
                for t in model.state_dict(keep_vars=True).values():
                    if isinstance(t, torch.Tensor):
                        t.mul_(2)

    def optimise(self):
        """What a distributed optimizer does: writes this rank's share of each bucket, and leaves the gather to the next
        forward pass."""
        before = next(iter(self.model[0].parameters())).clone()
        for group in self.model[0].bucket_groups + self.model[0].expert_parallel_bucket_groups:
            size, rank = group.intra_distributed_optimizer_instance_size, group.intra_distributed_optimizer_instance_rank
            for bucket in group.buckets:
                shard_buffer(bucket.param_data, size)[rank].mul_(2)
        return bool((next(iter(self.model[0].parameters())) == before).any())

    def share_buffers(self):
        self.model[0].ddp_config.reuse_grad_buf_for_mxfp8_param_ag = True

    def renumber(self):
        for layer in self.models[0][1].decoder.layers:
            layer.layer_number += 1

    def close(self):
        self.publisher.close()


def make(rank, hf, par, there, data_parallel):
    parallel_state.initialize_model_parallel(par["tp"], par["pp"], par["vpp"] if par["vpp"] > 1 else None, expert_model_parallel_size=par["ep"], expert_tensor_parallel_size=par["etp"])
    return Rank(rank, hf, par, there, data_parallel)


class Megatron(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="refit-megatron-"))
        self.addCleanup(shutil.rmtree, self.folder)

    def begin(self, family, spec, world=0, data_parallel=False):
        self.model, self.tensors = jobs.saved(family.removesuffix(", drafts"), self.folder / "hf")
        if family.endswith(", drafts"):
            models.add_drafts(self.model, self.folder / "hf")
            self.tensors = jobs.tensors_of(self.folder / "hf")
        jobs.convert(self.folder / "hf", f"megatron:{spec},spec=local", self.folder / "there")
        there, (par, least) = self.folder / "there", megatron_modules.sizes(spec)
        for rank in range(least, world):  # replicas over dp have the same files
            shutil.copy(there / f"rank{rank % least}.safetensors", there / f"rank{rank}.safetensors")
        return jobs.Trainers(self, world or least, make, self.model.config, par, there, data_parallel)

    def job(self, trainers, target):
        layout = refit.Layout.from_model(str(self.folder / "hf"), target)
        coordinator = refit.Coordinator(trainers.world, layout.instances, layout.world // layout.instances, **jobs.FAST)
        self.addCleanup(coordinator.shutdown)
        return coordinator, layout

    def trip(self, family, spec, target="vllm:tp=2", **options):
        trainers = self.begin(family, spec, **options)
        coordinator, layout = self.job(trainers, target)
        layouts = trainers.all("join", coordinator.address)
        self.assertEqual(len(set(layouts)), 1)
        engines = jobs.Engines(self, coordinator.address, layout)
        trainers.all("publish", 1)
        coordinator.init_communicator()
        self.assertTrue(coordinator.sync_weights().proof)
        engines.equal(self.tensors)
        trainers.all("double")
        trainers.all("publish", 2)
        coordinator.mark_stale()
        self.assertEqual(coordinator.sync_weights().version.step, 2)
        engines.equal({n: t * 2 for n, t in self.tensors.items()})
        trainers.all("close")
        return layouts[0]

    def test_tensor_and_pipeline_parallel(self):
        self.trip("llama", "tp=2,pp=2")

    def test_tied_embeddings_and_virtual_chunks(self):
        self.trip("llama, tied", "pp=2,vpp=2")

    def test_experts_over_ranks(self):
        self.trip("qwen3_moe", "tp=2,pp=2,ep=2", "vllm:tp=2,ep=2")

    def test_latent_attention_and_correction_biases(self):
        self.trip("deepseek_v3", "tp=2,ep=2")

    def test_uneven_stages(self):
        layout = self.trip("qwen3", "pp=2,first=1")
        self.assertIn("first=1", layout)

    def test_custom_layout(self):
        self.assertIn("layout=Ettt|tL", self.trip("llama", "pp=2,layout=Et*3|tL"))

    def test_custom_layout_of_virtual_chunks(self):
        self.assertIn("vpp=2,layout=Et|(t|)*2tL", self.trip("llama, tied", "pp=2,vpp=2,layout=Et|t|t|tL"))

    def test_embedding_and_loss_counted_as_layers(self):
        self.assertIn("account=both", self.trip("qwen3", "pp=3,account=both"))

    def test_draft_layers_on_a_stage_of_their_own(self):
        layout = self.trip("deepseek_v3, drafts", "pp=4,layout=Ett|tt|m|L", "hf")
        self.assertIn("layout=Ett|tt|m|L", layout)

    def test_overlapped_gathers_are_finished_first(self):
        trainers = self.begin("llama", "tp=2", world=4, data_parallel=True)
        coordinator, layout = self.job(trainers, "vllm:tp=2")
        trainers.all("join", coordinator.address)
        engines = jobs.Engines(self, coordinator.address, layout)
        trainers.all("publish", 1)
        coordinator.init_communicator()
        coordinator.sync_weights()
        engines.equal(self.tensors)
        self.assertIn(True, trainers.all("optimise"))  # stale: some rank still has former values
        trainers.all("publish", 2)
        coordinator.mark_stale()
        coordinator.sync_weights()
        engines.equal({n: t * 2 for n, t in self.tensors.items()})
        trainers.all("share_buffers")
        for why in trainers.all("publish", 3, fails=True):
            self.assertIn("reuse_grad_buf_for_mxfp8_param_ag", why)

    def test_what_does_not_fit_is_listed(self):
        trainers = self.begin("qwen3", "tp=2")
        coordinator, _ = self.job(trainers, "vllm:tp=2")
        wider = {"intermediate_size": self.model.config.intermediate_size + 8}
        for why in trainers.all("join", coordinator.address, wider, fails=True):
            self.assertRegex(why, r"MismatchError.*of another shape.*linear_fc1.weight is \(104, 72\), by the rules \(112, 72\).*trainer rank 0")
        longer = {"num_hidden_layers": 5, "layer_types": ["full_attention"] * 5}
        for why in trainers.all("join", coordinator.address, longer, fails=True):
            self.assertRegex(why, r"missing in the modules.*decoder\.layers\.4\.")
        for why in trainers.all("join", coordinator.address, {"tie_word_embeddings": True}, fails=True):
            self.assertRegex(why, "1 unknown to the rules: output_layer.weight")
        for why in trainers.all("join", coordinator.address, {"dtype": "float16"}, fails=True):
            self.assertRegex(why, "is bf16 in the modules and f16")
        trainers.all("renumber")
        for why in trainers.all("join", coordinator.address, fails=True):
            self.assertRegex(why, "layer_number 2")


if __name__ == "__main__":
    unittest.main()
