# Everything runs from a virtual environment that these targets make themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := PIP_CONSTRAINT=constraints.txt PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/python -m pip install --quiet

.PHONY: demo demo-paper test test-slow test-statistics test-frameworks check lint types docs site benchmark
.PHONY: scoreboard scoreboard-page clean

demo: $(VENV)/.installed ## run on a small table that comes with the package, and say what to type for your own
	$(BIN)/vihmc demo

demo-paper: $(VENV)/.installed ## run sine_small as published and print Table 1 beside ours
	$(BIN)/vihmc run sine_small --preset paper

test: $(VENV)/.installed-dev ## run the tests
	$(BIN)/python -m pytest -n 2

test-slow: $(VENV)/.installed-dev ## run the tests that take half a minute and more each
	$(BIN)/python -m pytest -n 2 -m slow

test-statistics: $(VENV)/.installed-dev ## run calibration, agreement with another engine, and negative controls
	$(BIN)/python -m pytest -n 2 -m statistics

test-frameworks: $(VENV)/.installed-frameworks ## run models of other libraries, and the guides
	$(BIN)/python -m pytest -n 2 -m frameworks

check: lint types site test test-slow test-statistics test-frameworks ## what CI runs

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-dev
	$(BIN)/pyrefly check

docs: $(VENV)/.installed-dev ## serve the documentation at http://127.0.0.1:8000, and follow changes
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

site: $(VENV)/.installed-dev ## build the documentation into site/; a warning or a dead link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

benchmark: $(VENV)/.installed-dev ## ratios on this machine, written to benchmarks/results
	$(BIN)/python benchmarks/leapfrog.py
	$(BIN)/python benchmarks/burgers_force.py
	$(INSTALL) -e '.[dev,benchmark]'
	$(BIN)/python benchmarks/samplers.py sine_large linear --table
	$(BIN)/python benchmarks/memory.py
	$(BIN)/python benchmarks/kills.py

scoreboard: $(VENV)/.installed-frameworks ## us and the peers on the same data: runs what is not stored, writes the page
	PYTHONPATH=benchmarks $(BIN)/python -m scoreboard

scoreboard-page: $(VENV)/.installed-dev ## write docs/evidence/scoreboard.md from stored results, and run nothing
	PYTHONPATH=benchmarks $(BIN)/python -m scoreboard --table

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(INSTALL) -e .
	touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(INSTALL) -e '.[dev,docs]'
	touch $@ $(VENV)/.installed

# PyTorch comes first, in the version that all that follows has to live with: others ask for any, and get a larger one.
$(VENV)/.installed-frameworks: $(VENV)/.installed-dev
	$(INSTALL) torch
	$(INSTALL) -e '.[dev,benchmark,equinox,flax,haiku,sklearn,torch]'
	$(INSTALL) --no-deps neuraloperator
	$(INSTALL) requests tensorly tensorly-torch
	$(INSTALL) --no-deps laplace-torch backpack-for-pytorch curvlinops-for-pytorch
	$(INSTALL) asdfghjkl einconv einops linear_operator torchmetrics unfoldNd
	touch $@

clean:
	rm -rf $(VENV) build dist site
