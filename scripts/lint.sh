#!/bin/bash
# Lint and types. No cache: a cached result does not see that an imported file is gone.
set -eu
cd "$(dirname "$0")/.."
.venv/bin/ruff check --no-cache .
.venv/bin/ruff format --no-cache --check .
.venv/bin/mypy slurm_elastic benchmarks
if command -v shellcheck >/dev/null 2>&1; then
  shellcheck scripts/*.sh sbatch_templates/*.sbatch .ci/run
fi
