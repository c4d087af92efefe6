"""The runs and verbs that `chaos.py interrupts` interrupts: their settings, and the files that they need."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.running import TINY, write_rows

ASSETS = "pkg://slime_plugin_glm4/assets/glm4-tiny"
PROMPTS = "pkg://slime_rewards.math/data/arithmetic-train.jsonl"
SHORT: Mapping[str, Any] = {
    **TINY,
    "run.name": "it",
    "sft.num_steps": 2,
    "run.num_steps": 3,
    "eval.interval": 1,
    "train.checkpoint.interval": 1,
    "observe.zero_variance_steps": 0,
}
"""Everything that a run does, in a few seconds behind its start."""
_UNSET = {"eval.path": None}
_DIGITS = ",".join(f"{token}:100" for token in range(26, 36))
"""Of the judge's vocabulary: it answers with a number, whatever its weights."""

FILES = {
    "my_agent.py": """
import os, time
from openai import OpenAI
client = OpenAI()
messages = [{"role": "user", "content": os.environ["SLIME_PROMPT"]}]
client.chat.completions.create(model="policy", messages=messages, max_tokens=12)
time.sleep(0.3)
for _ in client.chat.completions.create(model="policy", messages=messages, max_tokens=12, stream=True):
    pass
""",
    "my_function.py": """
import asyncio
from openai import AsyncOpenAI
async def run(task, endpoint):
    async with AsyncOpenAI(base_url=endpoint.url, api_key=endpoint.key) as client:
        messages = [dict(message) for message in task.prompt.messages]
        await client.chat.completions.create(model="policy", messages=messages)
        await asyncio.sleep(0.2)
        await client.chat.completions.create(model="policy", messages=messages)
""",
    "my_environment.py": """
import time
class Guess:
    def reset(self, task):
        time.sleep(0.1)
        self.left = 3
        return "Say a number."
    def step(self, response):
        time.sleep(0.1)
        self.left -= 1
        return "Again.", float(len(response) % 3), self.left == 0
""",
    "my_reward.py": """
from slime_rewards.code.sandbox import Spec, run
PROGRAM = "import time\\ndef add(a, b):\\n    time.sleep(0.2)\\n    return a + b"
def score(response):
    return float(run(Spec(PROGRAM, "add(3, 4)")).output == "7") * (len(response) % 7)
""",
}

RUNS: Mapping[str, Mapping[str, Any]] = {
    "laptop": {},
    "colocated": {"cluster.placement": "colocated"},
    "two hosts": {"+cluster": "local-hosts"},
    "ahead": {"rollout.max_staleness": 1, "run.num_steps": 6},
    "agents by command": {
        "rollout.program.name": "endpoint",
        "rollout.program.options.command": f"'{sys.executable} my_agent.py'",
        "rollout.prompts_per_step": 2,
        "eval.path": "null",
        "eval.interval": None,
    },
    "agents by function": {"rollout.program.name": "endpoint", "rollout.program.path": "my_function.py:run"},
    "environment": {"rollout.program.name": "gym", "rollout.program.path": "my_environment.py:Guess"},
    "tools": {"task": "calculator", **_UNSET},
    "reasoning-gym": {"task": "sums", **_UNSET},
    "sandbox": {"reward.path": "my_reward.py:score"},
    "judge": {
        "reward": "judge",
        "reward.num_workers": 2,
        "reward.options.engines": "judge",
        "reward.options.template": "'{response}'",
        "reward.options.grade": "'(\\d)'",
        "reward.options.max_grade": 9,
        "reward.options.max_tokens": 3,
        "reward.options.fields": f"{{logit_bias:{{{_DIGITS}}}}}",
        "rollout.engines.judge.model": "MADE/judge",
    },
    "weights by files": {"weights.transport": "disk"},
    "weights by broadcast": {"weights.transport": "broadcast"},
    "critic": {"algo": "ppo"},
    "critic of two ranks": {"algo": "ppo", "+cluster": "local2"},
    "teacher": {"algo": "opd", "algo.teacher.path": "MADE/model"},
    "teacher in an engine": {
        "algo": "opd",
        "algo.options.teacher_engines": "teacher",
        "rollout.engines.teacher.model": "MADE/model",
    },
    "prefill and decode": {"+cluster": "local-pd"},
    "adapters": {
        "train.lora.rank": 8,
        "train.lora.publish": "adapters",
        "model.init": "checkpoint",
        "model.path": "MADE/model",
        "task": "none",
        "data.path": PROMPTS,
        "reward": "arithmetic",
        "rollout.max_prompt_tokens": 32,
        "rollout.sampling.max_response_tokens": 16,
        "sft.path": None,
        "sft.num_steps": 0,
        "sft.lr_warmup_steps": 0,
    },
    "copies in memory": {"train.checkpoint.in_memory_every": 1},
    "take-over": {"cluster.driver_grace_s": 300},
}
"""What each differs in from the laptop's run."""

VERBS: Mapping[str, str] = {
    "plan": "plan +model=glm4-tiny +cluster=local",
    "plan --fit": "plan +model=glm4-9b +cluster=h100x8 --fit",
    "preflight": "preflight +model=glm4-tiny +cluster=local",
    "probe": "probe +model=glm4-tiny +cluster=local",
    "eval of a folder": "eval MADE/model +cluster=local task=arithmetic run.name=it",
    "eval of a run": "eval MADE/runs/it",
    "convert random": f"convert random {ASSETS} out",
    "convert hf-to-dist": "convert hf-to-dist MADE/model out --layout pipeline_model_parallel_size=2",
    "convert dist-to-hf": "convert dist-to-hf MADE/runs/it out",
    "convert bf16-to-fp8": "convert bf16-to-fp8 MADE/model out",
    "check-reward": f"check-reward math {PROMPTS}",
    "check-chat": "check-chat MADE/model",
    "watch": "watch MADE/runs/it",
    "report": "report MADE/runs/it",
    "follow": "follow MADE/runs/it/weights SILENT",
}


def words_of(name: str, made: Path, silent: str, more: Mapping[str, Any]) -> Sequence[str]:
    """Words behind `slime`.

    Args:
        made: the folder of `make`.
        silent: URL of a server that does not answer.
        more: settings of a run, over its own.
    """
    if name in VERBS:
        return [word.replace("MADE", str(made)).replace("SILENT", silent) for word in VERBS[name].split()]
    settings = {"+model": "glm4-tiny", "+cluster": "local", **SHORT, **RUNS[name], **more}
    words = {key: value for key, value in settings.items() if value is not None}
    return [f"{key}={str(value).replace('MADE', str(made))}" for key, value in words.items()]


def write_files(folder: Path) -> None:
    """What the runs name, in the folder they start in."""
    for name, text in FILES.items():
        (folder / name).write_text(text)
    write_rows(folder)


def make(folder: Path) -> None:
    """Two models, and a run that published through files: what verbs and some runs take."""
    slime = [sys.executable, "-m", "slime"]
    write_files(folder)
    tiny = {"model": ASSETS, "judge": "pkg://slime_plugin_llama/assets/llama-tiny"}
    for name, source in tiny.items():
        subprocess.run([*slime, "convert", "random", source, name], cwd=folder, check=True, capture_output=True)
    words = words_of("weights by files", folder, "", {})
    subprocess.run([*slime, *words], cwd=folder, check=True, capture_output=True)
