#!/bin/bash
# Make .venv with everything the tests and the demo need, at the versions of constraints.txt.
set -eu
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
  echo "error: $("$PYTHON" --version) is too old" >&2
  echo "  fix: make PYTHON=python3.11 (3.11 or newer)" >&2
  exit 2
}
rm -rf .venv
"$PYTHON" -m venv .venv || {
  echo "error: $PYTHON cannot make a virtual environment" >&2
  echo "  fix: apt-get install python3-venv" >&2
  exit 2
}
pip=(.venv/bin/python -m pip --disable-pip-version-check --quiet)
"${pip[@]}" install -c constraints.txt pip setuptools wheel
# Where the index offers CPU builds of torch under another address, TORCH_INDEX_URL names it: no CUDA is downloaded.
torch_index=()
[ -z "${TORCH_INDEX_URL:-}" ] || torch_index=(--index-url "$TORCH_INDEX_URL")
"${pip[@]}" install -c constraints.txt "${torch_index[@]}" torch numpy
extras=train,dev
command -v mpicc >/dev/null 2>&1 && extras=$extras,mpi
"${pip[@]}" install -c constraints.txt -e ".[$extras]"
touch .venv/.complete
