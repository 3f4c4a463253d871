# make train                          train config/alibi.py, then test it long
# make train CONFIG=config/rope.py ARGS="--seed=3"
# make test                           the test suite;  make test-slow: the long tests
# make schemes                        plant mistakes, compare with oracles: results/mutations.json and results/schemes.md
# make reliability                    kill, damage and mistype: counts into results/reliability.json and .md
CONFIG ?= config/alibi.py
ARGS ?=
PYTHON ?= python3
VENV := .venv/bin/python

.PHONY: train test test-slow reliability schemes
train: .venv/ready
	$(VENV) train.py $(CONFIG) $(ARGS)

test: .venv/ready-dev
	$(VENV) -m ruff check
	$(VENV) -m pytest $(ARGS)

test-slow: .venv/ready-dev
	$(VENV) -m pytest -m slow $(ARGS)

reliability: .venv/ready-dev
	$(VENV) -m pytest -m "slow or not slow" --record=results/reliability.json tests/test_killed.py tests/test_processes.py \
		tests/test_generated_inputs.py $(ARGS)

schemes: .venv/ready-dev
	$(VENV) -m pytest -m slow tests/test_mutations.py --record=results/mutations.json $(ARGS)
	$(VENV) tests/oracles.py > results/schemes.md

# an environment that was cut off half made is made anew: only a finished one has the file `ready`
.venv/ready: requirements.txt
	$(PYTHON) -m venv --clear .venv
	$(VENV) -m pip install --quiet -r requirements.txt
	touch $@

.venv/ready-dev: requirements-dev.txt .venv/ready
	$(VENV) -m pip install --quiet -r requirements-dev.txt
	touch $@
