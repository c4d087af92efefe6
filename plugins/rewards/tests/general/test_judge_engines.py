"""A judge that is an engine group of the run: what a config may say of it, how it is asked, and a whole run."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from slime.compose.compose import examine
from slime.config.paths import resolve
from slime.errors import SlimeError
from slime.net import Endpoint, Secret
from slime.reward.engines import tell
from slime_rewards.general.judge import JudgeReward
from slime_testing.models import write_checkpoint
from slime_testing.plugins import sample
from tests.running import NO_CHECKPOINTS, NO_STOP, Run, end_all

TINY = resolve("pkg://slime_plugin_llama/assets/llama-tiny")
LAPTOP = ["+model=glm4-tiny", "+cluster=local", "reward=judge"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A judge of another family than the trained model's, with random weights."""
    folder = tmp_path_factory.mktemp("models") / "judge"
    write_checkpoint(json.loads((TINY / "config.json").read_text()), folder, seed=1)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(TINY / name, folder)
    return folder


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "reward.options: names nobody to ask. Set one of url and engines."),
        (
            ["reward.options.engines=jugde", "rollout.engines.judge.model=FOLDER"],
            "reward.options.engines: no engine group 'jugde' has a model of its own. "
            "Did you mean 'reward.options.engines=judge'?",
        ),
        (
            ["reward.options.engines=judge"],
            "reward.options.engines: no engine group 'judge' has a model of its own. "
            "Set rollout.engines.judge.model=<HF folder>.",
        ),
        (
            ["reward.options.engines=judge", "rollout.engines.judge.devices=1"],
            "reward.options.engines: engine group 'judge' has the trained model, which is no judge of itself. "
            "Set rollout.engines.judge.model=<HF folder>.",
        ),
        (
            ["reward.options.engines=judge", "rollout.engines.judge.model=FOLDER", "reward.options.url=http://host/v1"],
            "reward.options: names both url and engines. Set one of url and engines.",
        ),
        (
            ["reward.options.engines=judge", "rollout.engines.judge.model=FOLDERS"],
            "rollout.engines.judge.model: there is no 'FOLDERS'. Did you mean 'judge'?",
        ),
        (
            [
                "reward=route",
                "reward.options.rewards.essay.name=judge",
                "reward.options.rewards.essay.options.engines=jugde",
                "rollout.engines.judge.model=FOLDER",
            ],
            "reward.options.rewards.essay.options.engines: no engine group 'jugde' has a model of its own. "
            "Did you mean 'reward.options.rewards.essay.options.engines=judge'?",
        ),
        (
            [
                "reward=math",
                "data.sets.essays.path=pkg://slime_rewards.math/data/arithmetic-train.jsonl",
                "data.sets.essays.reward=judge",
                "+data.sets.essays.reward_options.engines=jugde",
                "rollout.engines.judge.model=FOLDER",
            ],
            "data.sets.essays.reward_options.engines: no engine group 'jugde' has a model of its own. "
            "Did you mean 'data.sets.essays.reward_options.engines=judge'?",
        ),
    ],
)
def test_whom_a_judge_asks_is_known_before_a_run(folder: Path, words: list[str], message: str) -> None:
    composed = examine([*LAPTOP, *(word.replace("FOLDER", str(folder)) for word in words)])
    assert [str(problem) for problem in composed.problems] == [message.replace("FOLDER", str(folder))]


def test_its_engines_are_asked_past_proxies_and_with_their_key(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def post(url: str, body: Any, headers: Any, *, passes_proxies: bool, **_: Any) -> Any:
        asked.append((url, headers, passes_proxies))
        return {"choices": [{"message": {"content": "Grade: 1"}}]}

    monkeypatch.setattr("slime_rewards.general.judge.post", post)
    tell({"judge": [Endpoint("http://host:1", Secret("its own"))]})
    try:
        assert JudgeReward(engines="judge").score(sample("four")).value == 1.0
    finally:
        tell({})
    assert asked == [("http://host:1/v1/chat/completions", {"Authorization": "Bearer its own"}, True)]
    with pytest.raises(SlimeError, match="no engine group 'judge'"):
        JudgeReward(engines="judge").score(sample("four"))


MAX_TOKENS, MAX_GRADE = 3, 9
DIGITS = {str(digit): 100 for digit in range(26, 36)}
"""Token ids of 0 to 9, which a random model writes with this bias alone."""
SETTINGS = {
    **NO_CHECKPOINTS,
    **NO_STOP,
    "run.num_steps": 1000,
    "sft.num_steps": 2,
    "eval.path": "null",
    "reward": "judge",
    "reward.num_workers": 2,
    "reward.max_failed_share": 0,
    "reward.options.engines": "judge",
    "reward.options.template": "'{response}'",
    "reward.options.grade": "'(\\d)'",
    "reward.options.max_grade": MAX_GRADE,
    "reward.options.max_tokens": MAX_TOKENS,
    "reward.options.fields": f"{{logit_bias:{{{','.join(f'{token}:{bias}' for token, bias in DIGITS.items())}}}}}",
    "rollout.restarts": 1,
}


def server(run: Run, folder: Path) -> psutil.Process:
    """Of the judge."""
    for child in psutil.Process(run.process.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it has ended since
            if f'model_path="{folder}"' in child.cmdline():
                return child
    raise AssertionError("it is not there")


def judged(run: Run) -> list[dict[str, Any]]:
    return [json.loads(line) for file in run.path.glob("samples/step-*.jsonl") for line in file.open()]


@pytest.fixture
def _no_strays() -> Iterator[None]:
    yield
    end_all()


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("_no_strays")
def test_a_run_starts_its_judge_brings_it_back_once_and_names_it_when_it_dies_again(
    folder: Path, tmp_path: Path
) -> None:
    """Every verdict is what transformers' model of that folder writes, before and after the restart; so nothing was
    published to it, and no sample lost its verdict."""
    run = Run(tmp_path, settings={**SETTINGS, "rollout.engines.judge.model": folder}).start()
    run.until(lambda: run.has_step("rl", 2))
    server(run, folder).kill()
    run.until(lambda: re.search(r"^engine-1 takes requests again", run.text(), re.M) is not None)
    steps = run.rows("rl")[-1]["step"]
    run.until(lambda: run.has_step("rl", steps + 2))
    run.remember()
    server(run, folder).kill()
    assert run.finish() == 2
    said = run.text()
    assert re.search(r"engine-1 \(pid \d+, http://\S+\): was killed by SIGKILL; engine-1 starts again \(1 of 1\)", said)
    assert re.search(r"slime: engine-1 \(pid \d+, http://\S+\): was killed by SIGKILL", said.splitlines()[-1]), said
    assert run.strays() == []
    assert run.litter() == []
    rows = judged(run)
    assert {row["verdict"] for row in rows} == {"value"}
    answers = {row["response"].strip(): row["reward"] for row in rows}
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    for response in [*answers][:50]:
        assert answers[response] == grade(model, tokenizer, response), response
    assert len({*answers.values()}) > 1


def grade(model: Any, tokenizer: Any, response: str) -> float:
    """The last digit that the judge writes, greedily, as a share of the best grade."""
    asked = [{"role": "user", "content": response}]
    tokens = tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_tensors="pt", return_dict=False)
    for _ in range(MAX_TOKENS):
        with torch.no_grad():
            logits = model(tokens).logits[0, -1]
        for token, bias in DIGITS.items():
            logits[int(token)] += bias
        tokens = torch.cat([tokens, logits.argmax()[None, None]], 1)
    return float(tokenizer.decode(tokens[0, -1])) / MAX_GRADE
