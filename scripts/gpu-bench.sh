#!/usr/bin/env bash
# The whole comparison on one NVIDIA GPU, at the paper's rates: calibrate, replay, compare with the simulator.
# Usage: scripts/gpu-bench.sh [MODEL [OUT]]; run it in the environment of a GPU SGLang with this package installed.
# RATE, TASKS, TRACES, WORKLOADS and POLICIES can be set; MEM is the share of the GPU that SGLang may use.
set -euo pipefail
model="${1:-Qwen/Qwen2.5-32B-Instruct}"
out="${2:-runs/gpu}"
workloads="${WORKLOADS:-chain-3 dag-4 metagpt-tl}"
policies="${POLICIES:-sglang-fcfs,sglang-lpm,lpm,gated-lpm,hold-many,topas,rollout,learned}"
python="${PYTHON:-python}"
flags=(--model-path "$model" --mem-fraction-static "${MEM:-0.9}" --max-running-requests "${SLOTS:-64}")
missing=()
command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1 || missing+=("an NVIDIA GPU (nvidia-smi finds none)")
"$python" -c 'import sglang' 2>/dev/null || missing+=("SGLang in the environment of '$python'")
"$python" -c 'import topas_bridge' 2>/dev/null || missing+=("this package in the environment of '$python' (pip install --no-deps -e .)")
"$python" - "$model" 2>/dev/null <<'PY' || missing+=("the weights of $model in the local cache or folder")
import pathlib
import sys

from huggingface_hub import snapshot_download

if not pathlib.Path(sys.argv[1]).is_dir():
    snapshot_download(sys.argv[1], local_files_only=True)
PY
if [ "${#missing[@]}" -gt 0 ]; then
  printf 'gpu-bench: missing: %s\n' "${missing[@]}" >&2
  exit 2
fi
mkdir -p "$out"
topas calibrate --name "$(basename "$model")" -o "$out/profile.json" -- "${flags[@]}"
for workload in $workloads; do
  topas bench "$workload" ${RATE:+--rate "$RATE"} --tasks "${TASKS:-100}" --traces "${TRACES:-5}" \
    --policies "$policies" --profile "$out/profile.json" --fidelity --out "$out/$workload" -- "${flags[@]}"
done
