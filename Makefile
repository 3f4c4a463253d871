# make train          train config/alibi.py, then test it long
# make train CONFIG=config/rope.py ARGS="--seed=3"
# make test           the test suite;  make test-slow: the long tests
# make docs           write docs/schemes.md and docs/settings.md again
# make house          measure the code: docs/house.md
# make schemes        plant mistakes, compare with oracles: results/mutations.json and schemes.md
# make reliability    kill, damage and mistype: counts into results/reliability.json and .md
CONFIG ?= config/alibi.py
ARGS ?=
PYTHON ?= python3
WORKERS ?= 2
VENV := .venv/bin/python

.PHONY: train test test-slow docs house reliability schemes
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
	$(VENV) docs/generate.py

house: .venv/ready
	$(VENV) docs/house.py > docs/house.md.new
	mv docs/house.md.new docs/house.md

reliability: .venv/ready-dev
	$(VENV) -m pytest -m "slow or not slow" --record=results/reliability.json tests/test_killed.py \
		tests/test_processes.py tests/test_generated_inputs.py $(ARGS)

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
