# Two commands do everything: `make demo` and `make test`. Both create .venv and install the pinned set first, once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# One worker for each core.
PYTEST := $(BIN)/python -m pytest -n auto

# What computes, and kernels that another computer may have: without vector instructions that are newer than NumPy and PyTorch ask for, a
# plain BLAS, and two threads in each worker. The largest network takes such kernels a minute; its layers are tried one by one.
NUMERICAL := tests/test_kernels.py tests/test_exposure.py tests/accounting tests/plans/test_figures.py tests/plans/test_schemes.py \
	tests/sgd/gradients $(addprefix tests/run/test_,stream.py sampling.py) \
	$(addprefix tests/sgd/test_,private.py odd_models.py property.py checkpoint.py) \
	$(addprefix tests/pate/test_,bounds.py costs.py smooth.py voting.py pate_plan.py) \
	$(addprefix tests/federated/test_,federated_plan.py rounds.py server.py)
DISPATCHED := from numpy._core._multiarray_umath import __cpu_dispatch__ as best, __cpu_features__ as here
OTHER_KERNELS = ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 MKL_CBWR=COMPATIBLE OPENBLAS_CORETYPE=Nehalem OMP_NUM_THREADS=2 \
	NPY_DISABLE_CPU_FEATURES="$$($(BIN)/python -c '$(DISPATCHED); print(*(name for name in best if here[name]))')"

.PHONY: demo test test-long test-deployment test-kernels audit venv lint types tests bench clean

demo: $(STAMP)
	@$(BIN)/sartor demo

# Types are checked beside the tests, as mypy has one core.
test: lint
	@$(MAKE) --no-print-directory -j 2 types tests

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
	$(PYTEST)

test-long: lint types
	$(PYTEST) --long

test-deployment: $(STAMP)
	$(BIN)/python -m pytest --long tests/federated/test_deployment.py tests/cli/test_federate.py -k 'deployment or simulation_on_flower'

test-kernels: $(STAMP)
	$(OTHER_KERNELS) $(PYTEST) -k 'not resnet18' $(NUMERICAL)

audit: $(STAMP)
	PYTHONPATH=tests $(BIN)/python -m mutants

bench: $(STAMP)
	$(BIN)/python benchmarks/plan_speed.py

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis
