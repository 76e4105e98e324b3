#!/bin/bash
# Two hosts with four GPUs each under SLURM. A job that is preempted or runs out of time saves and queues again.
#SBATCH --job-name=ecpp
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=32
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=TERM@120
set -euo pipefail

head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)

# The run folder must lie on a disk that all hosts see. The same line starts the run and goes on with it.
srun torchrun \
    --nnodes "$SLURM_NNODES" --nproc-per-node 4 --max-restarts 3 \
    --rdzv-backend c10d --rdzv-endpoint "$head:29500" --rdzv-id "$SLURM_JOB_ID" \
    -m ecpp pretrain "$DATA" --out "$RUN" --batch-size 1024 --views 6 || code=$?

# 0: the run is complete. What a signal ended goes on in the next allocation; a mistake does not.
if [ "${code:-0}" -ge 128 ]; then scontrol requeue "$SLURM_JOB_ID"; fi
exit "${code:-0}"
