#!/usr/bin/env bash
# Sets up .venv, then lint, types and the whole suite. `scripts/test.sh --quick` leaves out the slow tests;
# other arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."

bash scripts/setup_environment.sh
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" PYTHONUNBUFFERED=1

.venv/bin/ruff format --check .
.venv/bin/ruff check .
.venv/bin/mypy

if [ "${1:-}" = "--quick" ]; then
  shift
  exec .venv/bin/python -m pytest -m "not slow" --durations=10 "$@"
fi
exec .venv/bin/python -m pytest --durations=20 "$@"
