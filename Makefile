# Everything runs in a virtual environment of its own, which the first target makes.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
INSTALLED = $(VENV)/installed
DOCS = $(VENV)/installed-docs
# Installed before everything else, so that nothing pulls in another build of it.
TORCH ?= torch==2.13.0
# XDSL=xdsl installs the newest one, whether pyproject.toml allows it or not.
XDSL ?=
# The newest version that was tried, in an environment of its own.
LATEST_TORCH ?= torch==2.15.0
LATEST_VENV ?= .venv-latest
# JAX has an environment without PyTorch: distir.jax works there.
JAX_VENV ?= .venv-jax
JAX_INSTALLED = $(JAX_VENV)/installed
# The training systems whose own readers `make test-systems` runs on what `distir export` writes.
SYSTEMS_VENV ?= .venv-systems
SYSTEMS ?= deepspeed==0.19.8 megatron-core==0.16.1 torchtitan==0.3.0 accelerate==1.15.0 nanotron==0.4
# Tests start many processes, which must not compile every module anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-all test-latest test-systems test-jax coverage fuzz golden zoo onnx-files bench bench-record gpu docs drawings screenshots lint format release install clean

demo: install ## The main job: GPT-2 from PyTorch, distributed, checked, simulated, run.
	$(BIN)/python examples/gpt2_demo.py

test: install ## Everything but the slow tests.
	$(BIN)/lit -sv test/filecheck
	$(BIN)/pytest -n auto --dist worksteal -m "not slow and not gpu"

test-all: install ## Also the slow tests, more random cases, and those that need a GPU where there is one.
	$(BIN)/lit -sv test/filecheck
	THOROUGH=1 $(BIN)/pytest -n auto --dist worksteal -m "not gpu"
	$(BIN)/pytest -m gpu test/launch/test_gpu.py

test-latest: ## The tests of everything that calls PyTorch, with the newest version of it.
	$(MAKE) install VENV="$(LATEST_VENV)" TORCH="$(LATEST_TORCH)"
	$(LATEST_VENV)/bin/pytest -n auto --dist worksteal -m "not slow and not gpu" test/frontends test/parallel test/lowering

test-jax: install $(JAX_INSTALLED) ## Types and tests of distir.jax, on 8 devices that XLA makes of the CPU.
	$(BIN)/pyright --pythonpath $(JAX_VENV)/bin/python --project test/jax/pyrightconfig.json
	$(JAX_VENV)/bin/pytest test/jax

test-systems: ## The files of training systems, read by these systems themselves.
	$(PYTHON) -m venv $(SYSTEMS_VENV)
	$(SYSTEMS_VENV)/bin/python -m pip install --quiet "$(TORCH)"
	$(SYSTEMS_VENV)/bin/python -m pip install --quiet --editable . pytest setuptools wheel pyyaml psutil packaging \
		"transformers<5" tyro hjson msgpack py-cpuinfo pydantic einops tqdm dacite datasets tensorboard spmd_types==0.2.3
	DS_BUILD_OPS=0 $(SYSTEMS_VENV)/bin/python -m pip install --quiet --no-build-isolation --no-deps $(SYSTEMS)
	PYTHONPATH=test $(SYSTEMS_VENV)/bin/python -m pytest -rs test/exports/systems/test_real_systems.py

coverage: install ## `make test` with the lines of distir that it runs, of which pyproject.toml has a floor.
	$(BIN)/pytest -n auto --dist worksteal -m "not slow and not gpu" --cov --cov-report=term:skip-covered

fuzz: install ## Fuzzers for MINUTES= (docs/testing.md): SEED=, ONLY=layouts,files; CASE=files:17 shows one again.
	PYTHONPATH=test $(BIN)/python -m fuzz $(if $(MINUTES),--minutes $(MINUTES)) \
		$(if $(SEED),--seed $(SEED)) $(if $(ONLY),--only $(ONLY)) $(if $(CASE),--case $(CASE))

golden: install ## What 260 plans and searches give, next to the record in test/golden; TEXTS=DIR writes it all, WRITE=1 the record.
	PYTHONPATH=test OMP_NUM_THREADS=1 $(BIN)/python -m golden $(if $(TEXTS),--texts "$(TEXTS)") $(if $(WRITE),--write)

zoo: install ## Imports, distributes and trains 90 families of models; writes the matrix of docs/reference/zoo.md. ONLY="gpt2 vit"
	PYTHONPATH=test OMP_NUM_THREADS=1 $(BIN)/python -m zoo $(ONLY) --write docs/reference/zoo.md

onnx-files: install ## 77 ONNX files that packages of the index ship, against onnxruntime; ONLY="silero rapidocr" some of them.
	OMP_NUM_THREADS=1 $(BIN)/python bench/onnx_files.py $(ONLY)

bench: install ## Measures, and writes docs/benchmarks.md; ONLY="paper rhino" some of its sections.
	$(BIN)/python bench/report.py $(ONLY)

bench-record: install ## Measures, and adds a line with commit, date and machine to bench/data/record.jsonl; ONLY="speed" is measured.
	$(BIN)/python bench/record.py $(ONLY)

gpu: install ## Everything that needs GPUs, on 1 to 8 of them; writes docs/gpu.md. DRY=1 tries it on the CPU.
	$(BIN)/python bench/gpu.py $(if $(DRY),--dry-run) $(if $(ONLY),--only $(ONLY))

docs: $(DOCS) ## The documentation as a site, in build/site; broken links, and cells of notebooks that fail, are errors.
	$(BIN)/python -W ignore::UserWarning -m website.prose
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build # not --quiet: then warnings are no errors
	$(BIN)/python -m website.widths

drawings: install ## The drawings in docs/figures, from the TOML files beside them.
	$(BIN)/python -m website.drawings

screenshots: install ## The picture of the page of `distir explore`; needs Chromium (apt-get install chromium).
	$(BIN)/python -m website.screenshots

lint: install ## Format, style and types.
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright --pythonpath $(BIN)/python

format: install
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

release: ## The wheel and the source archive of the last commit, checked, in dist/.
	.ci/release

install: $(INSTALLED)

$(INSTALLED): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("DistIR needs Python 3.11 or newer; say which one: make PYTHON=python3.11" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet "$(TORCH)"
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	$(if $(XDSL),$(BIN)/python -m pip install --quiet --upgrade "$(XDSL)")
	@echo "DistIR is in $(VENV). To put distir on the path: . $(VENV)/bin/activate"
	@touch $(INSTALLED)

$(JAX_INSTALLED): pyproject.toml
	$(PYTHON) -m venv $(JAX_VENV)
	$(JAX_VENV)/bin/python -m pip install --quiet --editable ".[jax]" equinox flax hypothesis optax pytest
	@touch $(JAX_INSTALLED)

$(DOCS): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --editable ".[dev,docs]"
	@touch $(DOCS)

clean:
	rm -rf $(VENV) $(LATEST_VENV) $(SYSTEMS_VENV) $(JAX_VENV) build dist .lit .pytest_cache .ruff_cache .hypothesis
