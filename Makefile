# `make demo` and `make test` are all a newcomer needs; each makes .venv when it is missing or outdated.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: demo test test-all check clean

demo: $(READY)
	$(BIN)/ecpp demo

test: $(READY)
	$(BIN)/pytest -m "not slow" -n 2

test-all: $(READY)
	$(BIN)/pytest -n 0 -m slow
	$(BIN)/pytest -m "not slow" -n 2

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest tests/test_layers.py

$(READY): pyproject.toml
	@$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 10))" || \
		{ echo "ecpp needs Python 3.10 or newer: make $(MAKECMDGOALS) PYTHON=/path/to/python3"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install -q --disable-pip-version-check -e '.[dev]'
	@touch $(READY)

clean:
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
