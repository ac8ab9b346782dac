# Everything is installed into .venv; outside this folder, only pip's cache changes.
PYTHON ?= python3
BIN := .venv/bin
# the tests start many processes, which load compiled files faster
TEST := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/pytest
PIP := $(BIN)/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt

.PHONY: demo label test test-slow check format docs docs-images clean

demo: .venv/installed  ## see it work on generated scans
	$(BIN)/segpl demo

label: .venv/installed  ## label generated scans in the browser
	$(BIN)/segpl label --demo

test: .venv/installed-dev  ## the test suite, without the slow tests
	$(TEST) -n 2 --dist worksteal -m "not slow"

test-slow: .venv/installed-dev  ## the slow tests
	$(TEST) -n 2 --dist worksteal -m slow

check: .venv/installed-dev  ## format, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: .venv/installed-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: .venv/installed-dev  ## the manual, into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "open site/index.html"

docs-images: .venv/installed  ## the pictures of the manual
	$(BIN)/python docs/pictures/thresholds.py docs/images
	$(BIN)/python docs/pictures/artifacts.py docs/images

clean:
	rm -rf .venv build dist site src/*.egg-info .mypy_cache .ruff_cache .pytest_cache

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "segpl needs Python 3.11 or newer; name one with: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv .venv

.venv/installed: .venv/bin/python pyproject.toml constraints.txt
	@echo "installing segpl at the pinned versions into .venv (takes minutes the first time)"
	$(PIP) --editable .
	@touch $@

.venv/installed-dev: .venv/installed
	@echo "installing the tools for tests and lint"
	$(PIP) --editable '.[test,lint,docs]'
	@touch $@
