# `make demo` and `make test` do everything on a fresh machine; `make check` is for every change.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Processes that run tests; each needs a core and about 1 GB of memory.
WORKERS ?= 2

# `make check F=src/osiris/learner/undo.py` (or several files): what touches these files alone.
F ?=
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup

.PHONY: demo check test test-all lint docs site clean

demo: $(STAMP)
	$(BIN)/osiris demo --out demo

# What to run after each change: a minute.
check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
ifeq ($(F),)
	$(BIN)/pyright --pythonpath $(BIN)/python & types=$$!; \
	$(PYTEST) -m "not whole and not slow"; tests=$$?; wait $$types && exit $$tests
else
	$(BIN)/pyright --pythonpath $(BIN)/python $(filter %.py,$(F))
	tests=$$($(BIN)/python tests/support/needs.py $(F)) && $(BIN)/python -m pytest $$tests
endif

test: $(STAMP)
	$(PYTEST)

test-all: $(STAMP)
	$(PYTEST) -m "slow or not slow"

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

# The parts of the pages that are made from the code, then the site.
docs: $(STAMP)
	$(BIN)/python docs/make_method_pages.py
	$(MAKE) site

# Warnings are errors: a broken link fails.
site: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

# The constraints pin the tested versions; torch==2.13.0 keeps a machine without a GPU from fetching CUDA.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt pip
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[tensorboard,wandb,heic,onnx,slurm,transformers,video]" --group dev --group docs
	touch $(STAMP)

clean:
	rm -rf $(VENV) demo site build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
