#!/usr/bin/env bash
# One sitting on a GPU machine: what fits its number of GPUs, each part under a time limit, the tables last.
# usage: benchmarks/gpu_session.sh FOLDER [PART...]     logs and tables go to FOLDER; no PART: all that fit
# parts: tests offload publish tiny step (one GPU), split colocated layouts (two or more)
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
out=$(mkdir -p "$1" && cd "$1" && pwd); shift
gpus=$(python3 -c 'import torch; print(torch.cuda.device_count())')
parts=${*:-$([ "$gpus" = 1 ] && echo tests offload publish tiny step || echo split colocated layouts)}
export NCCL_NVLS_ENABLE=0 PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false
export RAY_memory_monitor_refresh_ms=0   # memory that a virtual machine grows as it is used looks short to Ray

run() {  # NAME SECONDS COMMAND...
  local name=$1 limit=$2 start=$SECONDS; shift 2
  echo "== $name"
  timeout --kill-after=20 "$limit" "$@" >"$out/$name.txt" 2>"$out/$name.err" </dev/null
  echo "   rc $? after $((SECONDS - start)) s" | tee -a "$out/$name.txt"
}
slime() { run "$1" "$2" python3 -m slime "${@:3}" run.dir="$out/runs" run.name="$1" run.progress=false; }
short="sft.num_steps=40 sft.lr_warmup_steps=5 run.num_steps=6 eval.interval=3 train.checkpoint.interval=3"
cut="+model=glm4-9b model.num_layers=12"
pair=h200x$gpus

for part in $parts; do
  case $part in
    tests) run tests 560 python3 -m pytest -m gpu -q --durations=12 ;;
    offload) run offload 240 python3 benchmarks/offload.py $cut +cluster=h200x1 ;;
    publish) run publish 400 python3 benchmarks/publish.py $cut +cluster=h200x1 ;;
    tiny) slime tiny 400 +model=glm4-tiny +cluster=h200x1 $short ;;
    reward) slime reward 580 +model=glm4-tiny +cluster=$pair ;;
    step) run step 580 python3 benchmarks/step.py $cut +cluster=h200x1 run.num_steps=3 ;;
    split) slime tiny-split 400 +model=glm4-tiny +cluster=$pair-split $short
           size=$([ "$gpus" = 4 ] && echo "+model=glm4-9b" || echo "$cut")
           run publish-split 500 python3 benchmarks/publish.py $size +cluster=$pair-split ;;
    colocated) slime tiny-colocated 400 +model=glm4-tiny +cluster=$pair $short
           run publish-colocated 500 python3 benchmarks/publish.py +model=glm4-9b +cluster=$pair ;;
    layouts) slime tiny-tp2 400 +model=glm4-tiny +cluster=$pair $short train.megatron.tensor_model_parallel_size=2 \
               rollout.sglang.tp_size=2 cluster.num_engines=$((gpus / 2))
           slime tiny-pp2 400 +model=glm4-tiny +cluster=$pair $short train.megatron.pipeline_model_parallel_size=2 ;;
    nine) run step-9b 580 python3 benchmarks/step.py +model=glm4-9b +cluster=$pair run.num_steps=3 ;;
    *) echo "no part '$part'"; exit 2 ;;
  esac
done
for file in "$out"/*.txt; do
  echo; echo "---- $(basename "$file" .txt)"; tail -n 34 "$file"
  grep -q 'rc 0' "$file" || { echo "     ended badly:"; grep -v Warning "${file%.txt}.err" | tail -n 25; tail -qn 12 "$out/runs/$(basename "$file" .txt)"/logs/*.log 2>/dev/null | tail -n 60; }
done
