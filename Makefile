# Every command sets up what it needs: a fresh machine needs python3 (3.10 or newer) and a network for pip.
PYTHON ?= python3
VENV ?= .venv
JOBS ?= 2
TRACE ?= ../shared/data/claude-code
OUT ?= out
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help setup demo test bench check format engine-env engine-slice engine-full

help:  ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/'

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

engine-env:  ## Build the environment with real SGLang on this CPU
	@scripts/engine-env.sh

engine-slice: engine-env  ## Run the engine tests that CI runs (stopped after 20 minutes)
	@TOPAS_ENGINE=slice OMP_NUM_THREADS=1 timeout 1200 .venv-engine/bin/python -m pytest -q tests/engine

engine-full: engine-env  ## Run all engine tests, on the newest SGLang and an older one (hours)
	@TOPAS_ENGINE=full OMP_NUM_THREADS=1 .venv-engine/bin/python -m pytest -q tests/engine
	@scripts/engine-env.sh 0.5.18
	@TOPAS_ENGINE=slice OMP_NUM_THREADS=1 .venv-engine-0.5.18/bin/python -m pytest -q tests/engine
