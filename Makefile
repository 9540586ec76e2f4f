# Two commands: `make run` measures this machine, `make test` checks Prony. Both do all the set-up.
#   make run TORCH=system   keep the torch that this Python already has (a vendor's container)

PYTHON ?= python3
VENV ?= .venv
TORCH ?= pinned
PIP = $(VENV)/bin/python -m pip --disable-pip-version-check --quiet

.PHONY: run test setup setup-dev lint types clean

run: setup
	$(VENV)/bin/prony run quick

test: setup-dev lint types
	$(VENV)/bin/python -m pytest

lint:
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

types:
	$(VENV)/bin/mypy

setup: $(VENV)/.installed-$(TORCH)
setup-dev: $(VENV)/.installed-$(TORCH)-dev

$(VENV)/.installed-pinned: pyproject.toml constraints.txt
	@echo "prony: setting up $(VENV) (some minutes the first time)" >&2
	$(PYTHON) scripts/check_python.py
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --constraint constraints.txt --editable ".[node]"
	touch $@

$(VENV)/.installed-system: pyproject.toml constraints.txt
	@echo "prony: setting up $(VENV) beside the torch of $(PYTHON)" >&2
	$(PYTHON) scripts/check_python.py --torch
	test -x $(VENV)/bin/python || $(PYTHON) -m venv --system-site-packages $(VENV)
	$(PYTHON) scripts/use_system_torch.py $(VENV)
	$(PIP) install --constraint constraints.txt --editable .
	touch $@

$(VENV)/.installed-$(TORCH)-dev: $(VENV)/.installed-$(TORCH)
	$(PIP) install --constraint constraints.txt --editable ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
