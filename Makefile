# Each target sets up what it needs: a clean checkout, Python 3.11 or later and a package index are enough.
# PYTHON names the interpreter to build the virtual environment with, e.g. `make test PYTHON=python3.12`. JOBS is the number
# of processes that run the tests. For two cores it is 5 in `make test`, since many tests wait for a server, and 3 elsewhere,
# since each may start a Spark of its own, of 1 GiB.

PYTHON ?=
PART ?=
SEEDS ?= 300
MINUTES ?= 12
JOBS ?=
VENV := .venv
LOWEST := .venv-lowest
BIN := $(VENV)/bin
# Twice quiet: errors alone. A machine's own pip configuration may otherwise warn once for each package.
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --quiet
CONTRACTS := tests/test_architecture.py tests/test_api.py tests/test_errors.py tests/test_metrics.py tests/test_operations.py \
	tests/test_settings.py tests/test_walk.py tests/cli/test_docs.py tests/cli/test_help.py tests/cli/test_config.py tests/cli/test_metrics_options.py \
	tests/cli/test_observability_files.py tests/cli/test_refused.py tests/cli/test_captures.py \
	tests/docs/test_blocks.py tests/examples tests/scaling/test_paper.py

# The tests start hundreds of processes: what Python has compiled is kept, whatever the environment says.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help check generate contracts style ruff-check ruff-format mypy near mutants demo test thorough release lowest simulate explore crash-test soak lint format bench captures docs clean java

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.dev ## Run the whole loop on an embedded S3 server, with sample data
	$(BIN)/l0gc demo

check: generate ## Within a minute: write what is generated, check style and types, compare documents, options and policies with the code
	@$(MAKE) --no-print-directory --keep-going -j2 --output-sync=target style contracts

generate: | $(BIN)/l0gc
	$(BIN)/python -m docs.programs.commands
	$(BIN)/python -m docs.programs.library
	$(BIN)/python -m docs.programs.alerts
	$(BIN)/python -m docs.programs.tables
	$(BIN)/python -m tests.examples.iam
	$(BIN)/python -m tests.scaling.paper --write

contracts: | $(BIN)/l0gc
	$(BIN)/python -m pytest -q --show-capture=no -m 'not weed and not spark and not thorough' $(CONTRACTS)

style: ruff-check ruff-format mypy

ruff-check: | $(BIN)/l0gc
	$(BIN)/ruff check

ruff-format: | $(BIN)/l0gc
	$(BIN)/ruff format --check

mypy: | $(BIN)/l0gc
	$(BIN)/mypy

near: | $(BIN)/l0gc ## Run the quick tests that mirror the files changed since main
	$(BIN)/python -m tests.near

mutants: $(VENV)/.mutants ## Change a PART (l0gc/collect/plan.py) in each small way, and list the changes that its tests miss
	$(BIN)/python -m tests.mutate $(PART)

test: $(VENV)/.dev java ## Prove each rule once
	$(BIN)/python -m pytest -q -n $(or $(JOBS),5) --dist loadfile --durations 25 -m 'not thorough'

thorough: $(VENV)/.dev java ## Run the tests that `make test` leaves out
	$(BIN)/python -m pytest -q -n $(or $(JOBS),3) --dist loadfile --durations 40 -m 'thorough and not release'

release: thorough ## Take hours: whole searches, 2,000 seeds, every crash point, a soak; before a release, or after a change of a log's rule
	$(BIN)/python -m pytest -q -n $(or $(JOBS),3) --dist loadfile --durations 10 -m release
	L0GC_FUZZ_EXAMPLES=1000 $(BIN)/python -m pytest -q -n $(or $(JOBS),3) --dist loadfile tests/fuzz
	L0GC_TRIES=10 $(BIN)/python -m pytest -q -n $(or $(JOBS),3) --dist loadfile -m 'not thorough' $$(grep -rl '^@tries' tests --include='test_*.py')
	$(BIN)/python -m tests.exhaustive --seconds inf
	$(BIN)/python -m tests.simulation --seeds 2000
	$(BIN)/python -m tests.simulation --seeds 300 --losses
	$(BIN)/python -m tests.simulation --seeds 300 --set-back
	$(BIN)/python -m tests.crash
	$(BIN)/python -m tests.flows.soak --minutes $(MINUTES)

lowest: ## Run the tests of `make test` with the lowest version of each package that l0gc needs
	@rm -rf $(LOWEST)
	@.ci/venv $(LOWEST) "$(PYTHON)"
	@$(LOWEST)/bin/python -m pip --disable-pip-version-check install --quiet --quiet uv
	@$(LOWEST)/bin/uv pip compile --quiet --no-deps --resolution lowest-direct --extra server --extra iceberg --extra kafka \
		pyproject.toml --output-file $(LOWEST)/lowest.txt
	@$(LOWEST)/bin/uv pip install --quiet --python $(LOWEST)/bin/python --constraint $(LOWEST)/lowest.txt --editable '.[dev,docs,server]'
	@touch $(LOWEST)/.dev
	@$(MAKE) --no-print-directory test VENV=$(LOWEST)

simulate: $(VENV)/.dev ## Run the simulation over SEEDS seeds
	$(BIN)/python -m tests.simulation --seeds $(SEEDS)

explore: $(VENV)/.dev ## Search every interleaving of a few processes
	$(BIN)/python -m tests.exhaustive

crash-test: $(VENV)/.dev java ## Kill each command at each of its requests to a real server, and run it again
	$(BIN)/python -m tests.crash

soak: $(VENV)/.dev ## Run everything at once for MINUTES, with processes killed
	$(BIN)/python -m tests.flows.soak --minutes $(MINUTES)

lint: $(VENV)/.dev style ## Check style, formatting and types

format: $(VENV)/.dev ## Format the code, and fix what can be fixed without thought
	$(BIN)/ruff check --fix-only
	$(BIN)/ruff format

captures: $(VENV)/.dev java ## Record the README's first session and docs/captures again
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python docs/captures/record.py

docs: $(VENV)/.dev ## Build the documents' site (build/site) and the man pages (build/man)
	$(BIN)/python -m sphinx -q -W --keep-going docs build/site
	$(BIN)/python docs/programs/man_pages.py build/man

bench: $(VENV)/.bench java ## Run the benchmarks
	PATH="$(abspath $(BIN)):$$PATH" benchmarks/run

clean: ## Remove everything that the other targets made
	rm -rf $(VENV) $(LOWEST) build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache spark-warehouse
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

java:
	@.ci/java

# The stamps say which dependencies are installed; they are as old as the installation, so an edit of pyproject.toml
# brings a new one.
$(VENV)/.dev: pyproject.toml
	@.ci/venv $(VENV) "$(PYTHON)"
	@echo "Installing l0gc and its development tools into $(VENV) (a minute or two)"
	@$(PIP) --editable '.[dev,docs,server]'
	@touch $@

$(BIN)/l0gc:
	@.ci/venv $(VENV) "$(PYTHON)"
	@$(PIP) --editable '.[dev]'

$(VENV)/.mutants: $(VENV)/.dev
	@$(PIP) --editable '.[dev,docs,server,mutants]'
	@touch $@

$(VENV)/.bench: $(VENV)/.dev
	@$(PIP) --editable '.[dev,docs,server,bench]'
	@touch $@
