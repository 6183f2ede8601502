# Two targets set everything up by themselves: `make demo` and `make test`.
# Each keeps its own virtual environment in the checkout; a second run does not reinstall.
PYTHON ?= python3
VENV := .venv-dev
DEMO := .venv-demo
BIN := $(VENV)/bin
DEMO_ARGS ?=

.PHONY: demo test lint types layers unit bench clean

demo: $(DEMO)/.installed
	$(DEMO)/bin/servefit demo $(DEMO_ARGS)

test: lint types layers unit

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed
	$(BIN)/mypy

layers: $(VENV)/.installed
	$(BIN)/lint-imports

unit: $(VENV)/.installed
	$(BIN)/pytest -n 2 --dist worksteal

bench: $(VENV)/.installed
	$(BIN)/python benchmarks/bench.py

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[local,profile,test]'
	touch $@

$(DEMO)/.installed: pyproject.toml
	$(PYTHON) -m venv $(DEMO)
	$(DEMO)/bin/pip install --quiet --disable-pip-version-check --editable '.[local]'
	touch $@

clean:
	rm -rf $(VENV) $(DEMO)
