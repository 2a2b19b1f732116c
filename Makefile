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

test-full: test build-tsan ## the long form: also the fast set under TSan, long simulation, and every target of LONG
	ctest --test-dir build/tsan -j $(JOBS) -L fast --output-on-failure --timeout 600
	REFIT_SIM_SEEDS=200000 build/release/tests/sim/sim_protocol
	@for t in $(LONG); do $(MAKE) --no-print-directory $$t || exit 1; done

# What test-full runs besides, each of which makes what it needs.
LONG := docs fuzz test-gpu-double test-store test-nixl test-torch test-jax test-ray test-wheel test-live test-trainers test-lora test-frameworks test-sglang test-vllm

test-nixl: build ## the nixl transport with the real library (a venv, made once): conformance, process tests, a demo with a kill
	@scripts/python_venv.sh venv-nixl tests/procs/transport/nixl-requirements.txt --no-deps >/dev/null
	VIRTUAL_ENV=$(CURDIR)/.cache/venv-nixl REFIT_TEST_NIXL=1 build/release/tests/conformance/conformance_pull --gtest_filter='nixl/*'
	VIRTUAL_ENV=$(CURDIR)/.cache/venv-nixl REFIT_TEST_NIXL=1 build/release/tests/procs/transport/nixl_process_test
	VIRTUAL_ENV=$(CURDIR)/.cache/venv-nixl REFIT_TEST_NIXL=tcp UCX_TLS=tcp,self build/release/tests/procs/transport/nixl_process_test
	VIRTUAL_ENV=$(CURDIR)/.cache/venv-nixl python3 tests/procs/demo/faults.py build/release/cli/refit --transport=nixl \
	  source:0.1@lend source:0.1@voted 'target:1.2@transfer' 'target:0.0@transfer!stop' 'target:1.2@copying'

test-gpu-double: ## the self-contained GPU check over the host double
	scripts/check_gpu.sh --double

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
	cd tests/trainers && PYTHONPATH=$(CURDIR)/build/release/python $(CURDIR)/.cache/venv-live/bin/python -m unittest -v test_sizes

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
	export PYTHONPATH=$(call beside,venv-peft,tests/lora/requirements.txt); for tp in 1 2; do .cache/venv-live/bin/python tests/vllm/lora.py build/release $$tp; done

test-torch: build ## the Python package with real torch trainers (a venv of 4 GB, made once)
	cd tests/torch && PYTHONPATH=$(CURDIR)/build/release/python $$($(CURDIR)/scripts/python_venv.sh venv-torch tests/torch/requirements.txt --no-deps) -m unittest -v

test-jax: build ## the Python package with JAX arrays (a venv, made once)
	cd tests/jax && PYTHONPATH=$(CURDIR)/build/release/python $$($(CURDIR)/scripts/python_venv.sh venv-jax tests/jax/requirements.txt) -m unittest -v
	rm -rf build/jax_to_files && PYTHONPATH=build/release/python .cache/venv-jax/bin/python examples/jax_to_files.py build/jax_to_files
	build/release/cli/refit inspect build/jax_to_files/step-3

test-ray: build ## the Python package with real Ray actors (a venv of 0.3 GB, made once)
	cd tests/ray && PYTHONPATH=$(CURDIR)/build/release/python $$($(CURDIR)/scripts/python_venv.sh venv-ray tests/ray/requirements.txt --no-deps) -m unittest -v

# The site-packages of a venv of .cache, to stand beside venv-live's: $(call beside,NAME,REQUIREMENTS)
beside = $$($$(scripts/python_venv.sh $(1) $(2) --no-deps) -c 'import sysconfig; print(sysconfig.get_path("purelib"))')

test-lora: build ## real PEFT adapters: merged out of place, alone, under FSDP2
	@scripts/live_env.sh
	site=$(call beside,venv-peft,tests/lora/requirements.txt); cd tests/lora && HF_HUB_OFFLINE=1 PYTHONPATH=$(CURDIR)/build/release/python:$$site $(CURDIR)/.cache/venv-live/bin/python -m unittest -v

test-frameworks: build ## the real verl and TRL over Refit (a venv of 0.6 GB beside venv-live)
	@scripts/live_env.sh
	site=$(call beside,venv-frameworks,tests/frameworks/requirements.txt); cd tests/frameworks && HF_HUB_OFFLINE=1 PYTHONPATH=$(CURDIR)/build/release/python:$$site $(CURDIR)/.cache/venv-live/bin/python -m unittest -v

test-wheel: deps ## the wheel, built and installed in an environment of its own
	scripts/test_wheel.sh

fuzz: ## coverage-guided fuzzing of all that comes from outside, with clang (FUZZ_SECONDS=10 a target)
	@scripts/fuzz.sh $(or $(FUZZ_SECONDS),10)

docs: deps ## the documentation as a site in build/site; warnings are errors, nothing is loaded from elsewhere
	@# Not --quiet: that hides warnings from --strict too.
	NO_MKDOCS_2_WARNING=1 $$(scripts/python_venv.sh venv-docs tests/docs/requirements.txt) -m mkdocs build --strict
	python3 tests/docs/check_site.py build/site

docs-pages: build ## writes the pages that are printed from code, figures and --help anew
	build/release/cli/refit check --print-keys >docs/configuration.md
	build/release/cli/refit check --print-matrix >docs/choose-a-transport.md
	python3 scripts/docs_pages.py build/release/cli/refit --write

bench: build ## figures, each beside its ceiling of the same run
	@for b in shm tcp sparse gather digest delta quantize plan transpose; do build/release/cli/refit bench $$b; done

bench-peers: build ## the same work through peers and Refit in one run, half an hour on a quiet machine (4.5 GB once; WRITE=1 keeps the page)
	bench/peers/run.py --out build/peers $(ARGS)
	$(if $(WRITE),python3 bench/peers/page.py build/peers/peers.json docs/measured)

check-gpu: ## builds and runs the GPU checks by themselves (nvcc, g++, cmake), or says what they lack
	@scripts/check_gpu.sh

clean: ## remove builds, keep caches
	rm -rf build

.PHONY: help deps build demo test test-full $(LONG) docs-pages bench bench-peers check-gpu clean
