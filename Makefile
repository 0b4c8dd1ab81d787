# Four commands: serve, test, check, bench. Everything lands in .venv; `make clean` removes it.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q

.PHONY: serve test check bench clean

serve: .venv/installed
	@$(BIN)/penstock serve $(ARGS)

# Without ARGS the engine's tests run beside the others.
test: .venv/installed-tests check
	@$(BIN)/python -m $(if $(ARGS),pytest $(ARGS),tests)

check: .venv/installed-tests
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

bench: .venv/installed-tests
	@$(BIN)/python -m tests.bench $(ARGS)

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Penstock needs Python 3.11 or newer; set PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -y -qq python3-venv; } \
	  || { echo "Python's venv module is missing: apt-get install python3-venv" >&2; exit 1; }
	@$(PYTHON) -m venv .venv

# torch first, pinned in constraints.txt: an unpinned one brings gigabytes of CUDA to machines without a GPU.
.venv/installed: pyproject.toml constraints.txt | .venv/bin/python
	@echo "Installing Penstock into .venv (once; a few minutes) ..."
	@$(PIP) install -c constraints.txt torch
	@$(PIP) install -c constraints.txt -e '.[all]'
	@touch $@

# Debian's promtool checks the alerts; its package would start a server, so only the program is taken.
PROMTOOL = command -v promtool >/dev/null || { cd .venv && apt-get download -qq prometheus 2>/dev/null \
  && dpkg --fsys-tarfile prometheus_*.deb | tar -xO ./usr/bin/promtool > bin/promtool \
  && chmod +x bin/promtool && rm prometheus_*.deb; } || rm -f bin/promtool

.venv/installed-tests: .venv/installed
	@command -v redis-server >/dev/null || { \
	  [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -y -qq redis-server >/dev/null; } \
	  || { echo "The tests need a Redis server: apt-get install redis-server" >&2; exit 1; }
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && apt-get update -qq \
	  && apt-get install -y -qq --no-install-recommends chromium >/dev/null; } \
	  || { echo "The tests need a browser: apt-get install chromium" >&2; exit 1; }
	@$(PIP) install -c constraints.txt -e '.[test]'
	@-$(PROMTOOL)
	@touch $@

clean:
	@rm -rf .venv build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
