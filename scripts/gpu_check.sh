#!/usr/bin/env bash
# Trains the demo's draft with speculators' default flags (flex attention, fused loss, Muon, bfloat16), once as it is
# and once with --fsdp-shard on every GPU, verifies each export against its checkpoint, and prints what each save and
# its export cost. One command, a few minutes: scripts/gpu_check.sh [DIRECTORY] (default: output/gpu-check).
#
# Without a GPU it rehearses the same steps with the flags that a CPU can run, two processes for --fsdp-shard.
# `GPU_CHECK_EPOCHS=N` trains shorter or longer than three epochs; a verifier and data that are there are used again.
set -euo pipefail
cd "$(dirname "$0")/.."

directory="${1:-output/gpu-check}"
epochs="${GPU_CHECK_EPOCHS:-3}"
python="${PYTHON_TO_CHECK:-.venv/bin/python}"
[ -x "$python" ] || bash scripts/setup_environment.sh
export PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false COLUMNS=400
mkdir -p "$directory"

gpus="$("$python" -c 'import torch; print(torch.accelerator.device_count() if torch.accelerator.is_available() else 0)')"
if [ "$gpus" -gt 0 ]; then
  processes="$gpus"
  flags=(--num-workers 2)
  "$python" -c 'import torch; print("GPU check on", torch.accelerator.device_count(), "x", torch.cuda.get_device_name())'
else
  processes=2
  flags=(--num-workers 0 --draft-attn-impl sdpa --loss-implementation eager --optimizer adamw
    --hidden-states-dtype float32)
  export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
  echo "No GPU: a rehearsal on the CPU."
fi

if [ ! -e "$directory/data/token_freq.pt" ]; then
  "$python" - "$directory" <<'PYTHON'
import sys
from pathlib import Path

from scripts.demo.world import train_verifier, write_offline_data

directory = Path(sys.argv[1])
verifier = train_verifier(directory / "verifier")
write_offline_data(verifier, directory / "data", [2, 4, 5])
PYTHON
fi

run() { # NAME LAUNCHER... : one training run, then every export of it against its checkpoint
  local name="$1"
  shift
  local save_path="$directory/$name" log="$directory/$name.log"
  rm -rf "$save_path" "$save_path-sglang"
  echo "== $name: $*"
  "$@" -m eagle3_export.train "${flags[@]}" "${extra[@]}" --speculator-type eagle3 \
    --verifier-name-or-path "$directory/verifier" --data-path "$directory/data" --save-path "$save_path" \
    --log-dir "$directory/$name-logs" --target-layer-ids 2 4 5 --draft-vocab-size 512 --total-seq-len 512 \
    --train-data-ratio 0.87 --on-missing raise --epochs "$epochs" --log-freq 40 --checkpoint-freq 0.5 \
    --sglang-export.on-failure raise >"$log" 2>&1 || { tail -40 "$log"; return 1; }
  for checkpoint in "$save_path"/[0-9]*; do
    "$python" -m eagle3_export verify "$save_path-sglang/$(basename "$checkpoint")" --source "$checkpoint"
  done
  sed -n 's/.*Exported .*\/\([^ :]*\): training was held for \([0-9.]* ms\), the trainer.s own save took \([0-9.]* ms\); in the background the weights took [0-9.]* ms (\([a-z_]*\)) and the whole export \([0-9.]* ms\)\..*/  epoch \1: training held \2, own save \3, export in the background \5 (\4)/p' "$log" | tee "$directory/$name-times.txt"
  # Every epoch is saved, or else this run proves nothing.
  [ "$(ls -d "$save_path"/[0-9]* | wc -l)" -eq "$epochs" ]
}

extra=()
run one-process "$python"
extra=(--fsdp-shard)
run fsdp-shard "$(dirname "$python")/torchrun" --standalone --nproc-per-node "$processes"
echo "GPU check done: every export equals its checkpoint."
