#!/bin/bash
# Drivers on many machines make one output, without Ray: `sbatch infra/parts-slurm.sh`, from the checkout. Each begins
# with its part of the shards, and then helps the others. `curate status OUTPUT` shows all of them.
#
# A task that is preempted is queued again and goes on with what is undone; the others do not wait for it.
#SBATCH --job-name=toxicity
#SBATCH --array=0-31
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --cpus-per-task=8
#SBATCH --mem=32G
set -euo pipefail
cd "$SLURM_SUBMIT_DIR"
# `local`: a worker process for each CPU of the task. `auto`: the number of this task in the array, of so many. The output
# is where all machines can read and write it.
exec .venv/bin/python jobs/toxicity.py --input 'gs://B/reddit/*.jsonl.gz' --text-column body --output gs://B/toxicity \
    --backend local --part auto
