# meshax: every task of the project. `make help` lists them.

PYTHON ?= python3
VENV ?= .venv
WORKERS ?= 2

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet install
SOURCES := $(wildcard src tests examples benchmarks docs)
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal
# These meet XLA as users do. The others ask what a program gives, not how fast, and do without LLVM's optimizations.
AS_USERS := tests/invariants tests/golden tests/test_compilers.py tests/ops/test_randomness.py
UNOPTIMIZED := XLA_FLAGS=--xla_backend_optimization_level=0
comma := ,

# A stamp marks an install as done, until what it was made from changes.
RUNTIME := $(VENV)/.installed-examples
DEV := $(VENV)/.installed-dev
DEV_ALL := $(VENV)/.installed-dev-all
DOCS := $(VENV)/.installed-docs

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo docs test test-all check invariants chaos bench test-tpu test-cuda test-gpu test-browser clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' Makefile
	@echo
	@echo "  PYTHON=$(PYTHON)  the interpreter that makes the environment, 3.11 or later"
	@echo "  VENV=$(VENV)  where the environment is"
	@echo "  WORKERS=$(WORKERS)  test processes at a time, each with 8 virtual CPU devices"

demo: $(RUNTIME) ## train a small language model, and let it write (three minutes)
	$(BIN)/meshax train
	$(BIN)/meshax generate --run runs/tiny --prompt "def "

docs: $(DOCS) ## build the site of the documents, links checked: open build/site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

test: check ## everything CI runs: lint, types, tests, doctests; of what is exhaustive, a part (fifteen minutes)
	$(UNOPTIMIZED) $(PYTEST) $(addprefix --ignore=,$(AS_USERS))
	$(PYTEST) $(AS_USERS)

test-all: $(DEV_ALL) check ## lint, types, and every test: all dtypes, layouts and meshes, the whole harness (hours)
	MESHAX_TESTS=all $(PYTEST)

check: $(DEV) ## lint, format and types only
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy

invariants: $(DEV) ## of test-all the layout harness alone: every op on every mesh under every layout
	MESHAX_TESTS=all $(PYTEST) tests/invariants tests/checking/test_derivatives.py tests/optim/test_optax_on_slices.py

chaos: $(DEV) ## runs of several processes are killed, stopped and damaged at random instants (most of an hour)
	$(UNOPTIMIZED) $(BIN)/python -m pytest -s -m chaos tests/chaos

bench: $(RUNTIME) ## time tracing (benchmarks/tracing.py)
	$(BIN)/python benchmarks/tracing.py

# $(call run_marked,MARK,ENVIRONMENT,CHECK,ADVICE) runs the tests of one mark, and loads no other files: those may need
# 8 devices. Once there are any, a missing tool is an error: a skip would read as a pass. pytest's exit status 5 means
# that nothing was collected.
define run_marked
@status=0; $(BIN)/python -m pytest -q --collect-only -m $(1) tests >$(VENV)/.collected 2>&1 || status=$$?; \
if [ $$status -eq 5 ]; then echo "make $@: no $(1) tests yet"; exit 0; fi; \
if [ $$status -ne 0 ]; then cat $(VENV)/.collected; exit $$status; fi; \
if ! { $(3); } >/dev/null 2>&1; then echo "make $@: $(strip $(4))" >&2; exit 1; fi; \
$(2) $(BIN)/python -m pytest -m $(1) $$(grep -o '^tests/[^:]*\.py' $(VENV)/.collected | sort -u)
endef

# libtpu compiles for TPUs without one; without these it looks for the machine's and takes a lock.
test-tpu: $(DEV) ## tests that compile for TPUs (needs libtpu)
	$(call run_marked,tpu,TPU_SKIP_MDS_QUERY=1 ALLOW_MULTIPLE_LIBTPU_LOAD=1,\
	$(BIN)/python -c 'import libtpu',\
	libtpu is missing. Install it with: $(BIN)/pip install -e '.[tpu]' -c constraints.txt)

test-cuda: $(DEV) ## tests that compile for GPUs (needs jax's packages for CUDA, and no GPU)
	$(call run_marked,cuda,,\
	$(BIN)/python -c 'import jax_cuda12_plugin' || $(BIN)/python -c 'import jax_cuda13_plugin',\
	jax's packages for CUDA are missing. Install them with: $(BIN)/pip install -e '.[cuda]' -c constraints.txt)

test-gpu: $(DEV) ## tests on a GPU (needs one that jax sees)
	$(call run_marked,gpu,MESHAX_TEST_PLATFORM=cuda$(comma)cpu,\
	JAX_PLATFORMS=cuda $(BIN)/python -c 'import jax; jax.devices()',\
	jax sees no GPU. With an NVIDIA driver present$(comma) install: $(BIN)/pip install 'jax[cuda12]' -c constraints.txt)

test-browser: $(DEV) ## tests of the HTML reports (needs chromium)
	$(call run_marked,browser,,\
	command -v chromium || command -v chromium-browser || command -v google-chrome,\
	chromium is missing. Install it with your system's packages$(comma) for example: apt-get install chromium)

$(VENV)/pyvenv.cfg:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "meshax needs Python 3.11 or later, and '$(PYTHON)' is:" `$(PYTHON) --version 2>&1`; \
		echo "Name another one: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; } >&2
	@echo "Making the environment $(VENV) with `$(PYTHON) --version`"
	@$(PYTHON) -m venv $(VENV)

$(RUNTIME): pyproject.toml constraints.txt | $(VENV)/pyvenv.cfg
	@echo "Installing meshax and its dependencies into $(VENV) (a minute or two the first time)"
	@$(PIP) -e '.[examples]' -c constraints.txt
	@touch $@

$(DEV): pyproject.toml constraints.txt | $(VENV)/pyvenv.cfg
	@echo "Installing meshax and its development tools into $(VENV) (a minute or two the first time)"
	@$(PIP) -e '.[dev]' -c constraints.txt
	@touch $@ $(RUNTIME)

$(DEV_ALL): pyproject.toml constraints.txt | $(VENV)/pyvenv.cfg
	@echo "Installing meshax and all that its tests need into $(VENV) (a few minutes the first time)"
	@$(PIP) -e '.[dev-all]' -c constraints.txt
	@touch $@ $(DEV) $(RUNTIME) $(DOCS)

$(DOCS): pyproject.toml constraints.txt | $(VENV)/pyvenv.cfg
	@echo "Installing what makes the site of the documents into $(VENV) (a minute or two the first time)"
	@$(PIP) -e '.[docs]' -c constraints.txt
	@touch $@

clean: ## remove the environment, caches and builds
	if [ -f $(VENV)/pyvenv.cfg ]; then rm -rf $(VENV); fi
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
