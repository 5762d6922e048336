# Two commands: `make demo` shows Samite at work, `make test` checks everything. `make help` lists the rest.
#
#   PYTHON=python3.12   the interpreter of the virtual environment (3.11 or newer; found if not named)
#   VENV=.venv          where that environment is
#   JOBS=2              parallel test processes
#   TESTS=tests/unit    what `make pytest` runs, in place of everything

VENV ?= .venv
JOBS ?= 2
TESTS ?=

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
PACKAGES := core plugins/cpu
EDITABLE := $(PACKAGES:%=-e %)
PINS := constraints.txt

# A stamp is newer than what was installed from: the second `make` installs nothing.
RUN_STAMP := $(VENV)/.installed
DEV_STAMP := $(VENV)/.installed-dev

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
.PHONY: help demo test dev lint types layers pytest docs format clean

help: ## list the targets
	@sed -nE 's/^([a-z]+):.*## (.*)$$/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

demo: $(RUN_STAMP) ## train a character-level GPT over four local processes, beside one device
	$(BIN)/python examples/train_gpt.py

test: lint types layers pytest ## everything that a change must pass

dev: $(DEV_STAMP) ## make the environment with the development tools

lint: $(DEV_STAMP) ## style and spelling
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/codespell

types: $(DEV_STAMP) ## static types
	PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright --pythonpath $(BIN)/python

layers: $(DEV_STAMP) ## which module may import which
	$(BIN)/lint-imports --no-cache

# One thread a process: the workers of a test are the parallelism, and a second pool would fight for their cores.
pytest: $(DEV_STAMP) ## the tests, without lint
	SAMITE_CACHE_DIR=off OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m "not slow and not gpu" $(TESTS)

docs: $(DEV_STAMP) ## build the documentation into build/site; broken links are errors
	$(PIP) install -q -c $(PINS) --group docs
	$(BIN)/mkdocs build --strict

format: $(DEV_STAMP) ## rewrite the sources in the project's style
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean: ## remove the environment, caches and built files
	rm -rf $(VENV) dist build .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find core plugins tests -name __pycache__ -type d -prune -exec rm -rf {} +

# The first interpreter that is new enough and can make environments (Debian's needs python3-venv for that).
$(BIN)/python:
	@for python in $${PYTHON:-python3.12 python3.11 python3}; do \
	  if "$$python" -c 'import sys, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	    echo "making $(VENV) with $$("$$python" --version)"; exec "$$python" -m venv $(VENV); \
	  fi; \
	done; \
	echo "error: no Python of 3.11 or newer with venv was found: install one, or name it: make PYTHON=..." >&2; exit 1

$(RUN_STAMP): $(BIN)/python $(PINS) $(PACKAGES:%=%/pyproject.toml)
	$(PIP) install -c $(PINS) pip
	$(PIP) install -c $(PINS) $(EDITABLE)
	@touch $@

$(DEV_STAMP): $(RUN_STAMP) pyproject.toml
	$(PIP) install -c $(PINS) --group dev
	@touch $@
