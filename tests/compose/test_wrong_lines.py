"""Hundreds of wrong command lines: each is refused in a line that names what is wrong, fast, in bounded memory."""

import resource
import sys
import time
from collections.abc import Iterator

import pytest

from slime.compose.compose import examine
from slime.config.keys import ANY_NAME, own_keys
from slime.errors import SlimeError
from slime_testing.patience import run_within

LAPTOP = ["+model=glm4-tiny", "+cluster=local"]
LONG = "a" * 300
MAX_LINE = 450
MAX_BYTES = 1 << 30
HUGE = 99999999999999999999999
TYPED = {key.name: key.type.split(" or ") for key in own_keys().values() if ANY_NAME not in key.name}
NUMBERS = [name for name, kinds in TYPED.items() if {"int", "float"} & set(kinds)]
PATHS = ("data.path", "eval.path", "sft.path", "model.path", "model.tokenizer", "cluster.hostfile", "rollout.fp8")
CHOICES = [name for name, kinds in TYPED.items() if any("|" in kind for kind in kinds)]


def refusals(words: list[str]) -> list[str]:
    """What is said of a line; nothing but SlimeError may come out."""
    try:
        return [str(problem) for problem in examine([*LAPTOP, *words]).problems]
    except SlimeError as error:
        return [str(error)]


def mechanical() -> Iterator[tuple[str, str]]:
    """(word, what the refusal must name), of every key and kind of mistake."""
    for key, kinds in TYPED.items():
        yield f"{key[:-1]}=1", key[:-1].rpartition(".")[2][:4]
        if kinds[0] in ("bool", "int", "float"):
            yield f"{key}=wrong", key
            yield f"{key}=[1,2]", key
            yield f"{key}={{a:1}}", key
        if kinds[0] in ("bool", "int"):
            yield f"{key}=2.5", key
        if kinds == ["str"]:
            yield f"{key}=true", key
            yield f"{key}=", key
        if kinds == ["list of str"]:
            yield f"{key}=[3]", key
            yield f"{key}=['']", key
    for key in NUMBERS:
        for value in (HUGE, f"{10**400}", "nan", "inf", "-inf", *(() if key == "eval.pass_threshold" else (-3,))):
            yield f"{key}={value}", key  # a reward may be negative
    for key in CHOICES:
        yield f"{key}=nonsense", key


def special() -> Iterator[tuple[str, str]]:
    for key in PATHS:
        yield f"{key}=/nonexistent/{LONG}", key
        yield f"{key}={LONG}", key
        yield f"{key}=nowhere", key
    for key in ("run.name", "model.name", "cluster.name"):
        for name in (".", "..", "/abs", "a/b", "../../x", "'  '", "'a b'", LONG, '"a\\tb"', "-x"):
            yield f"{key}={name}", key
    for group in ("model", "cluster", "task", "reward", "filter", "buffer", "algo", "recipe"):
        yield f"{group}=nonsense", group
        yield f"{group}=../../etc", group
    for word in ("=5", "~", "@=1", "", "run.seed", "a=b=c", "+=3", "run.seed=1,2", "hydra.run.dir=x", "_target_=x"):
        yield word, word.partition("=")[0]
    for word in ("rollout.engines.default.role=", "rollout.engines.default.role=x", "run.name=${rollout}"):
        yield word, word.partition("=")[0]
    for word in (
        "cluster.environment.A=[1]",
        "cluster.environment.A=null",
        "rollout.sglang.dp_size=0",
        "train.optimizer.lr=0",
    ):
        yield word, word.partition("=")[0]
    for word in ("train.optimizer.lr=1000", "train.optimizer.lr=null", "rollout.sglang.tp_size=99999999999"):
        yield word, word.partition("=")[0]
    for word in ("cluster.ray_address=3", "cluster.ray_address=host", "rollout.sglang.log_level=abc"):
        yield f"+{word}", word.partition("=")[0]
    yield "+data.chat_template_kwargs.nonsense=1", "data.chat_template_kwargs.nonsense"
    yield "train.megatron.pipeline_model_parallel_layout=t*99999999999", "pipeline_model_parallel_layout"
    yield f"rollout.engines.default.devices={HUGE}", "rollout.engines.default.devices"
    yield f"rollout.engines.default.devices_per_engine={HUGE}", "rollout.engines.default.devices_per_engine"


WRONG = [*list(mechanical())[::5], *special()]
"""Of the many, every fifth, which is of another kind at each key: all take over a minute."""


def test_every_wrong_line_is_refused_shortly_and_by_its_key() -> None:
    began, bad = time.process_time(), []
    for word, named in WRONG:
        said = refusals([word])
        if not said:
            bad.append(f"{word[:80]}: accepted")
        elif not any(named in line for line in said):
            bad.append(f"{word[:80]}: does not name it: {said}")
        elif longest := [line for line in said if len(line) > MAX_LINE or "\n" in line]:
            bad.append(f"{word[:80]}: {len(longest[0])} characters: {longest[0]}")
    assert len(WRONG) > 200
    assert bad == []
    assert (time.process_time() - began) / len(WRONG) < 0.5, "seconds of the processor a line"
    assert refusals([]) == [], "the right line is still right"


@pytest.mark.parametrize(
    "words",
    [
        f"rollout.engines.default.devices={HUGE}",
        "rollout.engines.default.devices=16384 rollout.engines.default.devices_per_engine=1",
        "cluster.num_trainers=16384 cluster.num_nodes=64 cluster.devices_per_node=256 rollout.prompts_per_step=100000",
        "train.megatron.pipeline_model_parallel_layout='E(t*9999|)*9999L'",
    ],
)
def test_no_number_takes_the_machine_down(words: str) -> None:
    """In a process that may have a gigabyte."""

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))

    command = [sys.executable, "-m", "slime", "plan", *LAPTOP, *words.split()]
    done = run_within(100, command, preexec_fn=limited, check=False)
    assert done.returncode in (0, 2), done.stderr
    assert "Traceback" not in done.stderr
