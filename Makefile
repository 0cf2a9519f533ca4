# `make help` lists the targets. Needs only make, git and Python 3.11 to 3.14 (`make PYTHON=python3.12 …` picks one).

# The distribution's first: it is built with profile-guided optimization, which pyenv's is not, and with it tests
# need a fifth less processor time. Debian's makes no virtual environments without python3-venv.
PYTHONS := python3.14 python3.13 python3.12 python3.11 python3
PYTHON ?= $(shell for p in $(PYTHONS:%=/usr/bin/%) $(PYTHONS); do \
	$$p -c 'import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 15))' 2>/dev/null && \
	echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready-dev
DEMO_READY := $(VENV)/.ready
SITE_READY := $(VENV)/.ready-site
PYTEST_FLAGS ?=
# Six for two processors: time-outs, cron and training at its own pace leave them idle. Each takes half a GB.
WORKERS ?= 6
# Where nothing compiled is kept, every process that a test starts compiles tpuctl anew, and so does each worker the tests.
unexport PYTHONDONTWRITEBYTECODE
PIP_INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check
# uv installs in an eighth of pip's processor time. It reads none of pip's configuration, though: where that names
# an index or a certificate without which nothing comes, pip itself installs the rest, too.
UV := $(shell sed -n 's/^  "\(uv[>=].*\)",$$/\1/p' pyproject.toml)
define install
@echo "installing tpuctl and what it needs into $(VENV): up to three minutes, in which nothing is said"
@$(PIP_INSTALL) '$(UV)'
@$(BIN)/uv pip install --quiet --python $(BIN)/python --editable '$(1)' || { \
	echo "uv could not install it, so pip does"; $(PIP_INSTALL) --editable '$(1)'; }
endef
# The folders of tests that are called like the domain which they test, but for those whose tests start processes.
UNITS := $(filter-out tests/cli tests/hosts tests/sim tests/ssh tests/__pycache__,$(patsubst tpuctl/%/,tests/%,$(wildcard tpuctl/*/)))
UNITS := $(wildcard $(UNITS))

.DEFAULT_GOAL := help
.PHONY: help venv demo test again unit collect coverage lint style types agent-types contracts docs docs-check site bench bench-diff conformance soak clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "error: no Python 3.11 to 3.14 found that makes virtual environments; install one" \
	"(on Debian and Ubuntu: sudo apt-get install python3-venv), or name it: make PYTHON=/path/to/python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(DEMO_READY): $(BIN)/python pyproject.toml
	$(call install,.)
	@touch $@

$(READY): $(BIN)/python pyproject.toml
	$(call install,.[dev])
	@touch $@ $(DEMO_READY)

$(SITE_READY): $(READY)
	$(call install,.[site])
	@touch $@

venv: $(READY) ## make .venv with tpuctl (editable) and the development tools

demo: $(DEMO_READY) ## bring a simulated slice up, train, preempt, recover, take it down
	$(BIN)/tpuctl demo

test: $(READY) ## style, types, import contracts, docs freshness, tests; LONG=1: the long ones, too
	@$(MAKE) --no-print-directory -j 2 lint collect
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --durations=20 \
		$(if $(LONG),-m "not soak") $(PYTEST_FLAGS)

again: $(READY) ## the tests that failed last, alone
	$(BIN)/python -m pytest -n 0 --last-failed --last-failed-no-failures none -m "not soak" $(PYTEST_FLAGS)

unit: $(READY) ## what needs no server and no other process, in half a minute
	$(BIN)/python -m pytest -n 2 --dist loadfile $(UNITS) -m "not slow and not long and not soak" $(PYTEST_FLAGS)

# So that each test file is compiled once, and not by every worker of a run: that takes 20 s of a processor. uv
# compiles nothing that it installs, and of Google's libraries it takes another 6 s.
collect: $(READY)
	@$(BIN)/python -m compileall -q tpuctl $(VENV)/lib/python3*/site-packages/google
	@$(BIN)/python -m pytest --collect-only -q -m "" >/dev/null

coverage: $(READY) ## the fast tests with branch coverage of the package
	$(BIN)/python -m coverage run -m pytest -m "not slow and not gcloud" $(PYTEST_FLAGS)
	$(BIN)/python -m coverage report --skip-covered --sort=cover

lint: style types agent-types contracts ## formatting, lint, strict types, import contracts

style: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(READY)
	$(BIN)/mypy

# The agent's modules find each other as they do on a host; 3.10 is the oldest Python that mypy knows.
agent-types: $(READY)
	MYPYPATH=tpuctl/agent $(BIN)/mypy --config-file= --cache-dir .mypy_cache/agent --python-version 3.10 \
		--explicit-package-bases --check-untyped-defs $(wildcard tpuctl/agent/[a-z]*.py)

contracts: $(READY)
	$(BIN)/lint-imports --no-logo

docs: $(READY) ## write the generated documents
	$(BIN)/python -m tests.docs.generate

docs-check: $(READY) ## fail when a generated document is stale
	$(BIN)/python -m tests.docs.generate --check

# Not --quiet: it would count no warnings.
site: $(SITE_READY) ## the documents as a site in build/site; fails on a broken link
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "to read it: $(BIN)/python -m http.server --bind 127.0.0.1 --directory build/site"

bench: $(READY) ## measure beside other tools, write docs/develop/benchmarks.md
	$(BIN)/python -m tests.bench

bench-diff: $(READY) ## what got slower between the last two times that a section was measured; A=REV B=REV: between two revisions
	$(BIN)/python -m tests.bench.history $(A) $(B)

conformance: $(READY) ## other people's clients against the simulated cloud, write docs/develop/conformance.md
	$(BIN)/python -m tests.conformance

soak: $(READY) ## many seeds, long lives and 2000 random command lines, in 120 minutes; SOAK="lives --minutes 30": a part, less time
	$(BIN)/python -m tests.soak_report $(SOAK)

clean: ## remove .venv, caches and build results
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache tpuctl.egg-info
