# make demo   sets up an environment and runs a trained network over a small volume
# make test   sets up an environment and passes the checks and tests
# make docs   sets up an environment and builds the documentation in site/

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready
DOCS_READY := .venv/docs-ready

.PHONY: demo test docs setup clean

setup: $(READY)

$(READY): pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --editable '.[test,plot]'
	touch $(READY)

demo: $(READY)
	mkdir -p demo-output
	$(BIN)/znni infer networks/cells.h5 --net networks/boundaries.yaml \
	    --border same --pad reflect --out demo-output/boundaries.h5 --overwrite
	$(BIN)/python networks/demo_picture.py networks/cells.h5 demo-output/boundaries.h5 \
	    demo-output/boundaries.png
	@echo "look at demo-output/boundaries.png; the output is in demo-output/boundaries.h5"

test: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python -m pytest -n 2 --dist worksteal

$(DOCS_READY): $(READY)
	$(BIN)/pip install --quiet --editable '.[docs]'
	touch $(DOCS_READY)

docs: $(DOCS_READY)
	$(BIN)/python -m mkdocs build --strict
	@echo "open site/index.html"

clean:
	rm -rf .venv demo-output site
