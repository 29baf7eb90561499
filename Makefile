# Every command sets up what it needs: a fresh machine needs python3 (3.10 or newer) and a network for pip.
PYTHON ?= python3
VENV ?= .venv
JOBS ?= 2
TRACE ?= ../shared/data/claude-code
OUT ?= out
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help setup demo test bench check format

help:  ## Show this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/'

setup: $(READY)  ## Make the virtual environment

$(READY): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing into $(VENV), some minutes the first time ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(READY)  ## Compare the policies on a paper workload and on a real trace, and write a report
	@$(BIN)/python benchmarks/demo.py --out $(OUT) --trace '$(TRACE)'

test: $(READY)  ## Run the tests
	@OMP_NUM_THREADS=1 MPLBACKEND=Agg $(BIN)/python -m pytest -q -n $(JOBS)

bench: $(READY)  ## Print speed and memory, each as a ratio to a yardstick of the same run
	@$(BIN)/python benchmarks/bench.py

check: $(READY)  ## Lint, format check, types, tests
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(MAKE) --no-print-directory test

format: $(READY)  ## Format and fix what ruff can fix
	@$(BIN)/ruff check --fix-only .
	@$(BIN)/ruff format .
