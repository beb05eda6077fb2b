# make demo      runs trained networks over small volumes, and draws what they find
# make check     runs the checks: ruff, mypy, import contract
# make quick     runs the checks, and the tests that find most faults
# make test      runs the checks and all tests
# make setup     installs all that make test needs
# make docs      builds the documentation in site/
# make coverage  runs the tests and prints which lines they reach, on any Python
# make wheel     builds the wheel and runs the demo with it, in an empty environment
# make browser   installs Chromium, for tests of pages, as root on Debian or Ubuntu
# make lock      writes requirements.lock: the versions that CI and containers install
# make changelog VERSION=X.Y.Z  moves the files of changes/ into CHANGELOG.md
# make clean     removes .venv and all that was built
#
# Each command first sets up what it needs, in .venv.

PYTHON ?= python3
# The package of PyTorch. TORCH= installs none, and tests that need it are skipped.
TORCH ?= torch==2.13.0
# The share of the slow tests that make test runs: 1/4 is the second of four.
SHARE ?= 0/1
# A file to which make quick and make test add the tests that pass. Tests in it are left out. Delete it
# after any change.
PASSED ?=
# The system whose missing parts make quick takes away: macos or windows.
AS_IF ?=

BIN := .venv/bin
DEMO_READY := .venv/demo-ready
QUICK_READY := .venv/quick-ready
TORCH_READY := .venv/torch-ready
TEST_READY := .venv/test-ready
DOCS_READY := .venv/docs-ready
# The last file that the demo makes.
DEMO_OUTPUT := demo-output/cells.png

# LOCK=requirements.lock installs the versions that CI and containers have.
LOCK ?=
CONSTRAINED := $(if $(LOCK),--constraint $(LOCK))

# uv takes a fifth of pip's time. It does not read pip's settings. If uv fails, pip installs.
install = $(BIN)/uv pip install --quiet --python $(1) $(CONSTRAINED) $(2) || \
    $(BIN)/pip --python $(1) install --quiet --no-compile $(CONSTRAINED) $(2)

# From Python 3.12 on the interpreter reports each line once, and coverage costs nothing. On Python
# 3.11 it makes the planner's tests take twice as long: there, only make coverage measures it.
MONITORING := $(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 12))'
# Idle threads of BLAS and OpenMP wait in loops, at the cost of other workers. Tests that are about
# threads set their number themselves.
SERIAL := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
# Libraries that the tests use. They cannot be installed beside the others.
APART := ZNNI_OME_ZARR_PYTHON=$(CURDIR)/.venv/ome-zarr/bin/python \
    ZNNI_DASK_KUBERNETES=$(CURDIR)/.venv/dask-kubernetes
# Many tests wait for processes that they start: three workers keep two cores busy.
# --passed=FILE is one word: before pytest has read conftest.py, it takes a file in a word of its own
# for a test.
OPTIONS := -n 3 --dist worksteal $(if $(PASSED),--passed=$(PASSED))
PYTEST := $(SERIAL) $(APART) $(BIN)/python -m pytest $(OPTIONS) --share $(SHARE) --durations 20
COVER := --cov=znni --cov=planner
# Tests of whole runs, of primitives, of plans, and of everything that a missing library affects.
QUICK := @tests/quick.txt
OTHER_SYSTEM := $(if $(AS_IF),ZNNI_TEST_SYSTEM=$(AS_IF) PYTHONPATH=$(CURDIR)/tests/support/other_systems)

.PHONY: demo quick test check coverage docs wheel browser setup lock changelog clean

$(DEMO_READY): pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet uv
	$(call install,.venv,--editable '.[plot]')
	touch $@

$(QUICK_READY): $(DEMO_READY)
	$(call install,.venv,--editable '.[test]')
	touch $@

# The networks of nnU-Net and MONAI are installed without their dependencies. No test needs these, and
# some exclude each other.
$(TORCH_READY): $(QUICK_READY)
	$(BIN)/pip install --quiet --no-compile $(TORCH)
	$(call install,.venv,--no-deps dynamic-network-architectures==0.4.4 monai==1.6.0)
	touch $@

$(TEST_READY): $(QUICK_READY)
	$(call install,.venv,onnxruntime)
	$(call install,.venv,--no-deps --target .venv/dask-kubernetes dask-kubernetes==2026.3.0)
	$(PYTHON) -m venv --without-pip .venv/ome-zarr
	$(call install,.venv/ome-zarr,ome-zarr==0.18.0)
	touch $@

$(DOCS_READY): $(DEMO_READY)
	$(call install,.venv,--editable '.[docs]')
	touch $@

setup: $(TEST_READY) $(if $(TORCH),$(TORCH_READY))

demo: $(DEMO_READY)
	rm -rf demo-output
	mkdir demo-output
	$(BIN)/znni infer networks/cells.h5 --net networks/cells-unet.yaml \
	    --out demo-output/membranes.h5
	$(BIN)/python networks/demo_picture.py networks/cells.h5 demo-output/membranes.h5 \
	    demo-output/membranes.png
	$(BIN)/znni example demo-output/volume.h5
	cd demo-output && $(CURDIR)/$(BIN)/znni infer volume.h5 --net n537.yaml
	$(BIN)/python networks/demo_picture.py demo-output/volume.h5 demo-output/volume-n537.h5 \
	    demo-output/cells.png
	@echo "look at demo-output/membranes.png and demo-output/cells.png; the outputs are beside them"

check: $(QUICK_READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

quick: check
	$(SERIAL) $(OTHER_SYSTEM) $(BIN)/python -m pytest $(OPTIONS) -m 'not slow' $(QUICK)

test: check setup
	@if $(MONITORING); then \
	    echo '$(PYTEST) $(COVER)'; \
	    COVERAGE_CORE=sysmon $(PYTEST) $(COVER); \
	else \
	    echo '$(PYTEST)'; \
	    $(PYTEST) && echo 'coverage: not measured on Python 3.11 (make coverage does)'; \
	fi

coverage: setup
	@if $(MONITORING); then export COVERAGE_CORE=sysmon; fi; $(PYTEST) $(COVER)

# The demo's output is made again only if a file that it depends on is newer.
$(DEMO_OUTPUT): $(DEMO_READY) $(shell find znni planner networks -type f ! -name '*.pyc')
	$(MAKE) demo

wheel: $(DEMO_OUTPUT) $(QUICK_READY)
	ZNNI_TEST_WHEEL=1 $(BIN)/python -m pytest tests/packaging/test_wheel.py

docs: $(DOCS_READY)
	$(BIN)/python -m mkdocs build --strict
	@echo "open site/index.html"

# All extras but those with PyTorch and napari, whose versions depend on where they are installed.
LOCKED := $(foreach extra,gpu gpu12 cudnn cudnn12 test docs onnx zarr tiff nifti cluster slurm \
    kubernetes plot,--extra $(extra))

lock: $(DEMO_READY)
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --no-header --no-annotate \
	    --upgrade $(LOCKED) pyproject.toml --output-file requirements.lock

changelog: $(DEMO_READY)
	$(BIN)/uv tool run towncrier build --yes --version $(VERSION)

browser:
	command -v chromium || (apt-get update && apt-get install -y --no-install-recommends chromium)

clean:
	rm -rf .venv demo-output dist site .coverage .coverage.*
