# Two commands do everything: `make demo` and `make test`. Both create .venv and install the pinned set first, once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test test-long venv lint types tests bench clean

demo: $(STAMP)
	@$(BIN)/sartor demo

test: lint types tests

venv: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Sartor needs Python 3.11 or newer; set PYTHON=python3.11, for instance.")'
	@echo "Installing into $(VENV) (once; some minutes)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $(STAMP)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

tests: $(STAMP)
	$(BIN)/pytest -n auto

test-long: lint types
	$(BIN)/pytest -n auto --long

bench: $(STAMP)
	$(BIN)/python benchmarks/plan_speed.py

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis
