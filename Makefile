# One line a job. `make demo` and `make test` each work on a fresh machine with Python 3.11 to 3.13, or with an older one that has pip.
PYTHON ?=
WORKSPACE := . $(patsubst %/pyproject.toml,%,$(wildcard plugins/*/pyproject.toml plugins/*/*/pyproject.toml))
TEST_PROCESSES ?= 3
BASE ?= main
TESTS =
export OMP_NUM_THREADS ?= 1

demo: .venv/run            ## set up, then train the tiny GLM-4 on this machine
	.venv/bin/python -m slime +model=glm4-tiny +cluster=local

MEASURED := --source $(CURDIR)/core/slime,$(CURDIR)/plugins --omit '$(CURDIR)/plugins/conftest.py,$(CURDIR)/plugins/*/tests/*,$(CURDIR)/plugins/models/*/tools/*'

test: .venv/dev            ## set up, run what must always hold (12 minutes on two idle cores), compare with tests/budgets.toml how much of each room it ran, run once more what failed; `make test TEST_PROCESSES=2` in fewer processes than three, `make test TESTS=tests/data` all tests of a folder, without the floors
	$(call TESTED,$(if $(TESTS),,-m "not nightly"))

test-all: .venv/dev        ## the same with every test, also those for the night (tests/day.toml): an hour
	$(call TESTED,)

# 1 is the exit code of pytest where tests failed: the second round has the last word.
define TESTED
	$(COMPILE_OURS)
	rm -f .lines.json .reports.jsonl
	.venv/bin/python -m slipcover $(MEASURED) --json --out .lines.json -m pytest --numprocesses $(TEST_PROCESSES) \
		--dist loadgroup --no-loadscope-reorder --durations 40 --report-log .reports.jsonl $(1) $(TESTS) || [ $$? = 1 ]
	$(if $(TESTS),,.venv/bin/python tests/floors.py .lines.json .reports.jsonl)
	.venv/bin/python tests/second_round.py .reports.jsonl
endef

quick: .venv/dev           ## the fast tests of what differs from main; `make quick BASE=HEAD~3` from another commit
	$(COMPILE_OURS)
	.venv/bin/python -m pytest --numprocesses $(TEST_PROCESSES) -m "not slow" $$(.venv/bin/python tests/changed.py $(BASE))

changed: .venv/dev         ## the same with slow tests, also those for the night
	$(COMPILE_OURS)
	.venv/bin/python -m pytest --numprocesses $(TEST_PROCESSES) $$(.venv/bin/python tests/changed.py $(BASE))

setup: .venv/dev           ## virtual environment with everything, tests and lint included

lint: .venv/dev            ## style and import rules
	.venv/bin/ruff check . && .venv/bin/ruff format --check . && .venv/bin/lint-imports

types: .venv/dev           ## mypy, strict
	.venv/bin/mypy

docs: .venv/dev            ## the documentation's site, into site/; a test builds it as well (`.venv/bin/mkdocs serve` shows it)
	NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict

wheels: .venv/run          ## every distribution as a wheel, into dist/, beside what installs the rest on a CPU
	rm -rf dist
	.venv/bin/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist $(addprefix ./,$(WORKSPACE))
	cp requirements/cpu.txt requirements/install_cpu.py dist

# Python compiles what it imports, and keeps that. Where it is told not to, what a run imports is compiled here, on every
# core (a third of all modules is SELDOM imported by one), and all for the tests, which start many processes at once. A few
# modules are written for other Pythons. The tests start a thousand processes that import slime: a tenth of a second each.
COMPILE_OURS := .venv/bin/python -m compileall -qq -j 0 core plugins
COMPILE := .venv/bin/python -m compileall -qq -j 0 .venv/lib
SELDOM := /(tests|testing|transformers/models|sglang/multimodal_gen|torch/_inductor|ray/(rllib|data|serve|tune|train|llm))/
.venv/run: requirements/cpu.txt requirements/install_cpu.py requirements/make_venv.sh $(WORKSPACE:%=%/pyproject.toml)
	sh requirements/make_venv.sh .venv $(PYTHON)
	.venv/bin/python requirements/install_cpu.py
	[ -z "$$PYTHONDONTWRITEBYTECODE" ] || $(COMPILE) -x '$(SELDOM)' || true
	.venv/bin/pip install --quiet --no-deps --no-build-isolation $(addprefix --editable ,$(WORKSPACE))
	touch $@

.venv/dev: .venv/run requirements/dev.txt
	.venv/bin/pip install --quiet --no-deps --no-compile --requirement requirements/dev.txt
	$(COMPILE) || true
	touch $@

.PHONY: demo test test-all quick changed setup lint types docs wheels
