# make demo | make test are all that a newcomer needs; both install what is missing.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.stamp-dev

.PHONY: help setup tools demo test check fast test-more durations bench bench-kernels bench-ratios bench-masked bench-derivative bench-activations bench-placement bench-planner bench-remat bench-streams bench-boards bench-auto bench-chosen bench-choice bench-finetune bench-features bench-clipping bench-averages learning int8-keywords bench-paging int8-accuracy remat-real slow ledger hash-c fuzz zoo zoo3 export-zoo campaign convergence docs power-cuts bench-slices bench-plans fleet bench-proven bench-rates clean

help: ## List the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: tools $(STAMP) ## Install system packages, .venv and the package

tools:
	@sh scripts/install_tools.sh

$(STAMP): pyproject.toml requirements.lock scripts/install_tools.sh
	@sh scripts/install_tools.sh
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c requirements.lock -e '.[dev]'
	@touch $(STAMP)

demo: setup ## Compile examples/digits, train it in QEMU, print accuracy before and after
	$(BIN)/python examples/digits/run.py

test: setup check fast ## Set up, then every check and the tests that find most faults (about 8 minutes)

check: $(STAMP) ## Format, lint, types, import rules
	$(BIN)/ruff format --check compiler tests testing examples scripts benchmarks
	$(BIN)/ruff check compiler tests testing examples scripts benchmarks
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/python scripts/sizes.py

# Many tests start a process of their own: none of them shall compile our modules again, whatever PYTHONDONTWRITEBYTECODE.
fast: $(STAMP)
	$(BIN)/python -m compileall -q compiler testing examples benchmarks
	$(BIN)/python -m pytest -x -n 2 --tier fast

test-more: $(STAMP) ## All other tests (tests/tiers.toml says which), but the long forms of some (make slow)
	$(BIN)/python -m pytest -n 2 --tier more

durations: $(STAMP) ## Run all tests, one at a time, and record their CPU seconds in tests/durations.json
	$(BIN)/python -m pytest -n 1 --record-durations

bench-kernels: $(STAMP) ## Instructions of whole networks with bars: MCUNet, MLPerf Tiny shapes (ARGS="--only 'autoencoder.*M7'")
	$(BIN)/python -m benchmarks.kernel_bars $(ARGS)

bench-masked: $(STAMP) ## Errors that a ReLU6 stopped: instructions by the share that is kept, with and without leaving tiles out
	$(BIN)/python -m benchmarks.masked

bench-ratios: $(STAMP) ## 28 int8 kernels on five cores beside a vendor's library, with cycles by models (ARGS="--target cortex-m55")
	$(BIN)/python -m benchmarks.library $(ARGS)

bench: setup ## Instructions against the ledger and bars; compile times, arenas and code sizes of real models
	$(BIN)/python benchmarks/instructions.py
	$(BIN)/python -m benchmarks.ratios
	$(BIN)/python scripts/bench.py

bench-placement: $(STAMP) ## Place the eight MiniMalloc instances, print heights, gaps and seconds
	$(BIN)/python scripts/bench_placement.py

bench-planner: $(STAMP) ## Orders and arenas of the training graphs of the three real models, with bounds and proofs
	$(BIN)/python scripts/bench_planner.py

bench-remat: $(STAMP) ## Full update with and without rematerialisation: bytes, extra MACs, the 55 % bar
	$(BIN)/python -m benchmarks.remat

bench-derivative: $(STAMP) ## The derivative check: planted faults, no false alarm in the zoos, its cost (ARGS='faults', 'zoo', 'cost')
	$(BIN)/python -m benchmarks.derivative $(ARGS)

bench-activations: $(STAMP) ## Low-rank activations by plan alone: bytes kept, multiply-accumulates, arenas (ARGS='--sizes 128')
	$(BIN)/python -m benchmarks.activations $(ARGS)

bench-streams: $(STAMP) ## Arenas of the three networks row by row and whole, with bars; ARGS='--count' '--verify': in QEMU, '--stack': with the stack, '--plans': their CPU time; '--layers': single layers; '--keep FILE --only WORDS'
	$(BIN)/python -m benchmarks.streams $(ARGS)

bench-boards: setup ## Examples linked with the memory maps of nine boards: every byte by its place against the report; packages; runs
	$(BIN)/python -m benchmarks.boards

bench-auto: $(STAMP) ## What --update auto trains in many arenas, and against other rules; ARGS='--keep FILE sweep|schemes|published|run NETWORK ..'
	$(BIN)/python -m benchmarks.auto $(ARGS)

bench-proven: $(STAMP) ## PROVEN BEST and bounds of --update auto against all schemes of 500 networks (an hour); ARGS='--keep FILE --count N --large'
	$(BIN)/python -m benchmarks.proven $(ARGS)

bench-chosen: $(STAMP) ## What it costs that a device chooses channels itself, in instructions and bytes (5 minutes); ARGS='cortex-m7'
	$(BIN)/python -m benchmarks.chosen $(ARGS)

bench-finetune: $(STAMP) ## The rate that finetune recommends against a fine grid, and what finding it costs (10 minutes)
	$(BIN)/python -m benchmarks.finetune $(ARGS)

bench-rates: $(STAMP) ## The rate that finetune recommends against the best of nine, on three small tasks (5 minutes; ARGS=--fresh)
	$(BIN)/python -m benchmarks.rates $(ARGS)

bench-features: $(STAMP) ## What --features on saves: instructions of an epoch in QEMU, MCUNet and keywords; equal bytes
	$(BIN)/python -m benchmarks.features $(ARGS)

learning: $(STAMP) ## The tables of docs/learning.md: digits, keywords; fp32, int8; updates; replay (hours; ARGS='--keep FILE')
	$(BIN)/python -m benchmarks.learning $(ARGS)

bench-clipping: $(STAMP) ## Whether to clip gradients: digits and keywords, fp32 and int8, with, without, chosen (half an hour; ARGS='--keep FILE')
	$(BIN)/python -m benchmarks.clipping $(ARGS)

bench-averages: $(STAMP) ## What averages of the weights give: digits, fp32 and int8, with standard errors (ARGS='--help')
	$(BIN)/python -m benchmarks.averages $(ARGS)

bench-choice: $(STAMP) ## Accuracy of what auto chooses, with and without data, against head, bias and last:N (20 minutes)
	$(BIN)/python -m benchmarks.choice $(ARGS)

bench-paging: $(STAMP) ## A 256 KB arena and external RAM: time and energy of paging plans, a step of each in QEMU
	$(BIN)/python -m benchmarks.paging --run

FLEET := build/fleet
$(FLEET)/.stamp: pyproject.toml requirements.lock
	$(PYTHON) -m venv $(FLEET)
	grep -v -E '^(rich|packaging)==' requirements.lock > $(FLEET)/constraints.txt
	$(FLEET)/bin/pip install --quiet --disable-pip-version-check -c $(FLEET)/constraints.txt -e '.[fleet]' pytest==9.2.0
	@touch $@

fleet: tools $(FLEET)/.stamp ## Eight devices learn together by Flower, against alone and all data in one place; the terminal with its rich
	$(FLEET)/bin/python examples/fleet/run.py $(ARGS)
	$(FLEET)/bin/python -m pytest -p no:cacheprovider tests/examples/test_fleet.py tests/test_cli.py

bench-slices: $(STAMP) ## MCUNet's step in slices, in QEMU: the longest one, what they cost, equal bytes; ARGS='--target cortex-m55'
	$(BIN)/python -m benchmarks.slices $(ARGS)

bench-plans: $(STAMP) ## Flash of one image with two plans of MCUNet, against two projects
	$(BIN)/python -m benchmarks.plans

power-cuts: $(STAMP) ## Cut the power of a device that saves, everywhere, on six flashes; losses (20 CPU minutes; ARGS=--short, ARGS='cut fails')
	$(BIN)/python -m benchmarks.power_cuts $(ARGS)

remat-real: $(STAMP) ## 20 steps of MCUNet, all of it updated, with and without rematerialisation: equal bytes in QEMU
	$(BIN)/python -m pytest -m slow tests/e2e/test_remat.py

slow: $(STAMP) ## The long forms of tests, which `make test` leaves out (remat-real is one)
	$(BIN)/python -m pytest -m slow

ledger: setup ## Record the instructions of layers and steps in benchmarks/ledger.json
	$(BIN)/python benchmarks/instructions.py --write

hash-c: $(STAMP) ## Compare all files of some 80 builds with another tree (WRITE=before.json, COMPARE=before.json, ONLY=words)
	$(BIN)/python scripts/hash_c.py $(if $(WRITE),--write $(WRITE)) $(if $(COMPARE),--compare $(COMPARE)) \
		$(if $(ONLY),--only "$(ONLY)")

fuzz: $(STAMP) ## Integer kernels on 200 random shapes per operator: host under ASan and UBSan, six boards; ARGS="--keep done.jsonl": goes on where it was
	$(BIN)/python benchmarks/fuzz_kernels.py $(ARGS)

convergence: $(STAMP) ## Train int8 and float32 on eight seeds, print paired differences and controls
	$(BIN)/python benchmarks/convergence.py

int8-accuracy: $(STAMP) ## int8 against float32 on 24 seeds in six orders, by the generated C (40 minutes); ARGS='--seeds 100-117'
	$(BIN)/python -m benchmarks.int8_accuracy $(ARGS)

int8-keywords: $(STAMP) ## int8 against float32 on keywords: 24 fresh speakers in six orders, with replay (half an hour; espeak-ng)
	$(BIN)/python -m benchmarks.keywords_accuracy $(ARGS)

docs: $(STAMP) ## Regenerate docs/ops.md, docs/errors.md and the real output in README.md and other pages
	$(BIN)/python scripts/make_docs.py

zoo: $(STAMP) ## Networks of other frameworks: losses and weights of five steps against theirs, and the C on the host
	$(BIN)/python -m benchmarks.zoo --verify host

zoo3: $(STAMP) ## The networks of ../shared/zoo3 likewise, as PyTorch trains them (ARGS='--notes', '--folder DIR', NAME)
	$(BIN)/python -m benchmarks.zoo --zoo3 $(ARGS)

export-zoo: $(STAMP) ## The same networks learn three steps and go back to ONNX (ARGS='--int8', '--models', NAME)
	$(BIN)/python -m benchmarks.export $(ARGS)

campaign: $(STAMP) ## Mutated files, random graphs, chains by rows, damaged checkpoints: all, or KIND=.. COUNT=.. FIRST=.. SEED=.. JOBS=..
	$(BIN)/python -m tests.campaign $(if $(KIND),--kind "$(KIND)") $(if $(COUNT),--count $(COUNT)) \
		--first $(or $(FIRST),0) --seed $(or $(SEED),0) --jobs $(or $(JOBS),1)

clean: ## Remove what set-up and tests made
	rm -rf .venv out examples/*/out
