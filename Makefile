# Everything a fresh Debian 12 machine needs, as root or with sudo. `make help` lists the targets.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
JOBS ?= $(shell nproc)
MODEL_DIR := build/models/smollm2-135m

help: ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 14

deps: ## install what is missing (Debian packages, a Python venv for tests)
	@scripts/deps.sh

configure-%: deps
	@cmake --preset $* >build/configure-$*.log || { cat build/configure-$*.log; exit 1; }

build: build-release ## release build
build-%: configure-%
	@cmake --build --preset $* -j $(JOBS)

demo: build $(MODEL_DIR)/config.json ## the whole job on this machine, on real weights
	build/release/cli/refit demo --model $(MODEL_DIR) --source fsdp=2,tp=2 --target vllm:tp=3,replicas=2 --transport shm --steps 4 --kill target:0.1@transfer

$(MODEL_DIR)/config.json: | deps
	@python3 scripts/demo_model.py --out $(MODEL_DIR) --cache .cache

test: build build-asan-ubsan ## all tests of the release build, then the fast set under ASan and UBSan
	ctest --test-dir build/release -j $(JOBS) --output-on-failure --timeout 300
	ctest --test-dir build/asan-ubsan -j $(JOBS) -L fast --output-on-failure --timeout 300

test-full: test build-tsan test-store test-torch test-jax test-wheel ## the long form: also the fast set under TSan, long simulation, torch, JAX, the wheel
	ctest --test-dir build/tsan -j $(JOBS) -L fast --output-on-failure --timeout 600
	REFIT_SIM_SEEDS=200000 build/release/tests/sim/sim_protocol
	@$(MAKE) --no-print-directory test-live test-trainers test-sglang test-vllm

test-store: build ## the store with a real S3 server: every death and every fault
	.cache/venv/bin/python tests/procs/store/store.py build/release/cli/refit

test-live: build ## rules against live frameworks: transformers, vLLM, Megatron-Core, Flax (WRITE=1 keeps the page)
	@scripts/live_env.sh
	@scripts/tunix_env.sh
	.cache/venv-live/bin/python tests/live/run.py --refit build/release/cli/refit $(if $(WRITE),--write)

test-trainers: build ## live trainers to vLLM ranks: transformers under FSDP2, HSDP, EP, TP, DDP; Megatron-Core; Flax NNX
	@scripts/live_env.sh
	cd tests/trainers && PYTHONPATH=$(CURDIR)/build/release/python $(CURDIR)/.cache/venv-live/bin/python -m unittest -v test_transformers
	cd tests/trainers && PYTHONPATH=$(CURDIR)/build/release/python $(CURDIR)/.cache/venv-live/bin/python -m unittest -v test_megatron
	cd tests/trainers && PYTHONPATH=$(CURDIR)/build/release/python $(CURDIR)/.cache/venv-live/bin/python -m unittest -v test_nnx

test-sglang: build ## the same with SGLang, which needs an environment of its own (10 GB); a real SGLang engine takes weights
	@scripts/live_env.sh sglang
	cd tests/python/package && PYTHONPATH=$(CURDIR)/build/release/python $(CURDIR)/.cache/venv-sglang/bin/python -m unittest -v test_sglang_server.Ways
	.cache/venv-sglang/bin/python tests/sglang/offline.py build/release
	.cache/venv-sglang/bin/python tests/sglang/serve.py build/release
	.cache/venv-sglang/bin/python tests/sglang/serve.py build/release tp=2 loader
	.cache/venv-sglang/bin/python tests/live/run.py --refit build/release/cli/refit $(if $(WRITE),--write) sglang_layouts.py

test-vllm: build $(MODEL_DIR)/config.json ## a real vLLM engine takes weights from a sharded torch trainer
	@scripts/live_env.sh
	.cache/venv-live/bin/python tests/vllm/offline.py $(MODEL_DIR) build/release
	.cache/venv-live/bin/python tests/vllm/serve.py $(MODEL_DIR) build/release
	.cache/venv-live/bin/python tests/vllm/tiny.py build/release qwen3 2
	.cache/venv-live/bin/python tests/vllm/tiny.py build/release qwen3_moe 2
	.cache/venv-live/bin/python tests/vllm/tiny.py build/release qwen3 2 traced
	.cache/venv-live/bin/python tests/vllm/rl_loop.py build/release

test-torch: build ## the Python package with real torch trainers (a venv of 4 GB, made once)
	cd tests/torch && PYTHONPATH=$(CURDIR)/build/release/python $$($(CURDIR)/scripts/python_venv.sh venv-torch tests/torch/requirements.txt --no-deps) -m unittest -v

test-jax: build ## the Python package with JAX arrays (a venv, made once)
	cd tests/jax && PYTHONPATH=$(CURDIR)/build/release/python $$($(CURDIR)/scripts/python_venv.sh venv-jax tests/jax/requirements.txt) -m unittest -v

test-wheel: deps ## the wheel, built and installed in an environment of its own
	scripts/test_wheel.sh

bench: build ## figures, each beside its ceiling of the same run
	@for b in shm gather digest delta plan transpose; do build/release/cli/refit bench $$b; done

bench-peers: build ## the same work through peers and Refit in one run, half an hour on a quiet machine (4.5 GB once; WRITE=1 keeps the page)
	bench/peers/run.py --out build/peers $(ARGS)
	$(if $(WRITE),python3 bench/peers/page.py build/peers/peers.json docs/measured)

check-gpu: ## runs the GPU checks, or says what they lack
	@scripts/check_gpu.sh

clean: ## remove builds, keep caches
	rm -rf build

.PHONY: help deps build demo test test-full test-store test-live test-trainers test-sglang test-vllm test-torch test-jax test-wheel bench bench-peers check-gpu clean
