# Verbs for people; `make help` lists them. Needs Python >= 3.11, make and a C compiler.
# Another interpreter:  make test PYTHON=python3.12      Another environment:  make test VENV=.venv312

PYTHON ?= python3
VENV ?= .venv
SCENARIO ?= quickstart
ARGS ?=
JOBS ?= 2
PYTEST_ARGS ?=
NOTEBOOK_OUT ?= build/notebooks
NOTEBOOKS ?= notebooks/*.py

BIN := $(VENV)/bin
STAMP := $(VENV)/stamp
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
# One thread for each process: more threads than that contend with the worker processes.
ONE_THREAD := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
# A file stays with one worker, so that what its tests share is made once.
# What a test process compiled, the hundreds that tests start need not compile again.
TESTING := $(ONE_THREAD) PYTHONDONTWRITEBYTECODE=

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: hooks bench docs schema notebooks-pair notebooks-pages test-lowest test-slow test-gpu test-foreign help audit test lint format types notebooks check clean

help: ## list the verbs
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  \1|/' | \
		awk -F'|' '{printf "  make %-15s %s\n", substr($$1, 3), $$2}'

audit: $(STAMP)/run ## audit the quickstart (SCENARIO=name or path, ARGS="--seeds 5")
	$(BIN)/vflsec audit $(SCENARIO) $(ARGS)

test: $(STAMP)/test ## run the tests (PYTEST_ARGS="-k rng"); slow ones: make test-slow
	$(TESTING) $(BIN)/python -m pytest -n $(JOBS) --dist loadfile -m "not slow" $(PYTEST_ARGS)

test-slow: $(STAMP)/slow ## run the tests marked slow, long ones too
	$(TESTING) $(BIN)/python -m pytest -n $(JOBS) --dist loadfile -m slow $(PYTEST_ARGS)

test-gpu: $(STAMP)/test ## run the tests that compare a GPU with the CPU; fails where there is none
	$(BIN)/python -c 'import sys, torch; torch.cuda.is_available() or sys.exit(\
		"torch %s finds no CUDA device" % torch.__version__)'
	$(TESTING) $(BIN)/python -m pytest -m gpu $(PYTEST_ARGS)

test-lowest: ## run the tests with the oldest dependencies allowed (downloads gigabytes)
	$(PYTHON) -m venv build/lowest
	build/lowest/bin/python -m pip install --quiet --disable-pip-version-check \
		-c constraints-lowest.txt -e '.[test]'
	$(TESTING) build/lowest/bin/python -m pytest -n $(JOBS) --dist loadfile -m "not slow" $(PYTEST_ARGS)

test-foreign: ## run what records Flower and NVFlare beside them (tests/foreign/README.md)
	$(PYTHON) -m venv build/foreign
	build/foreign/bin/python -m pip install --quiet --disable-pip-version-check \
		-e '.[test,flower,nvflare]' 'flwr[simulation]' flwr-datasets torchvision tensorboard 'openmined-psi>=2.0.5' \
		'grpcio-health-checking<1.74'  # the newest that shares a protobuf with openmined-psi
	$(TESTING) build/foreign/bin/python -m pytest tests/external tests/foreign tests/trace/test_flower.py \
		tests/trace/test_nvflare.py $(PYTEST_ARGS)

lint: $(STAMP)/dev ## style, layers and circles of imports, complexity, forbidden calls
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache
	$(BIN)/python .ci/check_imports.py
	$(BIN)/python .ci/check_complexity.py

format: $(STAMP)/dev ## put the code into the house format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(STAMP)/dev ## type-check the wheel as a user would install it, and benchmarks/
	$(BIN)/python .ci/check_types.py

schema: $(STAMP)/run ## write the JSON schema of scenarios again
	$(BIN)/python -c "from vflsec.config import schema as s; s.SCHEMA_FILE.write_text(s.schema_text())"

docs: $(STAMP)/docs ## build the documentation site, strictly, into build/site (no network)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "open build/site/index.html"

notebooks: $(STAMP)/notebooks ## execute notebooks, two at a time (NOTEBOOKS=notebooks/04*.py for some)
	@mkdir -p $(NOTEBOOK_OUT)
	@printf '%s\n' $(NOTEBOOKS) | $(ONE_THREAD) xargs -P $(JOBS) -I {} sh -c ' \
		echo "executing {}"; \
		$(BIN)/python -m jupytext --quiet --to ipynb --set-kernel python3 --execute \
			--output "$(NOTEBOOK_OUT)/$$(basename "{}" .py).ipynb" "{}"'

notebooks-pages: notebooks ## execute notebooks, and write them as pages into docs/notebooks
	$(BIN)/python .ci/notebook_pages.py \
		$(patsubst notebooks/%.py,$(NOTEBOOK_OUT)/%.ipynb,$(wildcard $(NOTEBOOKS)))

bench: $(STAMP)/run ## time both sides of some ratios; warns if one fell (benchmarks/history.jsonl)
	$(ONE_THREAD) $(BIN)/python benchmarks/history.py

notebooks-pair: $(STAMP)/notebooks ## refresh the .ipynb beside every notebook, without outputs
	$(BIN)/python -m jupytext --quiet --to ipynb notebooks/*.py

hooks: ## check commit messages when they are written (git config core.hooksPath)
	git config core.hooksPath .githooks

check: lint types test ## lint, types and tests

clean: ## remove what was built (environments and audit results stay)
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path './.venv/*' -prune -exec rm -rf {} +

# Environments. A stamp is renewed when the requirements change, so repeated calls cost nothing.

$(STAMP)/venv:
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 11) and \
		"vflsec needs Python >= 3.11, found %d.%d; try: make PYTHON=python3.12" % v[:2])'
	$(PYTHON) -m venv $(VENV)
	@mkdir -p $(STAMP) && touch $@

$(STAMP)/run: $(STAMP)/venv pyproject.toml constraints.txt
	@echo "installing vflsec into $(VENV) (torch is large; the first time takes some minutes)"
	$(PIP) -e .
	@touch $@

$(STAMP)/test: $(STAMP)/run
	$(PIP) -e '.[test]'
	@touch $@

$(STAMP)/slow: $(STAMP)/test
	$(PIP) -e '.[test,cluster,oracles]'
	@touch $@

$(STAMP)/dev: $(STAMP)/run
	$(PIP) -e '.[dev]'
	@touch $@

$(STAMP)/docs: $(STAMP)/run
	$(PIP) -e '.[docs]'
	@touch $@

$(STAMP)/notebooks: $(STAMP)/run
	$(PIP) -e '.[notebooks]'
	@touch $@
