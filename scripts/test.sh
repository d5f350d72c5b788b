#!/usr/bin/env bash
# Sets up .venv, then lint, types and the tests: all but the nightly ones, in two processes.
#   scripts/test.sh --quick    leaves out the slow tests too
#   scripts/test.sh --all      the nightly tests too: brute force, and what follows other projects' releases
# Other arguments go to pytest: -n 4 runs four processes.
set -euo pipefail
cd "$(dirname "$0")/.."

select=(-m "not nightly")
case "${1:-}" in
  --quick) select=(-m "not slow and not nightly"); shift ;;
  --all) select=(); shift ;;
esac

bash scripts/setup_environment.sh
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" PYTHONUNBUFFERED=1

.venv/bin/ruff format --check .
.venv/bin/ruff check .
.venv/bin/mypy

# A file stays in one process, for what its tests share; in the order of their names the longest come first.
exec .venv/bin/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --durations=20 \
  ${select[@]+"${select[@]}"} "$@"
