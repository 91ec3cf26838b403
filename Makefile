# Two commands on a fresh machine: `make demo` and `make test`. Each prepares all it needs.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEMO_DIR ?= demo

.PHONY: help venv java databases browser demo ui test test-all test-pythons lint format interop docs sbom dist spark-versions fuzz soak peers bench bench-check clean

help: ## Show what there is
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

$(READY): pyproject.toml constraints.txt .ci/find-python
	@python="$$(.ci/find-python)"; \
	[ -x $(BIN)/python ] || "$$python" -m venv $(VENV) || { echo "Python's venv module is missing: on Debian or Ubuntu install python3-venv"; exit 1; }
	@echo "Installing into $(VENV) (a few minutes the first time)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@$(BIN)/python -m compileall -q scan_core pipelines checks assets pyspark_nevermore
	@$(BIN)/python -m nevermore.pipelines.cli.compile_kernels
	@touch $@

venv: $(READY) ## Make .venv with everything in it

java: ## Check for Java 17 or newer, install a headless JRE on Debian or Ubuntu as root
	@.ci/ensure-java

databases: ## Check for MariaDB, install it on Debian or Ubuntu as root
	@.ci/ensure-databases

browser: ## Check for Chromium, install it on Debian or Ubuntu as root
	@.ci/ensure-chromium

demo: $(READY) java ## Run the whole pipeline on a simulated shop
	@$(BIN)/nevermore demo --dir $(DEMO_DIR)

ui: $(READY) java ## Open the demo project in the Dagster UI
	@$(BIN)/nevermore ui --dir $(DEMO_DIR)

# One more than the two cores, as tests wait for servers and JVMs: 11 minutes where nothing else runs. Each takes up to 2 GiB.
WORKERS ?= 3

# A test that its own limit does not end, as it hangs in compiled code or in a fixture, ends its process after 1300 s.
test: $(READY) java databases ## Run the tests that every change must pass, in WORKERS=3 processes
	@$(BIN)/python -m pytest -m "not slow" --timeout 900 --numprocesses $(WORKERS) --dist loadfile \
		-o faulthandler_timeout=1300 -o faulthandler_exit_on_timeout=true

PART ?=

test-all: $(READY) java databases ## Run every test, the long ones too; PART="checks kernels" runs those folders of tests/ alone
	@$(BIN)/python -m pytest --timeout 1800 --numprocesses $(WORKERS) --dist loadfile $(addprefix tests/,$(PART))
ifeq ($(strip $(PART)),)
	@tests/spark_versions/run
	@$(MAKE) test-pythons
endif

# Each has an environment of its own.
test-pythons: java databases ## Run `make test` on Python 3.11, 3.12 and 3.13; before a release
	@for version in 3.11 3.12 3.13; do \
	  python="$$(.ci/python-of $$version)"; \
	  $(MAKE) test VENV=.venv-$$version PYTHON="$$python"; \
	done

lint: $(READY) ## ruff, mypy --strict, import contracts, counts of modules and imports, what pytest collects
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache
	@$(BIN)/python .ci/house.py
	@$(BIN)/python .ci/collected.py

format: $(READY) ## Format the code
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

interop: $(READY) java ## Compare with Iceberg Java: its reading of our tables, ours of 20 that it writes
	@tests/interop/run

interop-all: $(READY) java ## The same over 500 random tables written by Iceberg Java
	@NEVERMORE_INTEROP_HISTORIES=500 tests/interop/run

spark-versions: $(READY) java ## Run queries over both readers with PySpark 4.1, 4.2 and 4.3, classic and Connect
	@tests/spark_versions/run

fuzz: $(READY) ## Damage 100,000 small tables: each is read or refused, nothing else happens
	@$(BIN)/python -m tests.fuzz --inputs 100000

MINUTES ?= 10

soak: $(READY) java ## Kill an ingester of a busy database, then one of a busy topic, again and again, compare every snapshot; MINUTES=10
	@$(BIN)/python -m tests.pipelines.postgres.soak --minutes $(MINUTES)
	@$(BIN)/python -m tests.pipelines.kafka.soak --minutes $(MINUTES)

PEERS := .venv-peers

peers: $(READY) ## Install the engines that the benchmarks run beside ours
	@[ -x $(PEERS)/bin/python ] || $(BIN)/python -m venv $(PEERS)
	@$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check -r benchmarks/requirements.txt

BENCHMARKS := count_and_aggregate needle object_store bitmap_index select_star filter_passes_all memory_cap cold_start planning large_metadata filters subfields ingest_decode ingest_to_mirror kafka_stream postgres_load postgres_stream check_source convert merge commit_cost incremental_publish checked_publish check_memory publish_reads spark_dataframe runtime_filter spark_join against_engines

bench: $(READY) ## Compare everything with the decode floor and the installed peers, write benchmarks/ratios.json
	@for name in $(BENCHMARKS); do $(BIN)/python -m benchmarks.$$name; done
	@$(BIN)/python -m benchmarks.publish

bench-check: ## Compare the ratios of the last runs with those under git
	@$(BIN)/python -m benchmarks.check

docs: $(READY) ## Build the documentation into build/docs, with search; a broken link fails
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[docs]'
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --site-dir build/docs
	@echo "build/docs/index.html"

# From an environment of its own: it asks for a newer jsonschema than ours.
sbom: $(READY) ## Write build/sbom.json, the packages of the environment as CycloneDX
	@mkdir -p build
	@$(BIN)/python -m venv .venv-sbom
	@.venv-sbom/bin/python -m pip install --quiet --disable-pip-version-check cyclonedx-bom==7.5.0
	@.venv-sbom/bin/cyclonedx-py environment --output-reproducible --pyproject pyproject.toml --output-file build/sbom.json $(BIN)/python
	@echo "build/sbom.json"

dist: $(READY) java ## Build wheel and sdist into dist/, install both in new environments and run the README there
	@VENV=$(VENV) .ci/dist

clean: ## Remove the environment and everything made by the commands above
	rm -rf $(VENV) .venv-* .cache $(DEMO_DIR) build dist
