"""`slime keys`: the schema's text in the shell."""

from __future__ import annotations

import json
import re

import pytest

from slime import command
from slime.config.keys import own_keys


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert command.main(["keys", *words]) == 0
    return capsys.readouterr().out


def test_without_a_prefix_every_key_is_named_by_its_section(capsys: pytest.CaptureFixture[str]) -> None:
    found, section = set(), ""
    for line in printed(capsys).split("\n\n")[0].splitlines():
        section = line.split()[0] if line[0] != " " else section
        names = line.removeprefix(section) if line[0] != " " else line
        found |= {f"{section}.{name}" for name in re.findall(r"\w+", names)}
    assert found == {*own_keys()}


@pytest.mark.parametrize(
    ("prefix", "wanted"),
    [
        ("run.seed", ["run.seed"]),
        ("run.seed=1", ["run.seed"]),
        ("train.lora", [f"train.lora.{name}" for name in ("rank", "alpha", "targets", "expert_rank", "publish")]),
        ("batch_size", ["sft.batch_size"]),
        ("train.megatron.bf16", ["train.megatron.bf16"]),
        ("mem_fraction_static", ["rollout.sglang.mem_fraction_static"]),
    ],
)
def test_a_prefix_names_a_key_a_section_or_the_end_of_keys(
    capsys: pytest.CaptureFixture[str], prefix: str, wanted: list[str]
) -> None:
    assert [key["name"] for key in json.loads(printed(capsys, prefix, "--json"))] == wanted
    assert re.findall(r"^[^\s:]+", printed(capsys, prefix), re.MULTILINE) == wanted


def test_type_bound_default_and_meaning_are_the_schema_s(capsys: pytest.CaptureFixture[str]) -> None:
    key = own_keys()["run.seed"]
    assert printed(capsys, "run.seed") == f"run.seed: int, {key.bound}  (default: 1234)\n    {key.doc}\n"
    (found,) = json.loads(printed(capsys, "run.seed", "--json"))
    assert found == {
        "name": "run.seed",
        "type": "int",
        "default": "1234",
        "bound": str(key.bound),
        "meaning": key.doc,
    }


@pytest.mark.parametrize(
    ("prefix", "todo"),
    [
        ("rollout.samplin", "Did you mean 'rollout.sampling'?"),
        ("temprature", "Did you mean 'temperature'?"),
        ("learning_rate", "Did you mean 'train.optimizer.lr'?"),
        ("xyz", "'slime keys' lists all."),
    ],
)
def test_a_wrong_prefix_gets_the_nearest(capsys: pytest.CaptureFixture[str], prefix: str, todo: str) -> None:
    assert command.main(["keys", prefix]) == 2
    assert capsys.readouterr().err == f"slime: there is no key '{prefix}'. {todo}\n"


def test_the_help_of_a_verb_that_takes_keys_names_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["plan", "--help", "rollout"]) == 0
    assert "'slime keys rollout'" in capsys.readouterr().out
