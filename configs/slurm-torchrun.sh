#!/usr/bin/env bash
# Trains on several nodes under Slurm and lives with preemption: sbatch configs/slurm-torchrun.sh configs/YOURS.yaml
#
# One torchrun per node starts one process per GPU. Only global rank 0, on the first node, exports; the other nodes need
# no access to the output directory. Before Slurm takes the machines it sends SIGTERM: the trainer saves `interrupted`,
# the callback exports it, and the job is put back in the queue. When it starts again, it resumes from the last
# numbered checkpoint and exports what the last run had no time for.
#SBATCH --job-name=eagle3-draft
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --requeue
#SBATCH --open-mode=append
# The trainer gives its last save up to 120 s; KillWait of the cluster should allow as much.
#SBATCH --signal=TERM@180
set -euo pipefail

config="${1:?usage: sbatch slurm-torchrun.sh CONFIG.yaml [flags of speculators train or --sglang-export.*]}"
shift

MASTER_ADDR="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"
MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))
GPUS_PER_NODE="${SLURM_GPUS_ON_NODE:-8}"

exec srun --kill-on-bad-exit=1 torchrun \
  --nnodes "$SLURM_NNODES" \
  --nproc-per-node "$GPUS_PER_NODE" \
  --rdzv-id "$SLURM_JOB_ID" \
  --rdzv-backend c10d \
  --rdzv-endpoint "$MASTER_ADDR:$MASTER_PORT" \
  -m eagle3_export.train --config "$config" "$@"

# Without torchrun, one task per GPU (--ntasks-per-node=8) works too; the ranks are read from Slurm's variables:
#   export MASTER_ADDR MASTER_PORT
#   srun --kill-on-bad-exit=1 python -m eagle3_export.train --config "$config"
