# Two commands: `make run` measures this machine, `make test` checks Prony. Both do all the set-up.
#   make run TORCH=system   keep the torch that this Python already has (a vendor's container)

PYTHON ?= python3
VENV ?= .venv
TORCH ?= pinned
# pip would compile with one core, for a minute: compileall has them all. A file that is no Python 3 is not ours to mend,
# and what is large and hardly ever imported is compiled when it is.
INSTALL = $(VENV)/bin/python -m pip --disable-pip-version-check --quiet install --no-compile --constraint constraints.txt
COMPILE = $(VENV)/bin/python -m compileall -qq -j 0 -x '/(tests|kubernetes|transformers/models)/' $(VENV)/lib || true

# Two workers a core, since tests that start the real thing often wait for it, and four at most; whole files, whose tests
# may share what is made once; the longest come first.
WORKERS = $(shell $(PYTHON) -c "import os; print(min(4, 2 * (os.cpu_count() or 1)))")
PARALLEL = -n $(WORKERS) --dist loadfile --no-loadscope-reorder

.PHONY: run test test-containers test-kubernetes setup setup-dev docs screenshots lint types clean

run: setup
	$(VENV)/bin/prony run quick

test: setup-dev lint types
	$(VENV)/bin/python -m pytest $(PARALLEL)

# Minutes, and root: images made with Podman; a Kubernetes built from Debian's source package.
test-containers: setup-dev
	PRONY_TEST_CONTAINERS=1 $(VENV)/bin/python -m pytest tests/system/test_containers.py tests/system/test_apptainer.py

test-kubernetes: setup-dev
	bash scripts/build_kubernetes.sh "$${XDG_CACHE_HOME:-$$HOME/.cache}/prony-tests/kubernetes"
	PRONY_TEST_KUBERNETES=1 $(VENV)/bin/python -m pytest tests/system/test_kubernetes_cluster.py

# The documentation site, in build/docs/site: open index.html, no server is needed.
docs: setup-dev
	$(VENV)/bin/python scripts/build_docs.py

# The pictures in docs/img, with headless Chromium or Chrome.
screenshots: setup-dev
	$(VENV)/bin/python scripts/report_picture.py

lint:
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

types:
	$(VENV)/bin/mypy

setup: $(VENV)/.installed-$(TORCH)
setup-dev: $(VENV)/.installed-$(TORCH)-dev

$(VENV)/.installed-pinned: EXTRAS = [workloads,report]
$(VENV)/.installed-pinned-dev: EXTRAS = [workloads,report,dev]
$(VENV)/.installed-system: EXTRAS = [report]
$(VENV)/.installed-system-dev: EXTRAS = [report,dev]

$(VENV)/.installed-pinned $(VENV)/.installed-pinned-dev: pyproject.toml constraints.txt
	@echo "prony: setting up $(VENV) (some minutes the first time)" >&2
	$(PYTHON) scripts/check_python.py
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) --editable ".$(EXTRAS)"
	$(COMPILE)
	touch $(@:-dev=) $@

$(VENV)/.installed-system $(VENV)/.installed-system-dev: pyproject.toml constraints.txt
	@echo "prony: setting up $(VENV) beside the torch of $(PYTHON)" >&2
	$(PYTHON) scripts/check_python.py --torch
	test -x $(VENV)/bin/python || $(PYTHON) -m venv --system-site-packages $(VENV)
	$(PYTHON) scripts/use_system_torch.py $(VENV)
	$(INSTALL) --editable ".$(EXTRAS)"
	$(COMPILE)
	touch $(@:-dev=) $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
