# make demo | make test are all that a newcomer needs; both install what is missing.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.stamp-dev

.PHONY: help setup tools demo test check fast test-more durations slow bench campaign fleet house hash-c docs docs-site release-check clean

help: ## List the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: tools $(STAMP) ## Install system packages, .venv and the package; RISCV=1: the tools for RISC-V, too

tools:
	@sh scripts/install_tools.sh

$(STAMP): pyproject.toml requirements.lock scripts/install_tools.sh
	@sh scripts/install_tools.sh
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c requirements.lock -e '.[dev]'
	@touch $(STAMP)

demo: setup ## Compile examples/digits, train it in QEMU, print accuracy before and after
	$(BIN)/python examples/digits/run.py

test: setup check fast ## Set up, then every check and the tests that find most faults (about 14 minutes)

check: $(STAMP) ## Format, lint, types, import rules, words
	$(BIN)/ruff format --check compiler tests testing examples scripts benchmarks
	$(BIN)/ruff check compiler tests testing examples scripts benchmarks
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/pyright --threads 2
	$(BIN)/lint-imports
	$(BIN)/python scripts/import_circles.py
	$(BIN)/python scripts/sizes.py
	$(BIN)/python scripts/prose.py --check

# Many tests start a process of their own: none of them shall compile our modules again, nor pytest its rewritten tests.
fast test-more: export PYTHONDONTWRITEBYTECODE =
fast: $(STAMP)
	$(BIN)/python -m compileall -q compiler testing examples benchmarks
	$(BIN)/python -m pytest -x -n 2 --tier fast

test-more: $(STAMP) ## All other tests (tests/tiers.toml says which), but the long forms of some (make slow)
	@RISCV=1 sh scripts/install_tools.sh
	$(BIN)/python -m pytest -n 2 --dist worksteal --tier more

durations: $(STAMP) ## Run all tests, one at a time, and record their CPU seconds in tests/durations.json
	$(BIN)/python -m pytest -n 1 --record-durations

bench: $(STAMP) ## Run a benchmark (NAME=.. ARGS=..), or list them all
	$(BIN)/python -m benchmarks $(NAME) $(ARGS)

FLEET := build/fleet
$(FLEET)/.stamp: pyproject.toml requirements.lock
	$(PYTHON) -m venv $(FLEET)
	grep -v -E '^(rich|packaging)==' requirements.lock > $(FLEET)/constraints.txt
	$(FLEET)/bin/pip install --quiet --disable-pip-version-check -c $(FLEET)/constraints.txt -e '.[fleet]' pytest==9.2.0
	@touch $@

fleet: tools $(FLEET)/.stamp ## Eight devices learn together by Flower, against alone and all data in one place; the terminal with its rich
	$(FLEET)/bin/python examples/fleet/run.py $(ARGS)
	$(FLEET)/bin/python -m pytest -p no:cacheprovider tests/examples/test_fleet.py tests/cli/test_cli.py

slow: $(STAMP) ## The long forms of tests, which `make test` leaves out
	$(BIN)/python -m pytest -m slow

hash-c: $(STAMP) ## Compare all files of some 80 builds with another tree (WRITE=before.json, COMPARE=before.json, ONLY=words)
	$(BIN)/python scripts/hash_c.py $(if $(WRITE),--write $(WRITE)) $(if $(COMPARE),--compare $(COMPARE)) \
		$(if $(ONLY),--only "$(ONLY)")

house: $(STAMP) ## Figures of the compiler's inner order: code lines, files of one convolution, words
	@$(BIN)/python scripts/house.py $(ARGS)

docs: $(STAMP) ## Regenerate docs/ops.md, docs/errors.md and real output in pages (docs-site: all as a site in build/site/html)
	$(BIN)/python scripts/make_docs.py

SITE := build/site
$(SITE)/.stamp: pyproject.toml
	$(PYTHON) -m venv $(SITE)/venv
	$(SITE)/venv/bin/pip install --quiet --disable-pip-version-check $$(sed -n 's/^site = \["\(.*\)"\].*/\1/p' pyproject.toml)
	@touch $@

# A broken link or anchor fails.
docs-site: $(SITE)/.stamp
	NO_MKDOCS_2_WARNING=1 $(SITE)/venv/bin/mkdocs build --strict --quiet --site-dir $(SITE)/html

RELEASE := build/release
$(RELEASE)/.stamp: pyproject.toml
	$(PYTHON) -m venv $(RELEASE)/tools
	$(RELEASE)/tools/bin/pip install --quiet --disable-pip-version-check \
		$$(sed -n 's/^release = \["\(.*\)", "\(.*\)"\].*/\1 \2/p' pyproject.toml)
	@touch $@

# Builds the wheel as it would be published, checks it, installs it in a fresh environment, and compiles with it.
release-check: $(RELEASE)/.stamp
	$(RELEASE)/tools/bin/python scripts/check_release.py --folder $(RELEASE) $(ARGS)

campaign: $(STAMP) ## Mutated files, random graphs, chains by rows, damaged checkpoints: all, or KIND=.. COUNT=.. FIRST=.. SEED=.. JOBS=..
	$(BIN)/python -m tests.campaign $(if $(KIND),--kind "$(KIND)") $(if $(COUNT),--count $(COUNT)) \
		--first $(or $(FIRST),0) --seed $(or $(SEED),0) --jobs $(or $(JOBS),1)

clean: ## Remove what set-up and tests made
	rm -rf .venv out examples/*/out
