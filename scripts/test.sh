#!/bin/bash
# Everything that must hold. Each part prints its own result; the first that fails ends it.
set -eu
cd "$(dirname "$0")/.."
part() { echo "== $1 ($SECONDS s)"; shift; "$@"; }
part "lint and types" scripts/lint.sh
part "unit and contract tests" .venv/bin/python -m pytest -q -n 2 tests/unit tests/contract
part "training tests" .venv/bin/python -m pytest -q -n 2 tests/training
part "cluster tests" .venv/bin/python -m pytest -q tests/cluster
echo "== all passed ($SECONDS s)"
