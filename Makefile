# Everything a newcomer types. On a fresh Debian machine, each command installs what it needs first, and only that.
PYTHON ?= python3
# Test processes; three keep two cores busy.
WORKERS ?= 3
# Downloads. They are kept by `make clean`, and another clone can be given the same folder.
CACHE ?= $(CURDIR)/.tools/cache
export PYTHON WORKERS CACHE

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
READY_DEMO := $(VENV)/.ready-demo
INTERPRETER := .tools/python/.ready
SERVERS := .tools/servers/.ready
AZURITE := .tools/azurite/.ready
ADBD := .tools/adbd/.ready
KEDA := .tools/keda/.ready
ARCHAI := .tools/archai/.ready
CLUSTERS := .tools/clusters/.ready
PYTHONS := .tools/pythons/.ready
IMAGE := .tools/image/.ready
FOR_TEST := $(READY) $(SERVERS) $(AZURITE) $(ADBD) $(KEDA) $(ARCHAI)
FOR_SOAK := $(FOR_TEST) $(CLUSTERS) $(PYTHONS) $(IMAGE)
# Steps wait for downloads as much as for processors.
PARALLEL := --no-print-directory -j3

.PHONY: help setup setup-demo setup-test setup-soak unit test soak lint format docs wheel bench demo screenshots clean

help:  ## show this
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

# Stamps say what is installed, so that the second run need not ask apt, pip and npm. `make setup` asks again.
setup:  ## install everything that both tiers of tests use, and what was removed since
	@rm -f $(SERVERS) $(CLUSTERS)
	@$(MAKE) $(PARALLEL) setup-soak

setup-demo: $(READY_DEMO)
setup-test: $(FOR_TEST)
setup-soak: $(FOR_SOAK)
setup-demo setup-test setup-soak:
	@:

# First, alone: apt installs one thing at a time, and the environment is made beside the servers.
$(INTERPRETER): scripts/install-python
	@scripts/once $@ scripts/install-python

# The environment: for the demo, and with all that `make test` needs.
$(READY_DEMO): pyproject.toml constraints.txt scripts/make-venv | $(INTERPRETER)
	@scripts/once $@ scripts/make-venv $(VENV) demo

$(READY): pyproject.toml constraints.txt scripts/make-venv | $(INTERPRETER)
	@scripts/once $@ scripts/make-venv $(VENV) all

# PostgreSQL, adb, Chromium and others, by apt.
$(SERVERS): scripts/install-servers | $(INTERPRETER)
	@scripts/once $@ scripts/install-servers test

$(AZURITE): scripts/install-azurite | $(SERVERS)
	@scripts/once $@ scripts/install-azurite .tools/azurite

# Built again only when its script changes.
$(ADBD): scripts/install-adbd | $(SERVERS)
	@scripts/once $@ scripts/install-adbd .tools/adbd

$(KEDA): scripts/install-keda | $(SERVERS)
	@scripts/once $@ scripts/install-keda .tools/keda

# The package whose store Edgeloop shares, for tests that use both on one account.
$(ARCHAI): scripts/install-archai | $(READY)
	@scripts/once $@ scripts/install-archai .tools/archai

# Slurm, and what the two below are made with.
$(CLUSTERS): scripts/install-servers | $(SERVERS)
	@scripts/once $@ scripts/install-servers soak

# Other Pythons than this machine's: jobs run on any from 3.8 on.
$(PYTHONS): scripts/install-interpreters | $(READY) $(CLUSTERS)
	@scripts/once $@ $(PYTHON) scripts/install-interpreters .tools/pythons

# The container image, and all that its next builds need: tests build it again, from the sources of the moment.
$(IMAGE): $(wildcard deploy/docker/*) .dockerignore constraints.txt pyproject.toml scripts/build-image | $(READY) $(CLUSTERS)
	@scripts/once $@ scripts/build-image .tools/image >/dev/null

unit: $(READY)  ## the quick tests: no server, no root, about a minute and a half
	@$(BIN)/python -m pytest --tier unit -n 2 --dist worksteal $(ARGS)

test:  ## everything a change can break, against real servers that the tests start and stop themselves
	@$(MAKE) $(PARALLEL) setup-test
	@scripts/run-tests $(BIN)/python --tier test $(ARGS)

soak:  ## what is long by nature: whole searches, clusters under kills, the image, other Pythons
	@$(MAKE) $(PARALLEL) setup-soak
	@scripts/run-tests $(BIN)/python --tier soak $(ARGS)

lint: $(READY)  ## ruff and mypy, which are tests of `make test`, too
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/mypy --no-error-summary

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(READY)  ## the documentation as a site in site/; a warning or a broken link fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

wheel: $(READY)  ## the wheel and source archive in dist/, and whether PyPI would render the README
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	$(BIN)/twine check --strict dist/*

bench: setup  ## the figures of bench/RESULTS.md, measured again
	$(BIN)/python -m bench $(ARGS)

demo: $(READY_DEMO)  ## a search, its front evaluated by two runners, and a report, in a few minutes; results in demo/
	$(BIN)/python examples/demo.py

screenshots: $(READY)  ## every page of the portal and the report as images in screenshots/, and those of docs/images
	$(BIN)/python -m tests.portal.gallery $(ARGS)

clean:  ## remove all that make made; downloads stay in .tools/cache
	rm -rf $(VENV) $(filter-out .tools/cache,$(wildcard .tools/*)) site dist .pytest_cache .mypy_cache .ruff_cache
