# Every target does its own set-up: a machine with Python, make and pip is enough.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
SOURCES := src papers tests benchmarks examples docs/*.py

.PHONY: demo test test-slow test-long test-flower check lint format pages claims docs dist clean

demo: $(VENV)/ready  ## nine sites of this machine train one model over three routes; a table and a report
	$(BIN)/anabranch demo

# Tests that share something, a fixture or the machine's namespaces, are in one xdist_group each.
# More workers than cores: they wait for a seventh of their time, and slow ones for a quarter.
test: $(VENV)/ready  ## the fast tests, doctests and examples; warnings are errors
	$(BIN)/pytest -n 3 --dist loadgroup -m "not slow"

test-slow: $(VENV)/ready  ## real processes, emulated links (root only), every order
	$(BIN)/pytest -n 3 --dist loadgroup -m "slow and not long"

test-long: $(VENV)/ready  ## other projects' programs and whole deployments; before a release
	$(BIN)/pytest -n 3 --dist loadgroup -m long

# flwr holds some packages lower than constraints.txt, thus an environment of its own.
test-flower: $(VENV)-flower/ready  ## the strategies for Flower, in its two runtimes; not in `make check`
	$(VENV)-flower/bin/pytest tests/flower/test_flower.py

check: lint test test-slow  ## what must pass before a change lands

lint: $(VENV)/ready  ## format, lint, strict types
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/mypy

format: $(VENV)/ready  ## put the code in shape
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)

pages: $(VENV)/ready  ## the tables and curves of docs/reproductions anew, from their JSON
	$(BIN)/python docs/tables.py
	$(BIN)/python docs/curves.py

claims: $(VENV)/ready  ## every sentence with a measured number, and the JSON that it is traced to
	$(BIN)/python docs/claims.py

docs: $(VENV)/ready-for-docs  ## the documentation as a site, in site/; warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

dist: $(VENV)-dist/ready  ## an sdist and a wheel, in dist/
	rm -rf dist
	$(VENV)-dist/bin/python -m build --no-isolation

clean:  ## forget the environment and what tools left behind
	rm -rf $(VENV) $(VENV)-flower $(VENV)-dist site dist .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

$(VENV)/ready-for-docs: $(VENV)/ready
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[docs]'
	touch $@

# Zipping Python files needs neither torch nor us.
$(VENV)-dist/ready: constraints.txt
	$(PYTHON) -m venv $(VENV)-dist
	$(VENV)-dist/bin/pip install --quiet --constraint constraints.txt build hatchling
	touch $@

$(VENV)-flower/ready: pyproject.toml constraints.txt constraints-flower.txt
	$(PYTHON) -m venv $(VENV)-flower
	awk -F== 'NR == FNR { own[$$1]; next } !($$1 in own)' constraints-flower.txt constraints.txt > $(VENV)-flower/others.txt
	$(VENV)-flower/bin/pip install --quiet --constraint $(VENV)-flower/others.txt --constraint constraints-flower.txt \
		--editable '.[dev,flower]'
	touch $@
