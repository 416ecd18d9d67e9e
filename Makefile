# Everything runs from .venv, made from requirements.lock. Override the interpreter with: make PYTHON=python3.12 ...
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEMO_STAMP := $(VENV)/.installed-for-demo
# PySpark comes as source, and its wheel is unpacked right after it is made: to compress the jars would take 20 s.
INSTALL_FOR := $(BIN)/uv pip install --quiet --config-settings-package pyspark:--build-option=--compression=stored --python
UV_INSTALL := $(INSTALL_FOR) $(BIN)/python
# What uv's cache has is taken from there first: where a registry sends no caching headers, uv would fetch and build
# PySpark again in each checkout, and its cache would grow by 2 GB each time.
install = $(UV_INSTALL) --offline $(1) 2>/dev/null || $(UV_INSTALL) $(1)
PYTEST_ARGS ?=
# Whole files go to one worker, so that what a file sets up is set up once.
PYTEST_WORKERS ?= 2
IN_PARALLEL := -n $(PYTEST_WORKERS) --dist loadfile
PROSE := README.md CONTRIBUTING.md SECURITY.md CHANGELOG.md mkdocs.yml docs
DEMO_ARGS ?=
BENCH_ARGS ?=
SOAK_SECONDS ?= 3600
LARGE_ARGS ?= --rows 1000000 10000000 --log 50000000
LAKE_TESTS ?= tests/e2e tests/dbt
PEERS := .venv-peers
OLDEST := .venv-oldest

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

.PHONY: help
help: ## List the targets
	@awk 'BEGIN { FS = ":.*## " } /^##@ / { printf "\n%s\n", substr($$0, 5) } /^[a-z0-9-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

##@ Environment

.PHONY: env
env: $(STAMP) ## Make .venv from requirements.lock

# What installing needs: a Python that is new enough, its venv, and uv.
define venv
@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON): not found; install Python 3.11 or newer, or name one: make PYTHON=..." >&2; exit 1; }
@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("$(PYTHON) is Python %d.%d; 3.11 or newer is needed: make PYTHON=python3.11 ..." % sys.version_info[:2])'
@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
@test -x $(BIN)/uv || $(BIN)/python -m pip install --quiet --disable-pip-version-check uv
endef

$(STAMP): requirements.lock pyproject.toml
	$(venv)
	$(call install,-r requirements.lock)
	$(call install,--no-deps -e .)
	@touch $(DEMO_STAMP) $@

# The demo needs fewer packages than the tests.
$(DEMO_STAMP): requirements.lock pyproject.toml
	$(venv)
	$(call install,--constraint requirements.lock -e .[demo])
	@touch $@

.PHONY: lock
lock: ## Resolve the dependencies again into requirements.lock (names no host)
	@test -x $(BIN)/uv || { $(PYTHON) -m venv $(VENV) && $(BIN)/python -m pip install --quiet uv; }
	$(BIN)/uv pip compile --quiet --upgrade --no-emit-index-url --no-header --python-version 3.11 --all-extras pyproject.toml -o requirements.lock

.PHONY: postgres15
postgres15: ## Install Debian's PostgreSQL 15 for the tests that want it (root only, optional)
	@if ls -d /usr/lib/postgresql/15/bin >/dev/null 2>&1; then :; \
	elif [ "$$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then \
	  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends postgresql-15; } >/dev/null 2>&1 \
	    || echo "notice: postgresql-15 could not be installed here; its tests are skipped" >&2; \
	else echo "notice: PostgreSQL 15 is not installed and this user cannot install it; its tests are skipped" >&2; fi

.PHONY: browser
browser: ## Install Debian's chromium for the tests that look at pages (root only, optional)
	@if command -v chromium >/dev/null; then :; \
	elif [ "$$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then \
	  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium; } >/dev/null 2>&1 \
	    || echo "notice: chromium could not be installed here; its tests are skipped" >&2; \
	else echo "notice: chromium is not installed and this user cannot install it; its tests are skipped" >&2; fi

##@ Use

.PHONY: demo
demo: $(DEMO_STAMP) ## The whole story on an embedded PostgreSQL (DEMO_ARGS="--postgres 18")
	@$(BIN)/cdc demo $(DEMO_ARGS)

##@ Develop

.PHONY: test
test: lint ## Lint, type check, and every test
	$(BIN)/python -m pytest $(IN_PARALLEL) $(PYTEST_ARGS)

.PHONY: test-unit
test-unit: $(STAMP) ## The tests that need neither PostgreSQL nor Spark
	$(BIN)/python -m pytest -m unit $(PYTEST_ARGS)

.PHONY: test-wide
test-wide: $(STAMP) ## More types, traps and faults (two hours; CDC_TEST_BUDGET_SECONDS=1200 takes some by chance)
	$(BIN)/python -m pytest -m "wide and not long" $(IN_PARALLEL) $(PYTEST_ARGS)

.PHONY: test-oldest
test-oldest: $(STAMP) ## The tests with the oldest packages that pyproject.toml allows (PYTEST_ARGS=tests/unit)
	@$(PYTHON) -m venv $(OLDEST)
	$(INSTALL_FOR) $(OLDEST)/bin/python --resolution lowest-direct -e .[demo,dev]
	$(OLDEST)/bin/python -m pytest $(IN_PARALLEL) $(PYTEST_ARGS)

.PHONY: test-long
test-long: $(STAMP) ## The proofs that take minutes or millions of rows
	$(BIN)/python -m pytest -m long $(PYTEST_ARGS)

# A cluster, a store and servers run beside these tests, so they run one at a time.
.PHONY: test-lakes
test-lakes: $(STAMP) ## The tests of the default lake on a cluster, a store and REST or PostgreSQL as catalog (root; LAKE_TESTS="tests/e2e/test_path.py")
	for lake in rest+s3 postgresql+s3; do \
	  CDC_TEST_LAKE=$$lake $(BIN)/python -m pytest -n 0 -m "not long" $(LAKE_TESTS) $(PYTEST_ARGS) || failed=1; \
	done; test -z "$$failed"

.PHONY: soak
soak: $(STAMP) ## Random input for the parsers, then random lives for an hour (SOAK_SECONDS=36000); failures are in build/lives
	$(BIN)/python -m tests.fuzz.parsers --seconds 600
	CDC_TEST_LIFE_SECONDS=$(SOAK_SECONDS) CDC_TEST_LIFE_KEPT=build/lives \
	  $(BIN)/python -m pytest -m "not long" -k "select_showed and not one_kind" tests/postgres/test_life.py tests/e2e/test_life_in_the_lake.py

.PHONY: mutants
mutants: $(STAMP) ## Remove one guard at a time: the test named for it must fail
	$(BIN)/python -m tests.mutants $(MUTANTS)

.PHONY: audit
audit: $(STAMP) ## Known vulnerabilities of the locked packages: error 1 if there are, 3 if the data is not reachable
	@$(BIN)/python -m tests.audit

.PHONY: sbom
sbom: $(STAMP) ## Write build/sbom.json, a CycloneDX list of the locked packages
	@mkdir -p build
	$(BIN)/uv tool run --quiet --from cyclonedx-bom cyclonedx-py requirements --pyproject pyproject.toml --output-reproducible -o build/sbom.json requirements.lock

.PHONY: lint
lint: $(STAMP) ## Ruff, mypy, unused code, and the words of the documents
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/vulture
	$(BIN)/codespell -D - -D tests/docs/words.txt $(PROSE)

.PHONY: format
format: $(STAMP) ## Let Ruff put the code in order
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: docs
docs: $(STAMP) ## Build the site into site/, with warnings as errors, offline
	$(BIN)/zensical build --strict --clean

.PHONY: docs-reference
docs-reference: $(STAMP) ## Write the generated pages of docs/reference again
	$(BIN)/python -m docs.generate

.PHONY: bench
bench: $(STAMP) ## Speeds against the limit of the same run, one JSON line a figure (BENCH_ARGS="--changes 100000")
	@$(BIN)/python -m tests.benchmarks.bench $(BENCH_ARGS)
	@$(BIN)/python -m tests.benchmarks.startup
	@$(BIN)/python -m tests.benchmarks.capture
	@$(BIN)/python -m tests.benchmarks.many --tables 50

.PHONY: bench-full
bench-full: $(STAMP) ## W1 to W7 and large tables, content validated (BENCH_ARGS="w1 --repeat 1" LARGE_ARGS="--rows 1000000")
	@$(BIN)/python -m tests.benchmarks.full $(BENCH_ARGS)
	@$(BIN)/python -m tests.benchmarks.large $(LARGE_ARGS)

.PHONY: bench-peers
bench-peers: $(STAMP) ## Debezium beside `cdc drain`, on the same WAL, in an environment of its own
	@test -x $(PEERS)/bin/python || $(PYTHON) -m venv $(PEERS)
	@$(BIN)/uv pip install --quiet --python $(PEERS)/bin/python -r tests/benchmarks/peers.txt
	@$(BIN)/python -m tests.benchmarks.peers --python $(PEERS)/bin/python $(BENCH_ARGS)

.PHONY: clean
clean: ## Remove what the tools leave behind, and .venv
	rm -rf $(VENV) $(PEERS) build dist site *.egg-info .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis cdc-demo
	rm -rf dbt_project/target dbt_project/logs
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
