#!/usr/bin/env bash
# The whole way on a CPU, without downloads after the installation: a small verifier learns real text, speculators
# trains an EAGLE-3 draft for it with the export on, and SGLang serves every epoch's export.
# Leaves everything in output/demo. About six minutes on two otherwise idle cores once .venv is set up.
set -euo pipefail
cd "$(dirname "$0")/.."

bash scripts/setup_environment.sh
# On the CPU even where there is a GPU, and from local files only.
export CUDA_VISIBLE_DEVICES= PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
exec .venv/bin/python -m scripts.demo
