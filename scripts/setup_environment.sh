#!/usr/bin/env bash
# Makes .venv with the package, its test tools, speculators' trainer and SGLang's wheel. Does nothing when that is
# done already and none of the files it depends on has changed. Set PYTHON to choose the interpreter (3.10 or newer).
set -euo pipefail
cd "$(dirname "$0")/.."

requirements=tests/support/sglang_cpu/requirements.txt
# What sglang 0.5.23 pins. Its wheel is installed without its dependencies, most of which are GPU kernels.
pins=(speculators==0.9.0 torch==2.14.1 transformers==5.19.0)
sglang=sglang==0.5.23

stamp=.venv/eagle3-export-setup
wanted="$(cat pyproject.toml "$requirements" scripts/setup_environment.sh | cksum) $(pwd)"
if [ -x .venv/bin/python ] && [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then
  exit 0
fi

python="${PYTHON:-}"
if [ -z "$python" ]; then
  for candidate in python3.11 python3 python; do
    if command -v "$candidate" >/dev/null && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
      python="$candidate"
      break
    fi
  done
fi
if [ -z "$python" ]; then
  echo "No Python 3.10 or newer found. Install Python 3.11, or name one: PYTHON=/path/to/python3.11 $0" >&2
  exit 1
fi

export PIP_DISABLE_PIP_VERSION_CHECK=1
echo "Setting up .venv with $("$python" --version): PyTorch, speculators, SGLang; about 7 GB, a few minutes." >&2
if [ ! -x .venv/bin/python ] || ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
  # Some distributions ship venv without ensurepip; then this Python's own pip fills the environment.
  "$python" -m venv .venv 2>/dev/null || {
    "$python" -m venv --clear --without-pip .venv
    "$python" -m pip --python .venv/bin/python install --quiet pip
  }
fi
pip=(.venv/bin/python -m pip install)
echo "[1/2] the package, speculators and the test tools" >&2
"${pip[@]}" -e '.[train,report,test,test-dashboards]' -r "$requirements" "${pins[@]}"
echo "[2/2] $sglang" >&2
"${pip[@]}" --no-deps "$sglang"
printf '%s' "$wanted" >"$stamp"
echo "Set up." >&2
