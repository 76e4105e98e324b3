#!/bin/bash
# A worker of torchrun is killed twice; the job must come back by itself and end with the undisturbed run's weights.
#   PYTHON=.venv/bin/python scripts/elastic.sh [FOLDER]
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-.venv/bin/python}
OUT=${1:-$(mktemp -d)}
mkdir -p "$OUT"
ARGS=(patterns:256 --views 3 --encoder resnet10 --width 8 --batch-size 32 --epochs 6 --threads 1 --precision fp32
    --device cpu --log-every 1)
export OMP_NUM_THREADS=1

start() { # start RUN: two processes
    exec "$PYTHON" -m torch.distributed.run --standalone --nproc-per-node 2 --max-restarts 3 \
        -m ecpp pretrain "${ARGS[@]}" --out "$OUT/$1" >"$OUT/$1.log" 2>&1
}

(start whole)
(start killed) &
agent=$!
for lines in 12 28; do
    until [ -f "$OUT/killed/metrics.jsonl" ] && [ "$(wc -l <"$OUT/killed/metrics.jsonl")" -ge "$lines" ]; do sleep 0.1; done
    victim=$(pgrep -P "$agent" | tail -n 1)
    kill -9 "$victim"
    echo "killed a worker after $lines lines of metrics"
    sleep 3
done
wait "$agent"
grep -ho "goes on at.*" "$OUT/killed.log"
"$PYTHON" - "$OUT/whole" "$OUT/killed" <<'END'
import sys
from pathlib import Path

import torch

from ecpp.train import load_checkpoint

a, b = (load_checkpoint(Path(run) / "checkpoint.pt") for run in sys.argv[1:])
same = all(torch.equal(a["method"][k], b["method"][k]) for k in a["method"])
print(f"step {a['step']} and {b['step']}; equal to the last bit: {same}")
sys.exit(not same)
END
