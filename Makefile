# Targets set everything up by themselves: `make demo`, `make test`, `make test-vllm`.
# Each keeps its own virtual environment in the checkout; a second run does not reinstall.
PYTHON ?= python3
VENV := .venv-dev
DEMO := .venv-demo
VLLM := .venv-vllm
BIN := $(VENV)/bin
DEMO_ARGS ?=
VLLM_TESTS ?= tests/vllm

.PHONY: demo test test-browser test-vllm lint types layers unit bench accuracy clean

demo: $(DEMO)/.installed
	$(DEMO)/bin/servefit demo $(DEMO_ARGS)

test: lint types layers unit

# The what-if page in Debian's chromium: apt-get install chromium.
test-browser: $(VENV)/.browser
	$(BIN)/pytest -q tests/browser

# vLLM itself on this CPU: profiled over HTTP and in process, beside vLLM's own benchmark.
test-vllm: $(VLLM)/.installed
	$(VLLM)/bin/pytest --confcutdir=tests/vllm -o filterwarnings=default -rA --durations=12 $(VLLM_TESTS)

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
	$(BIN)/python benchmarks/client.py
	$(BIN)/python benchmarks/explore.py

# docs/accuracy.md and its figures, from the published data in the folder SERVEFIT_DATA.
accuracy: $(VENV)/.installed
	$(BIN)/python -m benchmarks.accuracy

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[local,profile,test]'
	touch $@

$(VENV)/.browser: $(VENV)/.installed
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[browser]'
	touch $@

$(DEMO)/.installed: pyproject.toml
	$(PYTHON) -m venv $(DEMO)
	$(DEMO)/bin/pip install --quiet --disable-pip-version-check --editable '.[local]'
	touch $@

$(VLLM)/.installed: pyproject.toml scripts/vllm_env.sh scripts/vllm_requirements.txt
	PYTHON=$(PYTHON) scripts/vllm_env.sh $(VLLM)
	touch $@

clean:
	rm -rf $(VENV) $(DEMO) $(VLLM)
