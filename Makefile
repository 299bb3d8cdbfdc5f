# Everything a newcomer types. `make test` on a fresh Debian machine installs what it needs first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
AZURITE := .tools/azurite/.ready
ADBD := .tools/adbd/.ready
PYTHONS := .tools/pythons/.ready
KEDA := .tools/keda/.ready
IMAGE := .tools/image/.ready

.PHONY: help setup unit test lint format docs wheel bench demo screenshots clean

help:  ## show this
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

setup: $(READY) $(AZURITE) $(ADBD) $(PYTHONS) $(KEDA) $(IMAGE) servers  ## make .venv with everything, and the servers the tests use

.PHONY: servers
servers:
	@scripts/install-servers

$(READY): pyproject.toml constraints.txt scripts/make-venv
	@PYTHON=$(PYTHON) scripts/make-venv $(VENV)
	@touch $@

$(AZURITE): scripts/install-azurite
	@scripts/install-azurite .tools/azurite
	@touch $@

# After the packages that it is built with; built again only when its script changes.
$(ADBD): scripts/install-adbd | servers
	@scripts/install-adbd .tools/adbd
	@touch $@

# After npm, which Azurite brings.
$(KEDA): scripts/install-keda | $(AZURITE)
	@scripts/install-keda .tools/keda
	@touch $@

# The container image, and all that its next builds need: tests build it again, from the sources of the moment.
$(IMAGE): $(wildcard deploy/docker/*) .dockerignore constraints.txt pyproject.toml scripts/build-image | $(READY) servers
	@scripts/build-image .tools/image >/dev/null
	@touch $@

# Other Pythons than this machine's: jobs run on any from 3.8 on.
$(PYTHONS): scripts/install-interpreters | $(READY) servers
	@$(PYTHON) scripts/install-interpreters .tools/pythons
	@touch $@

unit: $(READY)  ## the quick tests: no server, no root, about a minute
	$(BIN)/python -m pytest --unit -n 2 --dist worksteal $(ARGS)

test:  ## all tests, against real servers that they start and stop themselves
	@$(MAKE) --no-print-directory -j2 --output-sync=target setup lint
	@scripts/run-tests $(BIN)/python $(ARGS)

lint: $(READY)  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

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

demo: $(READY)  ## a search, its front evaluated by two runners, and a report, in a few minutes; results in demo/
	$(BIN)/python examples/demo.py

screenshots: $(READY)  ## every page of the portal and the report as images in screenshots/, for review
	$(BIN)/python -m tests.portal.gallery $(ARGS)

clean:
	rm -rf $(VENV) .tools site dist .pytest_cache .mypy_cache .ruff_cache
