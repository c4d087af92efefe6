#!/usr/bin/env bash
# The first hour of somebody with one H100 or H200: how long the start takes, how long a step, and what three seeds reach.
# usage: benchmarks/first_hour.sh FOLDER MODEL [PART...]     logs, metrics and tables go to FOLDER; no PART: all, in order
# MODEL is the folder that `python benchmarks/published.py smollm2-135m MODEL` makes. Needs python3 with the packages of
# requirements/; slime and its plugins are taken from this checkout.
#
# part     about, s  what it shows
# cold          130  the first start on this machine, to 4 steps: kernels and bytecode are compiled into FOLDER/kernels
# warm           60  the same again: they are there
# all-sizes     110  decode graphs of all of SGLang's sizes, where the recipe has 17
# turns         180  100 steps in which trainer and engine take turns; with `together` the cost of moving
# together      160  100 steps in which they stay
# seed-1..3     450  word-problems-worked from its supervised steps to its end, each with a seed of its own
# lora          450  the same with LoRA of rank 32 and ten times the learning rates; only if it is named
# Beside each other: nothing. Run the parts one after another, on a GPU that nobody else uses.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
out=$(mkdir -p "$1" && cd "$1" && pwd); model=$(cd "$2" && pwd); shift 2
PYTHONPATH=$(python3 benchmarks/metadata.py "$out/metadata")${PYTHONPATH:+:$PYTHONPATH}; export PYTHONPATH
export PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false RAY_memory_monitor_refresh_ms=0
export TRITON_CACHE_DIR=$out/kernels/triton TORCHINDUCTOR_CACHE_DIR=$out/kernels/inductor SGLANG_DG_CACHE_DIR=$out/kernels/gemm
export FLASHINFER_WORKSPACE_BASE=$out/kernels CUDA_CACHE_PATH=$out/kernels/cuda TVM_FFI_CACHE_DIR=$out/kernels/tvm-ffi
unset PYTHONDONTWRITEBYTECODE; export PYTHONPYCACHEPREFIX=$out/kernels/bytecode  # images that keep none compile at every start
card=cluster.device_memory_mb=$(nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits | sort -n | head -n 1)
read -ra parts <<<"${*:-cold warm all-sizes turns together seed-1 seed-2 seed-3}"

slime() {  # NAME SECONDS WORDS...
  local name=$1 limit=$2; shift 2
  echo "== $name"
  date +%s.%N >"$out/$name.start"
  timeout --kill-after=20 "$limit" python3 -m slime +model=smollm2-135m +cluster=h200x1 model.path="$model" \
    run.dir="$out/runs" run.name="$name" run.progress=false train.checkpoint.export_hf=false "$card" "$@" \
    >"$out/$name.txt" 2>"$out/$name.err" </dev/null
  echo "   rc $?"
  cp "$out/runs/$name/metrics.jsonl" "$out/$name.jsonl" 2>/dev/null
}
short=(run.num_steps=4 eval.path=null train.checkpoint.interval=0)
long=(run.num_steps=100 eval.path=null train.checkpoint.interval=0)

for part in "${parts[@]}"; do
  case $part in
    cold) rm -rf "$out/kernels"; slime cold 300 "${short[@]}" ;;
    warm) slime warm 300 "${short[@]}" ;;
    all-sizes) slime all-sizes 300 "${short[@]}" rollout.sglang.cuda_graph_bs_decode=null ;;
    turns) slime turns 400 "${long[@]}" rollout.sglang.enable_memory_saver=true ;;
    together) slime together 400 "${long[@]}" rollout.sglang.enable_memory_saver=false ;;
    seed-*) slime "$part" 580 task=word-problems-worked run.seed="${part#seed-}" ;;
    lora) slime lora 580 task=word-problems-worked train.lora.rank=32 sft.lr=2e-4 train.optimizer.lr=2e-4 ;;
    *) echo "no such part: $part"; exit 2 ;;
  esac
done
python3 benchmarks/first_hour.py "$out" | tee "$out/tables.md"
