# make demo      sets up an environment and runs a trained network over a small volume
# make test      sets up an environment and passes the checks and tests
# make docs      sets up an environment and builds the documentation in site/
# make coverage  runs the tests and prints which lines they reach, on any Python
# make wheel     builds the wheel and runs the demo with it, in an empty environment

PYTHON ?= python3
EXTRAS ?= test,plot
BIN := .venv/bin
READY := .venv/ready
DOCS_READY := .venv/docs-ready

# From Python 3.12 on the interpreter reports each line once, and coverage costs nothing. On Python
# 3.11 it makes the planner's tests take twice as long: there, only make coverage measures it.
MONITORING := $(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 12))'
# Idle threads of BLAS and OpenMP wait in loops, at the cost of other workers. Tests that are about
# threads set their number themselves.
SERIAL := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
# Many tests wait for processes that they start: three workers keep two cores busy.
PYTEST := $(SERIAL) $(BIN)/python -m pytest -n 3 --dist worksteal --durations 20
COVER := --cov=znni --cov=planner

.PHONY: demo test check coverage docs wheel setup clean

setup: $(READY)

$(READY): pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --editable '.[$(EXTRAS)]'
	touch $(READY)

demo: $(READY)
	mkdir -p demo-output
	$(BIN)/znni infer networks/cells.h5 --net networks/cells-unet.yaml \
	    --out demo-output/membranes.h5 --overwrite
	$(BIN)/python networks/demo_picture.py networks/cells.h5 demo-output/membranes.h5 \
	    demo-output/membranes.png
	@echo "look at demo-output/membranes.png; the output is in demo-output/membranes.h5"

test: check
	@if $(MONITORING); then \
	    echo '$(PYTEST) $(COVER)'; \
	    COVERAGE_CORE=sysmon $(PYTEST) $(COVER); \
	else \
	    echo '$(PYTEST)'; \
	    $(PYTEST) && echo 'coverage: not measured on Python 3.11 (make coverage does)'; \
	fi

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

coverage: $(READY)
	@if $(MONITORING); then export COVERAGE_CORE=sysmon; fi; $(PYTEST) $(COVER)

wheel: demo
	ZNNI_TEST_WHEEL=1 $(BIN)/python -m pytest tests/packaging

$(DOCS_READY): $(READY)
	$(BIN)/pip install --quiet --editable '.[docs]'
	touch $(DOCS_READY)

docs: $(DOCS_READY)
	$(BIN)/python -m mkdocs build --strict
	@echo "open site/index.html"

clean:
	rm -rf .venv demo-output dist site .coverage .coverage.*
