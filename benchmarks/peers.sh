#!/usr/bin/env bash
# slime beside its peers at their best on one H100 or H200: short answers and long ones of a model of half a billion.
# usage: benchmarks/peers.sh FOLDER MODEL [PART...]     rows, output and tables go to FOLDER; no PART: all, in order
# MODEL and ENDLESS are the folders that these make; the second never ends an answer, so that all are 2,048 tokens long:
#   python benchmarks/published.py qwen2.5-coder-0.5b MODEL
#   python benchmarks/published.py qwen2.5-coder-0.5b ENDLESS --end-of-turn '<|fim_pad|>'
# PEERS: a folder with TRL, verl, vLLM and what they need beside slime's packages, which slime itself does not see.
# FLASH: what their trainers attend with, flash_attention_2 unless it says otherwise; SHOW_ONLY=1 prints the commands.
# GROUPS_PER_STEP of long answers (4 unless it says otherwise), 16 samples each.
#
# part        about, s  what it shows
# slime            110  exact: trainer and engine share the GPU and stay on it
# ahead             80  the same at max_staleness=1
# trl               90  TRL with vLLM in its process
# trl-liger         90  ... and Liger's kernels
# trl-sdpa          90  ... attending with SDPA
# verl             200  verl with vLLM, sequences packed, log-probs of the engine taken as old ones
# verl-plain       200  ... its logits whole, not in verl's fused kernels
# verl-exact       200  ... old log-probs computed by the trainer, as verl does unless told otherwise
# verl-sglang      200  ... served by SGLang
# Each of these also as long-..., from 150 (slime) to 300 s (verl). Run them one after another, on a GPU nobody else uses.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
out=$1 model=$2; shift 2
steps=${STEPS:-25} flash=${FLASH:-flash_attention_2}
if [ -z "${SHOW_ONLY:-}" ]; then
  out=$(mkdir -p "$out" && cd "$out" && pwd)
  PYTHONPATH=$(python3 benchmarks/metadata.py "$out/metadata")${PYTHONPATH:+:$PYTHONPATH}; export PYTHONPATH
fi
export PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false RAY_memory_monitor_refresh_ms=0 HF_HUB_OFFLINE=1
unset PYTHONDONTWRITEBYTECODE
read -ra parts <<<"${*:-slime ahead trl trl-liger verl long-slime long-ahead long-trl long-verl}"
together=(rollout.sglang.enable_memory_saver=false)
ahead=("${together[@]}" rollout.max_staleness=1)
long=("rollout.prompts_per_step=${GROUPS_PER_STEP:-4}" rollout.sampling.max_response_tokens=2048)
common=(+model=qwen2.5-coder-0.5b +cluster=h200x1 task=word-problems)
taken=(algorithm.rollout_correction.bypass_mode=true)
plain=(actor_rollout_ref.rollout.gpu_memory_utilization=0.4)
fused=("${plain[@]}" actor_rollout_ref.model.use_fused_kernels=true
  actor_rollout_ref.model.fused_kernel_options.impl_backend=triton)

run() {  # PROGRAM NAME SECONDS WORDS... : one program of slime's or a peer's, its answers long where the part's name says it
  local program=$1 name=$2 limit=$3; shift 3
  local folder=$out/short from=$model words=("${common[@]}")
  [ -z "$is_long" ] || { folder=$out/long from=${ENDLESS:-$model} words+=("${long[@]}"); }
  local command=(python3 "benchmarks/$program.py")
  case $program in
    beside) command+=("$folder") ;;
    against_trl) command+=(--alone --out "$folder" --device cuda --trl-path "${PEERS:-}") ;;
    against_verl) command+=(--alone --out "$folder" --verl-path "${PEERS:-}") ;;
  esac
  command+=(--model "$from" --name "$name" --steps "$steps" --limit "$limit" "${words[@]}" "$@")
  [ -z "${SHOW_ONLY:-}" ] || { printf '%q ' "${command[@]}"; echo; return; }
  echo "== $name${is_long:+, long answers}"
  "${command[@]}" >"$out/$part.txt" 2>&1 </dev/null
  echo "   rc $? at $SECONDS s: $(grep -m 1 -E "(ended with|was ended)" "$out/$part.txt")"
}
trl() { run against_trl "$1" "$2" --trl-vllm 0.3 --trl-batch "$([ -z "$is_long" ] && echo 128 || echo 16)" "${@:3}"; }
verl() { run against_verl "$1" "$2" --attention "$flash" "${@:3}"; }

for part in "${parts[@]}"; do
  is_long=$([[ $part == long-* ]] && echo yes)
  case ${part#long-} in
    slime) run beside slime 240 "${together[@]}" ;;
    ahead) run beside "slime, ahead" 240 "${ahead[@]}" ;;
    trl) trl TRL 260 --trl-attention "$flash" ;;
    trl-liger) trl "TRL, Liger" 260 --trl-attention "$flash" --trl-set use_liger_kernel=true ;;
    trl-sdpa) trl "TRL, SDPA" 260 ;;
    verl) verl verl 400 --engine vllm --verl-words "${fused[@]}" "${taken[@]}" ;;
    verl-plain) verl "verl, plain" 400 --engine vllm --verl-words "${plain[@]}" "${taken[@]}" ;;
    verl-exact) verl "verl, exact" 400 --engine vllm --verl-words "${fused[@]}" ;;
    verl-sglang) verl "verl, SGLang" 400 --verl-words "${fused[@]}" "${taken[@]}" ;;
    *) echo "no such part: $part"; exit 2 ;;
  esac
done
[ -z "${SHOW_ONLY:-}" ] || exit 0
for answers in short long; do
  [ ! -d "$out/$answers" ] || python3 benchmarks/beside.py "$out/$answers" | tee "$out/$answers.md"
done
