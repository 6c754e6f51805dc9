# `make run` and `make test` need Python 3.11 to 3.13 and make, nothing else: each makes .venv when it is missing.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
WORKERS ?= auto

.PHONY: run test lint bench clean

run: $(VENV)/.installed
	$(BIN)/python -m runner +experiment=case3_allreduce

test: $(VENV)/.installed
	$(BIN)/python -m pytest -n $(WORKERS)

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

bench: $(VENV)/.installed
	$(BIN)/python benchmarks/overhead.py

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test,lint]'
	touch $@

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis build dist
