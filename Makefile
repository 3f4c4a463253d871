# make train          train config/alibi.py, then test it long
# make train CONFIG=config/rope.py ARGS="--seed=3"
# make test           the test suite;  make test-slow: the long tests
# make docs           write docs/schemes.md, its picture and docs/settings.md again
# make gpu            tests, bench and six schemes at 124M on a GPU: results/gpu, out/gpu
# make gpu-board CELL=rope    a scheme of the board at 124M, nine minutes at a time
CONFIG ?= config/alibi.py
ARGS ?=
PYTHON ?= python3
WORKERS ?= 2
VENV := .venv/bin/python
export PYTHONUNBUFFERED = 1  # lines reach a log file at once

# of `make gpu`
DEVICE ?= cuda
SIX ?= alibi rope sinusoidal learned nope t5
SIZE ?= config/size/gpt2.py config/gpu/six.py
GPU ?= out/gpu
RUNS ?= out/gpu-runs

# of `make gpu-board`
CELL ?= alibi
BOARD ?= config/size/gpt2.py config/gpu/board.py
SECONDS_AT_ONCE ?= 540

.PHONY: train test test-slow docs gpu gpu-card gpu-bench gpu-six gpu-board
train: .venv/ready
	$(VENV) train.py $(CONFIG) $(ARGS)
	@echo
	@echo "To use python as the README does, type once in this shell:   . .venv/bin/activate"

test: .venv/ready-dev
	$(VENV) -m ruff format --check
	$(VENV) -m ruff check
	$(VENV) -m pytest -n $(WORKERS) --dist worksteal $(ARGS)

test-slow: .venv/ready-dev
	$(VENV) -m pytest -m slow $(ARGS)

docs: .venv/ready
	$(VENV) -m tools.docs

# every piece takes less than ten minutes on a card, and is left out where its result is there
gpu: gpu-card $(GPU)/tests.txt gpu-bench gpu-six
	@tail -n 1 $(GPU)/tests.txt
	@grep -q "^exit status 0$$" $(GPU)/tests.txt

# a rented machine may name a folder that lacks GPT-2's vocabulary
gpu gpu-% $(GPU)/%: export TIKTOKEN_CACHE_DIR := $(CURDIR)/data/books_gpu/tiktoken

# VENV=python3 takes the Python that a rented machine has
gpu-card: $(if $(filter .venv/%,$(VENV)),.venv/ready-dev)
	@test $(DEVICE) = cpu || $(VENV) -c "import sys, torch; torch.cuda.is_available() or \
		sys.exit('error: torch finds no GPU here, so nothing is measured: see results/gpu')"

$(GPU)/tests.txt: | gpu-card
	mkdir -p $(GPU)
	$(VENV) -m pytest -m gpu -vv --no-header -n $(WORKERS) > $@.new 2>&1; code=$$?; \
		echo "exit status $$code" >> $@.new; test $$code -le 1
	mv $@.new $@

gpu-bench: $(SIX:%=$(GPU)/bench-%.txt)
$(GPU)/bench-%.txt: | gpu-card
	mkdir -p $(GPU)
	$(VENV) -m tools.bench $* $(SIZE) $(ARGS) --device=$(DEVICE) > $@.new
	mv $@.new $@

gpu-six: $(SIX:%=$(GPU)/%/extrapolation.json)
	$(VENV) report.py $(SIX:%=$(GPU)/%) --out=$(GPU)/figure.png > $(GPU)/table.txt.new
	mv $(GPU)/table.txt.new $(GPU)/table.txt
	@cat $(GPU)/table.txt

# the run folder, with its checkpoints, stays on the machine
$(GPU)/%/extrapolation.json: | gpu-card
	$(VENV) train.py $(SIZE) $(ARGS) --pos=$* --device=$(DEVICE) --out_dir=$(RUNS)/$*
	mkdir -p $(@D)
	cp $(RUNS)/$*/config.json $(RUNS)/$*/metrics.jsonl $(RUNS)/$*/extrapolation.png $(@D)
	cp $(RUNS)/$*/extrapolation.json $@

# the same command goes on where the last one stopped, and prints the table once it is finished
gpu-board: | gpu-card
	timeout --signal=INT $(SECONDS_AT_ONCE) $(VENV) train.py $(BOARD) $(ARGS) --pos='$(CELL)' \
		--device=$(DEVICE)

# an environment that was cut off half made is made anew: only a finished one has the file `ready`
.venv/ready: requirements.txt
	@echo "installing what requirements.txt lists into .venv: once, a few minutes"
	$(PYTHON) -m venv --clear .venv
	$(VENV) -m pip install --quiet -r requirements.txt
	touch $@

.venv/ready-dev: requirements-dev.txt .venv/ready
	$(VENV) -m pip install --quiet -r requirements-dev.txt
	touch $@
