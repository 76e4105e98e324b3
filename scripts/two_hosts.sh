#!/bin/bash
# Two "hosts" on one machine: network namespaces joined by a veth pair, torchrun in each, one training run over both.
# The link is cut in the middle and restored; the job must end with the weights of a run that nothing disturbed.
# Needs root, iproute2 and a Python with ecpp:   sudo PYTHON=.venv/bin/python scripts/two_hosts.sh [FOLDER]
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-.venv/bin/python}
OUT=${1:-$(mktemp -d)}
mkdir -p "$OUT"
ARGS=(patterns:256 --views 3 --encoder resnet10 --width 8 --batch-size 32 --epochs "${EPOCHS:-30}" --threads 1
    --precision fp32 --device cpu --log-every 1)

clean() { for h in 1 2; do ip netns pids "ecpp$h" 2>/dev/null | xargs -r kill -9 2>/dev/null || true
    ip netns del "ecpp$h" 2>/dev/null || true; done; }
trap clean EXIT
clean
for h in 1 2; do ip netns add "ecpp$h"; done
ip link add ecppv1 netns ecpp1 type veth peer name ecppv2 netns ecpp2
for h in 1 2; do
    ip -n "ecpp$h" addr add "10.99.0.$h/24" dev "ecppv$h"
    ip -n "ecpp$h" link set lo up
    ip -n "ecpp$h" link set "ecppv$h" up
done

host() { # host NUMBER RUN: its torchrun, in the background
    ip netns exec "ecpp$1" env GLOO_SOCKET_IFNAME="ecppv$1" OMP_NUM_THREADS=1 ECPP_TIMEOUT="${ECPP_TIMEOUT:-20}" \
        "$PYTHON" -m torch.distributed.run --nnodes 2 --nproc-per-node 1 --max-restarts 5 --rdzv-backend c10d \
        --rdzv-endpoint 10.99.0.1:29500 --rdzv-id "$2" --local-addr "10.99.0.$1" --rdzv-conf "join_timeout=300,is_host=$((2 - $1))" \
        -m ecpp pretrain "${ARGS[@]}" --out "$OUT/$2" >"$OUT/$2.host$1.log" 2>&1 &
}

lines() { wc -l 2>/dev/null <"$1/metrics.jsonl" || echo 0; }

both() { # both RUN: start it on both hosts
    host 1 "$1"; first=$!
    host 2 "$1"; second=$!
}

echo "undisturbed run on two hosts"
both whole
wait "$first" "$second"

echo "the same run; the link is cut in the middle"
both cut
until [ "$(lines "$OUT/cut")" -ge "${CUT_AFTER:-60}" ]; do sleep 0.2; done
ip -n ecpp1 link set ecppv1 down
echo "link down at $(tail -n 1 "$OUT/cut/metrics.jsonl" | cut -c 1-40)"
sleep "${DOWN:-10}"
ip -n ecpp1 link set ecppv1 up
ip -n ecpp1 addr replace 10.99.0.1/24 dev ecppv1
echo "link up again after ${DOWN:-10} s"
wait "$first" && one=0 || one=$?
wait "$second" && two=0 || two=$?
if [ $((one + two)) -ne 0 ]; then
    echo "the job ended on the hosts with codes $one and $two; the same line starts it again"
    both cut
    wait "$first" "$second"
fi

"$PYTHON" - "$OUT/whole" "$OUT/cut" <<'END'
import sys
import torch
from pathlib import Path
from ecpp.train import load_checkpoint

a, b = (load_checkpoint(Path(run) / "checkpoint.pt") for run in sys.argv[1:])
same = all(torch.equal(a["method"][k], b["method"][k]) for k in a["method"])
total = sum(float(v.double().abs().sum()) for v in a["method"].values())
print(f"step {a['step']} and {b['step']}, sum of all weights {total:.12g}; equal to the last bit: {same}")
sys.exit(not same)
END
