# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test test-all lint docs clean

demo: $(STAMP)
	$(BIN)/osiris demo --out demo

test: $(STAMP)
	$(BIN)/python -m pytest

test-all: $(STAMP)
	$(BIN)/python -m pytest -m "slow or not slow"

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

docs: $(STAMP)
	$(BIN)/python docs/make_method_pages.py

# The constraints pin the tested versions; torch==2.13.0 keeps a machine without a GPU from fetching CUDA.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt pytest hypothesis ruff "pyright[nodejs]" import-linter tensorboard wandb
	touch $(STAMP)

clean:
	rm -rf $(VENV) demo build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
