# make quickstart   train a tiny agent from nothing, in minutes
# make test         all tests that this machine can run; the report says what is not tested
# make test-fast    the tests without the slow ones, Java and the browser
# make test-model   the tests with a pretrained model (SmolLM2-135M-Instruct, 93 MB, downloaded once; or AGENT_R1_MODEL)
# make coverage     all tests, with a table of the lines that none of them runs
# make lint         ruff and mypy, as CI runs them
# make format       let ruff mend and lay out the code
# make type         mypy alone
# make test-adapters   the tests of other libraries, each in an environment of its own: minutes each, LIBRARY=verl for one
# make test-vllm    the tests that need vLLM, in an environment of its own (4 GB)
# make test-floors  the tests with the oldest versions that pyproject.toml allows, in an environment of its own
# make test-newest  the tests with the newest versions that pyproject.toml allows, in an environment of its own
# make docs         build the site of the documentation, offline, into docs/_build
# make clean        remove the virtual environment, caches and reports
#
# Each target sets up $(VENV) first where that is needed. EXTRAS=test,train,lucene,dense tests the optional backends too.
PYTHON ?= python3
VENV ?= .venv
EXTRAS ?= test,train
LINT_EXTRAS ?= dev,train
NEWEST_EXTRAS ?= test,train
FLOOR_EXTRAS ?= test,train,sandbox
FAST = not slow and not java and not browser
comma := ,
# A comma in a file name would part the prerequisites of make's functions: extras are joined by "-" there.
STAMP = $(VENV)/.installed-$(subst $(comma),-,$(1))
INSTALL = $(VENV)/bin/python -m pip install --disable-pip-version-check -c constraints.txt
# Three for two cores: many tests wait for processes of their own.
PYTEST = $(VENV)/bin/python -m pytest -n 3 --dist worksteal

.PHONY: quickstart test test-fast test-model test-adapters test-vllm test-floors test-newest coverage lint format type docs clean

quickstart: $(call STAMP,train)
	$(VENV)/bin/agent-r1 quickstart

test: $(call STAMP,$(EXTRAS))
	$(PYTEST)

test-fast: $(call STAMP,$(EXTRAS))
	$(PYTEST) -m "$(FAST)"

test-model: $(call STAMP,$(EXTRAS))
	$(VENV)/bin/python -m pytest -rs -m model tests/trainers/test_pretrained.py

test-adapters: $(call STAMP,test)
	$(VENV)/bin/python -m tests.integrations.venvs $(LIBRARY)

test-vllm: $(call STAMP,test)
	$(VENV)/bin/python -m tests.integrations.venvs vLLM

# In both, torch stays at the version of constraints.txt: pip would take another build for GPUs, of several gigabytes.
# Both write what they had installed into tests/versions, and docs/versions.md from it, if all tests passed.

# uv alone resolves to the lowest versions; what they need themselves is the newest, as for a user who pins old ones.
test-floors:
	$(PYTHON) -m venv --clear .venv-floors
	grep '^torch==' constraints.txt > .venv-floors/torch.txt
	.venv-floors/bin/python -m pip install --disable-pip-version-check --quiet uv
	.venv-floors/bin/uv pip install --python .venv-floors/bin/python --index-strategy unsafe-best-match \
		--resolution lowest-direct -c .venv-floors/torch.txt -e ".[$(FLOOR_EXTRAS)]"
	.venv-floors/bin/python -m pytest -n 3 --dist worksteal
	.venv-floors/bin/python -V | sed 's/^/# /' > tests/versions/floors.txt
	.venv-floors/bin/python -m pip freeze --exclude-editable >> tests/versions/floors.txt
	.venv-floors/bin/python docs/versions_page.py

test-newest:
	$(PYTHON) -m venv --clear .venv-newest
	grep '^torch==' constraints.txt > .venv-newest/torch.txt
	.venv-newest/bin/python -m pip install --disable-pip-version-check --quiet --upgrade --upgrade-strategy eager \
		-c .venv-newest/torch.txt -e ".[$(NEWEST_EXTRAS)]"
	.venv-newest/bin/python -m pytest -n 3 --dist worksteal
	.venv-newest/bin/python -V | sed 's/^/# /' > tests/versions/newest.txt
	.venv-newest/bin/python -m pip freeze --exclude-editable >> tests/versions/newest.txt
	.venv-newest/bin/python docs/versions_page.py

coverage: $(call STAMP,$(LINT_EXTRAS))
	$(PYTEST) --cov --cov-report=term-missing:skip-covered

lint: $(call STAMP,$(LINT_EXTRAS))
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

format: $(call STAMP,$(LINT_EXTRAS))
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

type: $(call STAMP,$(LINT_EXTRAS))
	$(VENV)/bin/mypy

docs: $(call STAMP,docs)
	$(VENV)/bin/python -m sphinx -q -n -W -b html docs docs/_build
	@echo docs/_build/index.html

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), f"Python >= 3.11 is needed, this is {sys.version}; set PYTHON="'
	@echo "== Creating the virtual environment $(VENV)"
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed-%: $(VENV)/bin/python pyproject.toml constraints.txt
	@echo "== Installing agent-r1-gym[$(subst -,$(comma),$*)] into $(VENV): minutes and up to some GB, the first time"
	$(INSTALL) --no-compile -e ".[$(subst -,$(comma),$*)]"
	@$(VENV)/bin/python -m compileall -q -j 0 $(VENV)/lib > /dev/null || true  # in all cores, where pip takes one
	@echo "== Installed"
	touch $@

clean:
	rm -rf $(VENV) .venv-adapters .venv-floors .venv-newest docs/_build build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage htmlcov
