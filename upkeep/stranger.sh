#!/usr/bin/env bash
# What somebody gets who has only the wheels and the public package index:
#
#     make wheels && upkeep/stranger.sh dist ../stranger
#
# a fresh home and two fresh environments, whose pip reads no configuration of this machine. The first plans GLM-5.2 with
# what `pip install slime-plugin-glm5` brings. The second has SGLang and torch too, plans it again, trains the laptop run
# and resumes it. pip resolves SGLang's own requirements: CUDA builds, 9.3 GB on the disk. With the
# URL of CPU builds of torch 2.11.0 (`https://download.pytorch.org/whl/cpu`) as the third argument, less; not tried.
set -euo pipefail
WHEELS=$(realpath "$1") FOLDER=$2 TORCH_INDEX=${3:-}
PYTHON=${PYTHON:-python3}
mkdir -p "$FOLDER"
cd "$FOLDER"
mkdir -p home tmp
export HOME=$PWD/home TMPDIR=$PWD/tmp PIP_CONFIG_FILE=/dev/null PIP_NO_CACHE_DIR=1
unset PIP_FIND_LINKS PIP_EXTRA_INDEX_URL PIP_INDEX_URL PYTHONPATH
FROM=(--quiet --disable-pip-version-check --index-url https://pypi.org/simple --find-links "$WHEELS")

"$PYTHON" -m venv planning
planning/bin/pip install "${FROM[@]}" slime-plugin-glm5
planning/bin/slime plan +model=glm5.2 +cluster=h100x256

"$PYTHON" -m venv laptop
[ -z "$TORCH_INDEX" ] || laptop/bin/pip install --quiet --index-url "$TORCH_INDEX" torch==2.11.0 torchvision torchaudio
laptop/bin/pip install "${FROM[@]}" "slime-rl[cpu]" slime-plugin-glm5 slime-plugin-glm4
laptop/bin/slime plan +model=glm5.2 +cluster=h100x256 >/dev/null
LAPTOP=(+model=glm4-tiny +cluster=local run.num_steps=4 eval.interval=2 train.checkpoint.interval=2)
OMP_NUM_THREADS=1 laptop/bin/slime "${LAPTOP[@]}" sft.num_steps=100
rm -r runs/glm4-tiny-local/checkpoints/step-000104    # as after a kill: step-000102 is what is left
rm -r runs/glm4-tiny-local/export
OMP_NUM_THREADS=1 laptop/bin/slime "${LAPTOP[@]}" sft.num_steps=100 | grep "continues after rl 2"
