"""PPO with answers of 1,003 tokens whose reward is decided by the first of them, at lambda 1 and below.

    OMP_NUM_THREADS=1 python benchmarks/long_answers.py FOLDER

The tiny GLM-4 has seen demonstrations alone that begin with one of six letters, drawn by chance, and go on with dots.
An answer is worth 1 if its first letter is `a`, else 0: for the policy a reward at the last token, 1,002 tokens behind
the one that earned it. Every way starts from the same weights, critic included, and takes one sample of each of 32
prompts a step, in four optimizer steps. None is tuned. A run is left out whose folder is there. Printed is the mean
reward of the samples of each step, which were drawn before the step learnt from them.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
from collections.abc import Sequence
from pathlib import Path

from algorithms import LAPTOP, slime
from machine import conditions

from slime.config.paths import resolve
from slime.observe.metrics import read_rows

WAYS = {
    "lambda 1": (),
    "lambda 0.95": ("algo.advantage_options.gae_lambda=0.95", "algo.advantage_options.critic_lambda=0.95"),
    "lambda 0.95, the critic's 1": ("algo.advantage_options.gae_lambda=0.95",),
}
LETTERS, RIGHT = "abcdef", "a"
NUM_TOKENS, NUM_PROMPTS, NUM_DEMONSTRATIONS = 1003, 64, 256
STEPS = range(1, 7)
"""Whose rewards are printed; the last are those after five steps of learning."""
REWARD = f'def score(response):\n    return response.startswith("{RIGHT}")\n'
LONG = ("data.path=prompts.jsonl", "eval.path=null", f"rollout.sampling.max_response_tokens={NUM_TOKENS}")
DEMONSTRATED = (*LAPTOP, "algo=sft", "eval.path=null", "sft.path=demonstrations.jsonl", "sft.num_steps=100")
DEMONSTRATED += ("sft.batch_size=8", "sft.lr_warmup_steps=10", "train.checkpoint.interval=null", "model.path=tiny")
REINFORCED = (*LAPTOP, *LONG, "reward.path=first.py:score", "model.init=checkpoint", "sft.num_steps=0", "algo=ppo")
REINFORCED += ("rollout.prompts_per_step=32", "rollout.samples_per_prompt=1", f"run.num_steps={STEPS[-1]}")
REINFORCED += ("train.steps_per_rollout=4", "algo.critic.lr=1e-3", "train.checkpoint.interval=null")
REINFORCED += ("rollout.sglang.max_total_tokens=40000",)


def prepare(folder: Path) -> None:
    """The files that the runs name, and `tiny`, the model with room for their answers."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(1)
    prompts = [f"{number}" for number in range(NUM_PROMPTS)]
    rows = [{"prompt": prompt, "label": RIGHT} for prompt in prompts]
    (folder / "prompts.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    with (folder / "demonstrations.jsonl").open("w") as file:
        for number in range(NUM_DEMONSTRATIONS):
            question = {"role": "user", "content": prompts[number % NUM_PROMPTS]}
            answer = {"role": "assistant", "content": draw.choice(LETTERS) + "." * (NUM_TOKENS + 50)}
            file.write(json.dumps({"messages": [question, answer]}) + "\n")
    (folder / "first.py").write_text(REWARD)
    model = shutil.copytree(resolve("pkg://slime_plugin_glm4/assets/glm4-tiny"), folder / "tiny", dirs_exist_ok=True)
    config = json.loads((model / "config.json").read_text()) | {"max_position_embeddings": 2048}
    (model / "config.json").write_text(json.dumps(config))


def rewards(run: Path) -> list[float]:
    """Of each step."""
    return [row["rollout/reward_mean"] for row in read_rows(run / "metrics.jsonl") if "rollout/reward_mean" in row]


def name_of(way: str) -> str:
    """Of its run."""
    return way.replace(",", "").replace("'", "").replace(" ", "-")


def table_row(way: str, steps: Sequence[float]) -> str:
    return f"| {way} | {' | '.join(f'{reward:.2f}' for reward in steps)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder.resolve()
    prepare(folder)
    os.chdir(folder)
    demonstrated = slime(DEMONSTRATED, folder, "demonstrated")
    print(conditions())
    for way in WAYS:
        run = slime((*REINFORCED, *WAYS[way], f"model.path={demonstrated}/export"), folder, name_of(way))
        print(table_row(way, rewards(run)), flush=True)


if __name__ == "__main__":
    main()
