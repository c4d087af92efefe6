"""What objectives, a critic and LoRA learn from one published model on one GPU: a table of docs/results.md.

    python benchmarks/published.py smollm2-135m models/SmolLM2
    python benchmarks/objectives.py FOLDER models/SmolLM2 --together 6
    python benchmarks/objectives.py FOLDER models/Qwen2.5-Coder-0.5B +model=qwen2.5-coder-0.5b --together 3

All take the same prompts and seed, 512 samples a step, and four optimizer steps a rollout, so that the ratios differ
from 1 and bounds act. Each has the bounds of its preset and the learning rate of the recipe, LoRA ten times that: none
is tuned. With `--together` several share the GPU, and their seconds say nothing. A run is left out whose folder has its
metrics. `benchmarks/results_page.py --add` records one.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from slime.compose.compose import examine

RUN = [
    "+model=smollm2-135m",
    "+cluster=h100x1",
    "task=word-problems",
    "run.num_steps=15",
    "run.progress=false",
    "eval.interval=5",
    "train.steps_per_rollout=4",
    "train.checkpoint.interval=0",
    "train.checkpoint.export_hf=false",
    # So that several fit a GPU.
    "train.max_tokens_per_micro_batch=4096",
    "weights.bucket_mb=256",
    "rollout.sglang.mem_fraction_static=0.6",
    "rollout.sglang.max_total_tokens=65536",
]
WAYS = {
    "grpo": ["algo=grpo"],
    "cispo": ["algo=cispo"],
    "gspo": ["algo=gspo"],
    "rloo": ["algo=rloo"],
    "ppo": ["algo=ppo", "rollout.samples_per_prompt=1", "rollout.prompts_per_step=512"],
    "lora": ["algo=grpo", "train.lora.rank=32"],
}


def words(way: str, arguments: Sequence[str]) -> list[str]:
    """Of slime's command line; the arguments replace what they name."""
    given = {argument.partition("=")[0] for argument in arguments}
    chosen = [*(word for word in [*RUN, *WAYS[way]] if word.partition("=")[0] not in given), *arguments]
    if way == "lora" and "train.optimizer.lr" not in given:
        chosen.append(f"train.optimizer.lr={10 * examine(chosen).cfg.train.optimizer['lr']:g}")
    return chosen


def run(way: str, folder: Path, arguments: Sequence[str]) -> str:
    """How it ended."""
    if (folder / way / "metrics.jsonl").exists():
        return f"{way}: is there"
    command = [sys.executable, "-m", "slime", *words(way, arguments), f"run.dir={folder}", f"run.name={way}"]
    with (folder / f"{way}.txt").open("wb") as output:
        code = subprocess.call(command, stdout=output, stderr=subprocess.STDOUT)
    return f"{way}: ended with code {code}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="for the runs")
    parser.add_argument("model", type=Path, help="Hugging Face folder")
    parser.add_argument("--only", nargs="+", choices=WAYS, default=[*WAYS])
    parser.add_argument("--together", type=int, default=1, help="runs at a time")
    options, arguments = parser.parse_known_args()
    folder = options.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    given = [*arguments, f"model.path={options.model.absolute()}"]
    with ThreadPoolExecutor(options.together) as pool:
        for ended in pool.map(lambda way: run(way, folder, given), options.only):
            print(ended, flush=True)


if __name__ == "__main__":
    main()
