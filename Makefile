# `make run` and `make test` need Python 3.11 to 3.13 and make, nothing else: each makes .venv when it is missing.
# The tests need more than the runner does, libtpu with its 200 MB before all.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
# One more than the cores: the tests wait for processes and the disk.
WORKERS ?= $(shell echo $$(( $$(getconf _NPROCESSORS_ONLN) + 1 )))
# JAX=0.11.2 takes that version in place of the one that constraints.txt has for this Python; give it a VENV of its own.
JAX ?=
CONSTRAINTS = $(if $(JAX),$(VENV)/constraints.txt,constraints.txt)
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check -c $(CONSTRAINTS)
# The tests start hundreds of processes, each of which would compile the runner anew.
PYTEST = PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n $(WORKERS)
FAULTS = tests/test_faults.py tests/test_hostile.py tests/test_kills.py tests/test_forks.py tests/test_bad_records.py \
	tests/test_bad_plans.py tests/test_given.py tests/test_callers.py tests/test_command_lines.py tests/test_deadlocks.py

.PHONY: run test whole experiments faults lint docs schema bench fuzz pairs studies clean

run: $(VENV)/.installed
	$(BIN)/python -m runner +experiment=case3_allreduce

test: $(VENV)/.tests
	$(PYTEST)

# What the tests try a sample of: every layout of every operation before all.
TRIED ?= tests conf/experiment
whole: $(VENV)/.tests
	$(PYTEST) -m whole $(TRIED) $(FAULTS:%=--ignore %)

# Every experiment, compiled for hardware as well where it names any: the tests try a ninth of the small ones, and almost no hardware.
experiments: $(VENV)/.tests
	$(PYTEST) conf/experiment

# All the bad input and all the signals, of which the tests try a sample.
faults: $(VENV)/.tests
	$(PYTEST) -m 'whole or not whole' $(FAULTS) tests/test_machine.py

lint: $(VENV)/.tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

docs: $(VENV)/.tests
	rm -rf build/pages build/site
	mkdir -p build/pages/conf
	cp -R README.md CHANGELOG.md CONTRIBUTING.md LICENSE docs experiments build/pages
	cp -R conf/experiment build/pages/conf
	$(BIN)/zensical build --strict --clean

schema: $(VENV)/.installed
	$(BIN)/python -m runner editor conf

bench: $(VENV)/.tests
	$(BIN)/python benchmarks/overhead.py

fuzz: $(VENV)/.tests
	$(BIN)/python -m benchmarks.fuzz --seconds 600

# Features two by two, on every interpreter named: one for each series of JAX. It goes on where it stopped.
PYTHONS ?= $(BIN)/python
pairs: $(VENV)/.tests
	$(BIN)/python -m benchmarks.pairs --out build/pairs $(PYTHONS:%=--python %)

studies: $(VENV)/.installed
	$(BIN)/python -m experiments

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(if $(JAX),sed -E 's/^(jax|jaxlib)==[^ ]*/\1==$(JAX)/' constraints.txt > $(CONSTRAINTS))
	$(PIP) -e .
	touch $@

$(VENV)/.tests: $(VENV)/.installed
	$(PIP) -e '.[test,lint,docs,aot,joblib,submitit,mlflow,wandb]'
	touch $@

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis build dist
