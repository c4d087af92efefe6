#!/usr/bin/env bash
# One sitting on a GPU machine: what fits its number of GPUs, each part under a time limit, the tables last.
# usage: benchmarks/gpu_session.sh FOLDER [PART...]     logs and tables go to FOLDER; no PART: all that fit
# SHOW_ONLY=N: print the commands for N GPUs, a line each, instead of running them, on any machine.
# Needs python3 with the packages of requirements/; slime and its plugins are taken from this checkout.
# The stock kernels of sparse attention also need nvidia-cudnn-frontend and nvidia-cutlass-dsl; where the latter was
# unpacked by hand, PYTHONPATH has to name its folders nvidia_cutlass_dsl/dsl_packages and .../python_packages.
#
# part       GPUs  about, s  what it shows
# kernels    1        60     the digest and copy kernels, publishing by CUDA IPC: run it first
# tests      1       200     every test marked gpu
# generation 1       150     the engine's log-probs against the trainer's: every family, at its real head sizes
# fp32-head  1       600     logits in fp32 and not, at the widths of GLM-4-9B, GLM-4.5-Air and GLM-4.7-Flash: gap, time, memory
# aligned    1       500     log-probs with batch-invariant operators and without: gap, seconds; MODEL=a folder measures it too
# fp8        1       400     quantising beside a copy; engines in FP8 against trainers, with deep_gemm and with triton; a run
# glm5, v32  1       460     the laptop run with sparse attention, to its reward (engine with FlashAttention-3)
# offload    1        60     GB/s off the GPU and back, what stays there
# hold       1       300     what steps wait for and lose by checkpoints of 150 M parameters, to the disk and to /dev/shm; not run yet
# attention  1        30     flash attention beside cuDNN, one sequence after the other and in batches
# dsa        1        40     sparse attention by Triton and by stock kernels beside dense attention, 2k to 32k tokens
# sparse-tests 1      80     tests of these ways of attention: run it with attention and dsa
# load       1       420     a rollout's tokens/s beside those of the same load sent straight to SGLang; MODEL=a folder of
#                            Qwen2.5-Coder-0.5B, whose weights are not read
# publish    1        60     12-layer cut, colocated
# disk       1       300     the same through files, full versions and deltas, and as a run in FP8
# cut        1       150     a step of the 12-layer cut: phases, idle share, log-prob differences
# tiny       1        60     the log-prob differences of glm4-tiny, in a shortened run
# reward     any     120     the laptop run, to its reward
# split      2, 4    170     publish, disaggregated: the share of the bare broadcast by size of the buckets
# colocated  4        90     publish, colocated over all
# replay     1       200     the same of mixtures of experts with the engine's experts: how much of the difference is left
# sparse     1       120     three layers at GLM-5.2's widths, 32 experts each: tokens/s and MFU; 112 GiB, an H200
# trainers   2       230     glm4-9b-trial with all layers, cut by tensors or by layers: tokens/s and MFU
# layouts    2, 4    300     every parallel layout trains as one GPU does
# nine       4       580     a step of glm4-9b-trial with all layers
# tiny-split 2, 4     90     the log-prob differences of glm4-tiny with two engines
# tiny-tp2, tiny-pp2 2, 4 90 ... of other layouts, colocated
# experts    2, 4    180     GLM-4.7-Flash's and GLM-4.5-Air's sizes, experts over the GPUs: MFU, and where a step's time goes
# memory     any     150     memory of trainers beside what the plan predicts
# fit        2         330     eight layouts of two GPUs beside the seconds and the order that the plan estimates
# sources    4       210     publish from two trainer ranks at once, cut by tensors, by layers, by experts
# staleness  2, 4    330     SmolLM2-135M-Instruct at rollout.max_staleness 0, 1, 2; MODEL=its folder
# pairs, hosts, spread 4 200 one prefill and three decode engines; an engine over two hosts; attention by data over four
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
out=$(mkdir -p "$1" && cd "$1" && pwd); shift
gpus=${SHOW_ONLY:-}
if [ -z "$gpus" ]; then
  PYTHONPATH=$(python3 benchmarks/metadata.py "$out/metadata")${PYTHONPATH:+:$PYTHONPATH}; export PYTHONPATH
  gpus=$(python3 -c 'import torch; print(torch.cuda.device_count())')
fi
all=([1]="kernels tests offload dsa publish cut tiny" [2]="split layouts tiny-split" [4]="split colocated layouts nine tiny-split")
read -ra parts <<<"${*:-${all[$gpus]:-}}"
[ ${#parts[@]} -gt 0 ] || { echo "$gpus GPUs: name the parts"; exit 2; }
# The configs are those of H200s; the plans count on what is here.
mib=143771  # an H200's
[ -n "${SHOW_ONLY:-}" ] || mib=$(nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits | sort -n | head -n 1)
card=cluster.device_memory_mb=$mib
export NCCL_NVLS_ENABLE=0 PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false
export RAY_memory_monitor_refresh_ms=0   # memory that a virtual machine grows as it is used looks short to Ray

run() {  # NAME SECONDS COMMAND...
  local name=$1 limit=$2 start=$SECONDS; shift 2
  [ -z "${SHOW_ONLY:-}" ] || { printf '%q ' "$@"; echo; return; }
  echo "== $name"
  timeout --kill-after=20 "$limit" "$@" >"$out/$name.txt" 2>"$out/$name.err" </dev/null
  echo "   rc $? after $((SECONDS - start)) s" | tee -a "$out/$name.txt"
}
slime() { run "$1" "$2" python3 -m slime "${@:3}" "$card" run.dir="$out/runs" run.name="$1" run.progress=false; }
publish() { run "$1" "$2" python3 benchmarks/publish.py "${@:3}" "$card"; }
pytest() { run "$1" "$2" python3 -m pytest -q -p no:cacheprovider --durations=12 "${@:3}"; }
short=(sft.num_steps=40 sft.lr_warmup_steps=5 run.num_steps=6 eval.interval=3 train.checkpoint.interval=3)
nine=(+model=glm4-9b-trial)
cut=(+model=glm4-9b-trial model.num_layers=12)
# Without CUDA graphs an engine starts sooner, and publishing does not run it.
sources=(+cluster=h200x4-split weights.num_sources=2 weights.transport=broadcast)
sources+=(rollout.sglang.disable_cuda_graph=true train.max_tokens_per_micro_batch=4096)
flash=(+model=glm4.7-flash recipe=none model.init=random model.path=pkg://slime_plugin_glm4/assets/GLM-4.7-Flash)
flash+=(model.tokenizer=pkg://slime_plugin_glm4/assets/glm4-moe-lite-tiny model.num_layers=8 eval.path=null)
flash+=(train.checkpoint.interval=null train.checkpoint.export_hf=false)
stale=(+model=smollm2-135m recipe=smollm2-135m@h200x1 run.num_steps=30 rollout.prompts_per_step=64 eval.interval=10)
stale+=(train.checkpoint.interval=null)
load=(+model=qwen2.5-coder-0.5b +cluster=h200x1 task=word-problems rollout.sglang.enable_memory_saver=false)
pair=h200x$gpus
# What leaves room on GPUs of 80 GB.
whole=() flash_layers=() air_layers=() in80=()
[ "$mib" -gt 100000 ] || { whole=(train.max_tokens_per_micro_batch=5120) in80=(--only 0 2 3)
  flash_layers=("model.num_layers=$((4 * gpus))" --only 0) air_layers=("model.num_layers=$((1 + 3 * gpus / 4))" --only 1); }

for part in "${parts[@]}"; do
  case $part in
    kernels) pytest kernels 200 -m gpu tests/weights plugins/libraries/weight-buckets/tests ;;
    tests) pytest tests 560 -m gpu -k "not real_head_sizes" ;;  # "generation" has them all at once
    generation) run generation 420 python3 benchmarks/generation.py ;;
    replay) run replay 420 python3 benchmarks/generation.py GLM-4.5-Air GLM-4.7-Flash DeepSeek-R1 GLM-5.2 Qwen3-30B-A3B --replay ;;
    sparse) run sparse 400 python3 benchmarks/train.py --model glm5.2 --profile ;;
    fp32-head)
      run fp32-head-4096 120 python3 benchmarks/logprob.py
      run fp32-head-2048 120 python3 benchmarks/logprob.py --sizes 2048 154880
      for head in "" --fp32-lm-head; do  # no word where empty
        run "gap-4096$head" 300 python3 benchmarks/generation.py GLM-4-9B-0414 GLM-4.5-Air $head \
          --widths hidden_size=4096 vocab_size=151552
        run "gap-2048$head" 200 python3 benchmarks/generation.py GLM-4.7-Flash $head \
          --widths hidden_size=2048 vocab_size=154880
      done ;;
    aligned)
      pytest aligned-kernels 100 plugins/libraries/batch-invariant/tests
      run aligned 200 python3 benchmarks/aligned.py ${MODEL:+"$MODEL"}
      run aligned-experts 300 python3 benchmarks/aligned.py --experts --layers 2 ;;
    fp8)
      run fp8 60 python3 benchmarks/fp8.py
      for runner in deep_gemm triton; do
        run "fp8-$runner" 240 python3 benchmarks/generation.py GLM-4.5-Air DeepSeek-R1 GLM-5.2 --fp8 block \
          --engine fp8_gemm_runner_backend=$runner moe_runner_backend=$runner
      done
      slime fp8-run 300 +model=glm4-moe-tiny +cluster=h200x1 rollout.fp8=block "${short[@]}" ;;
    glm5) slime glm5 560 +model=glm5-tiny +cluster=h200x1 ;;
    v32) slime v32 560 +model=deepseek-v3.2-tiny +cluster=h200x1 ;;
    offload) run offload 240 python3 benchmarks/offload.py "${cut[@]}" +cluster=h200x1 "$card" ;;
    hold)
      for folder in "$out" /dev/shm; do
        run "hold-$(basename "$folder")" 300 python3 benchmarks/checkpoint.py hold --layers 32 --rounds 2 --intervals 1 20 \
          --micro-batches 16 --folder "$folder"
      done ;;
    attention) run attention 120 python3 benchmarks/attention.py ;;
    dsa) run dsa 240 python3 benchmarks/dsa.py --longest 32768 ;;
    sparse-tests) pytest sparse-tests 240 -m gpu plugins/megatron/tests/transformer/test_on_gpu.py plugins/models/glm5/tests/test_all_keys.py \
                    plugins/megatron/tests/sparse_attention/test_stock.py ;;
    load)
      load+=(model.path="$MODEL" --rounds 2 --samples 8)
      run load-512 200 python3 benchmarks/rollout.py "${load[@]}" --prompts 64 --lengths 256 1 16384
      run load-4096 200 python3 benchmarks/rollout.py "${load[@]}" --prompts 512 --lengths 128 1 4096
      run load-turns 200 python3 benchmarks/rollout.py "${load[@]}" --prompts 64 --turns 5 --lengths 64 1 2048
      run load-two 200 python3 benchmarks/rollout.py "${load[@]}" --prompts 64 --lengths 256 1 16384 --engines 2 \
        rollout.sglang.mem_fraction_static=0.35 ;;
    publish) publish publish 400 "${cut[@]}" +cluster=h200x1 ;;
    disk)
      publish publish-disk 400 "${cut[@]}" +cluster=h200x1 weights.transport=disk
      publish publish-disk-full 400 "${cut[@]}" +cluster=h200x1 weights.transport=disk weights.full_every=1
      slime disk-run 300 +model=glm4-moe-tiny +cluster=h200x1 rollout.fp8=block weights.transport=disk "${short[@]}" ;;
    cut) run step-cut 580 python3 benchmarks/step.py "${cut[@]}" +cluster=h200x1 run.num_steps=3 "$card" ;;
    tiny) run step-tiny 300 python3 benchmarks/step.py +model=glm4-tiny +cluster=h200x1 "${short[@]}" "$card" ;;
    reward) slime reward 580 +model=glm4-tiny +cluster="$pair" ;;
    split) publish publish-split 300 "${nine[@]}" +cluster="$pair-split" train.optimizer.optimizer_cpu_offload=true --buckets 2048,1024,512 ;;
    colocated) publish publish-colocated 300 "${nine[@]}" +cluster="$pair" "${whole[@]}" ;;
    trainers) run trainers 400 python3 benchmarks/train.py --gpus 2 --micro-batches 16 ;;
    layouts) pytest layouts 580 plugins/megatron/tests/train/test_on_gpu.py -k "layouts and $gpus" ;;
    nine) run step-nine 580 python3 benchmarks/step.py "${nine[@]}" +cluster="$pair" run.num_steps=3 "${whole[@]}" "$card" ;;
    tiny-split) run step-tiny-split 300 python3 benchmarks/step.py +model=glm4-tiny +cluster="$pair-split" "${short[@]}" "$card" ;;
    tiny-tp2) slime tiny-tp2 400 +model=glm4-tiny +cluster="$pair" "${short[@]}" \
                train.megatron.tensor_model_parallel_size=2 rollout.sglang.tp_size=2 ;;
    tiny-pp2) slime tiny-pp2 400 +model=glm4-tiny +cluster="$pair" "${short[@]}" \
                train.megatron.pipeline_model_parallel_size=2 ;;
    experts)
      run experts 300 python3 benchmarks/train.py --gpus "$gpus" --model glm4.7-flash --profile "${flash_layers[@]}"
      run experts-air 300 python3 benchmarks/train.py --gpus "$gpus" --model glm4.5-air --profile "${air_layers[@]}"
      run experts-gradients 120 python3 benchmarks/experts.py --ranks "$gpus" ;;
    memory) run memory 500 python3 benchmarks/memory.py --gpus "$gpus" $([ "$gpus" -lt 4 ] || echo "${in80[@]}") ;;
    fit) run fit 590 python3 benchmarks/plan_beside_measured.py --measure ;;
    sources)
      sources+=(--buckets 2048,1024)
      [ "$mib" -gt 100000 ] || sources+=(rollout.sglang.mem_fraction_static=0.6)
      publish publish-tp2 200 "${nine[@]}" model.num_layers=24 "${sources[@]}"
      publish publish-pp2 200 "${nine[@]}" model.num_layers=24 "${sources[@]}" \
        train.megatron.tensor_model_parallel_size=1 train.megatron.pipeline_model_parallel_size=2
      publish publish-ep2 200 "${flash[@]}" "${sources[@]}" \
        train.megatron.expert_model_parallel_size=2 train.megatron.expert_tensor_parallel_size=1 ;;
    staleness) run staleness 560 python3 benchmarks/staleness.py --folder "$out/staleness" "${stale[@]}" \
                 +cluster="$pair-split" model.path="$MODEL" "$card" ;;
    pairs) pytest pairs 400 -rP tests/test_run_gpu.py -k "prefill and glm4-9b" ;;
    hosts) pytest hosts 400 -rP tests/test_run_gpu.py -k "two_hosts and glm4-9b" ;;
    spread) pytest spread 400 -rP tests/test_run_gpu.py -k "over-four" ;;
    *) echo "no part '$part'"; exit 2 ;;
  esac
done
[ -z "${SHOW_ONLY:-}" ] || exit 0

for file in "$out"/*.txt; do
  echo; echo "---- $(basename "$file" .txt)"; tail -n 34 "$file"
  grep -q 'rc 0' "$file" || { echo "     ended badly:"; grep -v Warning "${file%.txt}.err" | tail -n 25
    tail -qn 12 "$out/runs/$(basename "$file" .txt)"/logs/*.log 2>/dev/null | tail -n 60; }
done
if grep -qs "engine and trainer" "$out"/step-*.txt; then
  echo; echo "---- log-probs"; grep "engine and trainer" "$out"/step-*.txt | sed "s|^$out/step-||; s|\.txt:|  |"
fi
