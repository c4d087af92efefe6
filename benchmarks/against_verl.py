"""A step of slime beside a step of verl on one GPU: the same model, prompts, lengths, batch and algorithm, in turn.

    python benchmarks/against_verl.py --model models/Qwen2.5-0.5B --verl-python verl/bin/python

Not yet run: written against the sources of verl 0.9.1. `pip install "verl[sglang]==0.9.1"` does not resolve
(2026-11-23, Python 3.12); its metadata asks for SGLang 0.5.12, torch 2.11.0 and transformers 5.9.0. So verl has an
interpreter of its own, made in this order, which was not tried either:

    python3.12 -m venv verl
    verl/bin/pip install sglang==0.5.12
    verl/bin/pip install "verl[verl-core]==0.9.1" transformers==5.9.0 mbridge orjson
    verl/bin/pip install --no-build-isolation flash-attn==2.8.3

The last one needs nvcc and may be left out; with it say `--attention flash_attention_2`. Without a network,
`pip download` the same into a folder and install there with `--no-index --find-links`; packages that the machine has
(torch, triton) need not travel where the environment was made with `--system-site-packages`.

verl at its best for one GPU and a small model: FSDP without offloading, packs of tokens instead of padding,
torch.compile, its engine's memory not freed between phases (`--free-cache` frees it), the same share of the GPU for the
engine. Both neither evaluate nor save. Rewards are the last number of a response compared with the label.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WARM_UP = 5
"""Steps that are not counted."""
LAST = 10
"""Steps at the end whose rewards are compared."""
PROMISED = 0.7
"""Of verl's step and start."""
RUN = ["+model=qwen2.5-0.5b", "+cluster=h200x1", "task=word-problems"]
OWN = ["eval.path=null", "train.checkpoint.interval=0", "train.checkpoint.export_hf=false", "run.progress=false"]
POLL_S = 0.5
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: object = None) -> float:
    """verl's reward function, which it imports from this file: 1 for the right last number, else 0."""
    found = NUMBER.findall(solution_str.replace(",", ""))
    return float(bool(found) and float(found[-1]) == float(ground_truth))


@dataclass(frozen=True)
class Measured:
    """One program: `start` is seconds to the beginning of its first step; `seconds` of a step by phase, medians."""

    start: float
    seconds: Mapping[str, float]
    tokens_per_s: float
    rewards: Sequence[float]
    peak_gib: float


def read_slime(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, float]]:
    """A row a step: its end, phases, tokens of responses and reward."""
    rows = [row for row in rows if row["stage"] == "rl" and row["step"] > 0]
    return [_row(row["time"], "seconds/", row, row["rollout/num_tokens"], row["rollout/reward_mean"]) for row in rows]


def read_verl(rows: Sequence[Mapping[str, Any]], num_samples: int) -> list[dict[str, float]]:
    """As `read_slime`. Its rows have no time of their own: `watched` adds `seen`."""
    return [
        _row(
            row["seen"],
            "timing_s/",
            row["data"],
            row["data"]["response_length/mean"] * num_samples,
            row["data"]["critic/score/mean"],
        )
        for row in rows
        if "timing_s/step" in row["data"]
    ]


def _row(end: float, prefix: str, values: Mapping[str, Any], tokens: float, reward: float) -> dict[str, float]:
    phases = {name.removeprefix(prefix): float(value) for name, value in values.items() if name.startswith(prefix)}
    return {**phases, "end": end, "tokens": tokens, "reward": reward}


def measured(rows: Sequence[Mapping[str, float]], began: float, peak_gib: float) -> Measured:
    counted = rows[WARM_UP:]
    phases = [name for name in counted[-1] if name not in ("end", "tokens", "reward")]
    return Measured(
        rows[0]["end"] - rows[0]["step"] - began,
        {name: statistics.median(row.get(name, 0.0) for row in counted) for name in phases},
        sum(row["tokens"] for row in counted) / sum(row["step"] for row in counted),
        [row["reward"] for row in rows],
        peak_gib,
    )


@contextmanager
def peak_of_gpu() -> Iterator[list[float]]:
    """GiB in use on the GPU, whoever has them; the largest is the peak."""
    seen, over = [0.0], threading.Event()

    def poll() -> None:
        asks = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
        while not over.wait(POLL_S):
            seen.append(float(subprocess.check_output(asks, text=True).split()[0]) / 1024)

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


def watched(
    command: Sequence[str], rows: Path, environment: Mapping[str, str]
) -> tuple[list[dict[str, Any]], float, float]:
    """Run a program that adds a line to `rows` after each step; returns them with the time at which each was seen, when
    the program began, and the peak of the GPU's memory."""
    found: list[dict[str, Any]] = []
    began = time.time()
    with peak_of_gpu() as peaks, subprocess.Popen(command, env={**os.environ, **environment}) as process:
        while process.poll() is None:
            time.sleep(0.02)
            lines = rows.read_text().split("\n")[:-1] if rows.exists() else []
            found += [json.loads(line) | {"seen": time.time()} for line in lines[len(found) :]]
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with code {process.returncode}")
    return found, began, max(peaks)


def write_prompts(source: Path, out: Path) -> None:
    """slime's prompts in verl's columns."""
    import pyarrow
    from pyarrow import parquet

    rows = [json.loads(line) for line in source.read_text().splitlines()]
    table = [
        {
            "data_source": "word-problems",
            "prompt": row["prompt"],
            "reward_model": {"style": "rule", "ground_truth": row["label"]},
            "extra_info": {"index": number},
        }
        for number, row in enumerate(rows)
    ]
    parquet.write_table(pyarrow.Table.from_pylist(table), out)


def verl_words(cfg: Any, model: Path, data: Path, steps: int, *, attention: str, free_cache: bool) -> list[str]:
    """verl's keys for what a config of slime says."""
    rollout, algo, optimizer = cfg.rollout, cfg.algo, cfg.train.optimizer
    actor, engine = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
    return [
        "algorithm.adv_estimator=grpo",
        "algorithm.use_kl_in_reward=false",
        f"data.train_files={data}",
        f"data.val_files={data}",
        f"data.train_batch_size={rollout.prompts_per_step}",
        f"data.max_prompt_length={rollout.max_prompt_tokens}",
        f"data.max_response_length={rollout.sampling.max_response_tokens}",
        f"actor_rollout_ref.model.path={model}",
        f"+actor_rollout_ref.model.override_config.attn_implementation={attention}",
        "actor_rollout_ref.model.use_remove_padding=true",
        "actor_rollout_ref.model.enable_gradient_checkpointing=false",
        f"{actor}.ppo_mini_batch_size={rollout.prompts_per_step // cfg.train.steps_per_rollout}",
        f"{actor}.use_dynamic_bsz=true",
        f"{actor}.ppo_max_token_len_per_gpu={cfg.train.max_tokens_per_micro_batch}",
        f"{actor}.clip_ratio_low={algo.clip_low}",
        f"{actor}.clip_ratio_high={algo.clip_high}",
        f"{actor}.loss_agg_mode=token-mean",
        f"{actor}.entropy_coeff={algo.entropy_coef}",
        f"{actor}.use_kl_loss=false",
        f"{actor}.grad_clip={optimizer['clip_grad']}",
        f"{actor}.optim.lr={optimizer['lr']}",
        f"{actor}.optim.weight_decay={optimizer['weight_decay']}",
        f"{actor}.optim.betas=[0.9,{optimizer['adam_beta2']}]",
        f"{engine}.name=sglang",
        f"{engine}.n={rollout.samples_per_prompt}",
        f"{engine}.temperature={rollout.sampling.temperature}",
        f"{engine}.tensor_model_parallel_size=1",
        f"{engine}.gpu_memory_utilization={rollout.sglang['mem_fraction_static']}",
        f"{engine}.max_num_seqs={rollout.max_requests_per_engine}",
        f"{engine}.free_cache_engine={str(free_cache).lower()}",
        f"reward.custom_reward_function.path={Path(__file__).resolve()}",
        "reward.num_workers=1",
        "trainer.logger=[file]",
        "trainer.nnodes=1",
        "trainer.n_gpus_per_node=1",
        "trainer.val_before_train=false",
        "trainer.resume_mode=disable",
        f"trainer.total_training_steps={steps}",
    ]


def table(ours: Measured, theirs: Measured) -> str:
    lines = []
    for name, one in (("slime", ours), ("verl", theirs)):
        lines += [f"| {name} | seconds of a step |", "|---|---|"]
        lines += [f"| {phase} | {value:.3f} |" for phase, value in one.seconds.items()] + [""]
    lines += [
        "| | start, s | step, s | tokens/s | GiB at the peak | reward of the last steps |",
        "|---|---|---|---|---|---|",
    ]
    for name, one in (("slime", ours), ("verl", theirs)):
        reward = statistics.fmean(one.rewards[-LAST:])
        rest = f"{one.tokens_per_s:,.0f} | {one.peak_gib:.1f} | {reward:.3f} |"
        lines.append(f"| {name} | {one.start:.0f} | {one.seconds['step']:.3f} | {rest}")
    ratios = {"step": ours.seconds["step"] / theirs.seconds["step"], "start": ours.start / theirs.start}
    for what, ratio in ratios.items():
        verdict = "kept" if ratio <= PROMISED else "MISSED"
        lines.append(f"\n{what} of slime over verl's: {ratio:.2f}; promised at most {PROMISED}: {verdict}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="Hugging Face folder")
    parser.add_argument("--verl-python", type=Path, required=True, help="the interpreter that has verl")
    parser.add_argument("--steps", type=int, default=40, help="of each, warm-up included")
    parser.add_argument("--attention", default="sdpa", help="of verl's trainer: sdpa, or flash_attention_2")
    parser.add_argument("--free-cache", action="store_true", help="verl's engine frees its memory between phases")
    options, arguments = parser.parse_known_args()
    from machine import conditions

    from slime.compose.compose import compose
    from slime.config.paths import resolve

    model = options.model.absolute()
    words = [*RUN, *OWN, f"model.path={model}", f"run.num_steps={options.steps}", *arguments]
    cfg = compose(words)
    num_samples = cfg.rollout.prompts_per_step * cfg.rollout.samples_per_prompt
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_prompts(resolve(str(cfg.data.path)), folder / "prompts.parquet")
        settings = {"attention": options.attention, "free_cache": options.free_cache}
        theirs = verl_words(cfg, model, folder / "prompts.parquet", options.steps, **settings)
        command = [str(options.verl_python), "-m", "verl.trainer.main_ppo", *theirs]
        rows = folder / "verl.jsonl"
        found, began, peak = watched(command, rows, {"VERL_FILE_LOGGER_PATH": str(rows)})
        verl = measured(read_verl(found, num_samples), began, peak)
        command = [sys.executable, "-m", "slime", *words, f"run.dir={folder}", "run.name=slime"]
        found, began, peak = watched(command, folder / "slime/metrics.jsonl", {})
        slime = measured(read_slime(found), began, peak)
    print(f"{conditions()}\n\n{table(slime, verl)}")


if __name__ == "__main__":
    main()
