# The two commands of the README, and what they are made of. Each works on a fresh Debian or Ubuntu as root.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test venv packages lint types unit training cluster clean

demo: packages venv      ## one real training on a real Slurm on this machine (about 8 minutes)
	$(BIN)/slurm-elastic demo

test: packages venv      ## everything that must hold: lint, types, unit and cluster tests
	scripts/test.sh

packages:                ## the distribution's Slurm, MUNGE and MariaDB; starts and enables nothing
	scripts/packages.sh

venv: .venv/.complete    ## the virtual environment in .venv, pinned by constraints.txt

.venv/.complete: pyproject.toml constraints.txt scripts/venv.sh
	PYTHON=$(PYTHON) scripts/venv.sh

lint: venv
	scripts/lint.sh

unit: venv               ## fast tests, no Slurm
	$(BIN)/python -m pytest -q -n 2 tests/unit tests/contract

training: venv           ## several torch processes, no Slurm
	$(BIN)/python -m pytest -q -n 2 tests/training

cluster: packages venv   ## on a real Slurm brought up for the tests
	$(BIN)/python -m pytest -q tests/cluster

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
