# The one place that names torch. CPU or CUDA build: see "CPU or CUDA" in README.md.
TORCH ?= torch==2.13.0
TORCH_INDEX ?=
JOBS ?= 2

# A python3.11 on the path may be a stub that only prints an error, or may lack venv, so each candidate is run.
PYTHON ?= $(firstword $(foreach p,python3.11 python3.12 python3,$(shell \
	$p -c 'import ensurepip, sys, venv; sys.version_info >= (3, 11) and print("$p")' 2>/dev/null)))
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest
TIMED := tests/bench/test_speed.py
CPU := src/lavagna/kernels/cpu
KERNELS := $(CPU)/lavagna_plain.so

.DEFAULT_GOAL := help
.PHONY: help demo test exhaustive check docs bench clean

help:  ## list these targets
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-11s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

# Threads that sleep while they wait: on a machine that has other work, spinning ones make training ten times slower.
demo: $(STAMP) $(KERNELS)  ## train on real text, generate, check the forms, draw: about two minutes on two cores
	OMP_WAIT_POLICY=PASSIVE $(BIN)/lavagna demo

# Speed is measured at the end and alone: a test beside it slows what moves memory more than the product it is held to.
test: $(STAMP) $(KERNELS)  ## run the tests
	$(PYTEST) -n $(JOBS) --ignore $(TIMED)
	$(PYTEST) $(TIMED)

exhaustive: $(STAMP) $(KERNELS)  ## run every test, the slow and the exhaustive ones too
	HYPOTHESIS_PROFILE=thorough $(PYTEST) -n $(JOBS) -m "" --timeout 3600 --ignore $(TIMED)
	$(PYTEST) -m "" --timeout 3600 $(TIMED)

check: $(STAMP)  ## formatter, linter, types
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/pyright --pythonpath $(BIN)/python

docs: $(STAMP) $(KERNELS)  ## run the code of README.md and docs/
	$(PYTEST) tests/test_docs.py

bench: $(STAMP) $(KERNELS)  ## measure the forms
	$(BIN)/lavagna bench

clean:  ## remove the virtual environment and caches
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis build dist

# The installation builds them; this does again what a change of their sources has made stale. Without a compiler torch serves.
$(KERNELS): $(wildcard $(CPU)/source/*) $(CPU)/build.py | $(STAMP)
	-$(BIN)/python $(CPU)/build.py

$(STAMP): pyproject.toml hatch_build.py
	@test -n "$(PYTHON)" || { echo "make: no Python 3.11 or later with venv found; name one: make PYTHON=/path/to/python3.11"; exit 1; }
	$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet "$(TORCH)" $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX))
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	touch $(STAMP)
