# Everything a developer runs. `make test` or `make demo` on a bare machine (Python >= 3.11, a C++20 compiler,
# CMake >= 3.22) sets up .venv, builds and runs; a second run redoes only what changed.
PYTHON ?= python3
VENV ?= .venv
JOBS ?= $(shell nproc)
PYTEST_ARGS ?=
STRESS_ARGS ?= --minutes 10
CONFORMANCE_ARGS ?=
PYTORCH ?=
TESTS ?=
PYTORCH_TESTS_ARGS ?=
TPU_COMPILE_ARGS ?=
SANITIZE_ARGS ?=
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PY := $(abspath $(VENV))/bin/python
CMAKE_ARGS = -G Ninja -DPython_EXECUTABLE=$(PY) -DCMAKE_MAKE_PROGRAM=$(abspath $(VENV))/bin/ninja
# Stamps are named by content, so that a changed file, not a changed time, reinstalls.
content = $(shell cat $(1) | sha256sum | cut -c1-16)
PACKAGES := $(VENV)/.packages-$(call content,requirements/dev.txt)
EDITABLE := $(VENV)/.editable-$(call content,pyproject.toml)
GTEST := $(VENV)/.gtest
LIBTPU := $(VENV)/.libtpu-$(call content,requirements/tpu.txt)
FRAMEWORKS := $(VENV)/.frameworks-$(call content,requirements/frameworks.txt)
JAX := $(VENV)/.jax-$(call content,requirements/jax.txt)
CPP_FILES = $(shell find csrc tests/cpp examples -name '*.cpp' -o -name '*.h' 2>/dev/null)

.PHONY: help setup build demo test py-test cpp-test stress sanitize sanitize-address sanitize-thread conformance pytorch-tests tpu-compile-test kernels-test frameworks-test lint format wheel bench docs clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

$(PACKAGES):
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit(f"TorchTPU needs Python >= 3.11; {sys.executable} is {sys.version.split()[0]}. Set PYTHON=.")'
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --disable-pip-version-check --quiet -r requirements/dev.txt
	@rm -f $(VENV)/.packages-* && touch $@

# GoogleTest is no Python package. Tried once; without it the C++ tests are skipped, and CMake says so.
$(GTEST): | $(PACKAGES)
	@if echo '#include <gtest/gtest.h>' | $${CXX:-c++} -E -x c++ - >/dev/null 2>&1; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing libgtest-dev for the C++ tests"; \
	  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq libgtest-dev; } >/dev/null \
	    || echo "libgtest-dev could not be installed: C++ tests will be skipped"; \
	else echo "GoogleTest is missing (Debian: apt-get install libgtest-dev): C++ tests will be skipped"; fi
	@touch $@

setup: $(PACKAGES) $(GTEST) ## create .venv with the pinned packages

build/build.ninja: $(PACKAGES) | $(GTEST)
	cmake -S . -B build $(CMAKE_ARGS) && touch $@

# The install only points at this tree and declares the entry point, so that `import torch` finds us. It comes
# after the build: an autoload without its module would break every `import torch`.
build: setup build/build.ninja ## build torch_tpu/_C in the tree and install the tree into .venv (editable)
	@cmake --build build -j $(JOBS)
	@{ test -f $(EDITABLE) && test -f $(VENV)/lib/python*/site-packages/_editable_skbc_torchtpu.pth; } || { rm -f $(VENV)/.editable-*; \
	  $(PY) -m pip install --disable-pip-version-check --quiet --no-build-isolation --no-deps \
	    -C wheel.cmake=false -C editable.mode=inplace -e . && touch $(EDITABLE); }

demo: build ## train a small GPT on the device
	$(PY) examples/train_gpt.py

test: cpp-test py-test ## C++ and Python tests

py-test: build $(JAX) ## Python tests; PYTEST_ARGS="-k name" narrows them
	$(PY) -m pytest tests --ignore tests/frameworks -n 2 $(PYTEST_ARGS)

cpp-test: build ## C++ tests
	@if [ -f build/CTestTestfile.cmake ]; then ctest --test-dir build --output-on-failure --no-tests=ignore -j $(JOBS); \
	else echo "C++ tests skipped: no GoogleTest (install libgtest-dev, then make clean)"; fi

stress: build ## threads, modes, devices and errors mixed at random, 10 minutes; STRESS_ARGS=--help says more
	cd tests/python && $(PY) -m stress $(STRESS_ARGS)

sanitize: sanitize-address sanitize-thread ## C++ tests and tests/sanitize/tests.txt under AddressSanitizer, UBSan, ThreadSanitizer

sanitize-address: build ## the part of AddressSanitizer and UBSan (build-asan); SANITIZE_ARGS="--only fused"
	@test -f build-asan/build.ninja || cmake -S . -B build-asan $(CMAKE_ARGS) -DTORCH_TPU_SANITIZE=address,undefined
	@cmake --build build-asan -j $(JOBS)
	$(PY) tests/sanitize/run.py address build-asan $(SANITIZE_ARGS)

sanitize-thread: build ## the part of ThreadSanitizer (build-tsan)
	@test -f build-tsan/build.ninja || cmake -S . -B build-tsan $(CMAKE_ARGS) -DTORCH_TPU_SANITIZE=thread
	@cmake --build build-tsan -j $(JOBS)
	$(PY) tests/sanitize/run.py thread build-tsan $(SANITIZE_ARGS)

$(LIBTPU): $(PACKAGES)
	$(PY) -m pip install --disable-pip-version-check --quiet --no-deps -r requirements/tpu.txt
	@rm -f $(VENV)/.libtpu-* && touch $@

$(JAX): $(PACKAGES)
	$(PY) -m pip install --disable-pip-version-check --quiet --no-deps -r requirements/jax.txt
	@rm -f $(VENV)/.jax-* && touch $@

$(FRAMEWORKS): $(PACKAGES)
	$(PY) -m pip install --disable-pip-version-check --quiet --no-deps -r requirements/frameworks.txt
	@rm -f $(VENV)/.frameworks-* && touch $@

frameworks-test: build $(FRAMEWORKS) ## accelerate, Trainer, Lightning, TorchTitan and others on the device
	$(PY) -m pytest tests/frameworks -n 2 $(PYTEST_ARGS)

kernels-test: build $(JAX) $(LIBTPU) ## kernels in JAX and Pallas, and that they compile for a TPU
	$(PY) -m pytest tests/python/test_pallas.py tests/python/test_pallas_errors.py tests/python/test_kernels.py \
	  tests/python/test_kernels_tpu.py tests/python/test_kernels_examples.py -n 2 $(PYTEST_ARGS)

tpu-compile-test: build $(LIBTPU) ## compile every op for a TPU with libtpu, no chip needed; TPU_COMPILE_ARGS="--ops 'conv*'"
	PYTHONPATH=tests $(PY) -m conformance.tpu_compile $(TPU_COMPILE_ARGS)

lint: setup ## layering, ruff, mypy, clang-format; changes nothing
	$(PY) tools/check_layering.py
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	@$(if $(CPP_FILES),$(VENV)/bin/clang-format --dry-run --Werror $(CPP_FILES))

format: setup ## rewrite sources with ruff and clang-format
	$(PY) -m ruff check --fix-only --quiet .
	$(PY) -m ruff format .
	@$(if $(CPP_FILES),$(VENV)/bin/clang-format -i $(CPP_FILES))

wheel: setup ## build dist/*.whl against the torch in .venv
	$(PY) -m pip wheel --disable-pip-version-check --no-build-isolation --no-deps --wheel-dir dist .

conformance: build ## PyTorch's own test data on the device; resumes; CONFORMANCE_ARGS=--help says more
	PYTHONPATH=tests $(PY) -m conformance.run $(CONFORMANCE_ARGS)

pytorch-tests: build ## PyTorch's own test programs, PYTORCH=<checkout> [TESTS="test_torch nn/*"]; PYTORCH_TESTS_ARGS=--help says more
	@test -n "$(PYTORCH)" || { echo "PYTORCH= names a checkout of PyTorch, e.g. make pytorch-tests PYTORCH=../pytorch TESTS=test_torch"; exit 2; }
	PYTHONPATH=tests $(PY) -m pytorch_tests.run $(PYTORCH) $(TESTS) $(PYTORCH_TESTS_ARGS)

bench: build ## benchmarks
	$(PY) benchmarks/run.py

docs: setup ## the documentation as a static site in build/docs, no network needed
	$(PY) tools/build_docs.py build/docs

clean: ## remove builds; .venv stays
	@test ! -x $(PY) || $(PY) -m pip uninstall --yes --quiet torchtpu
	rm -rf build build-asan build-tsan dist torch_tpu/_C*.so $(VENV)/.editable-*
