"""Names of other programs: each that `docs/coming-from.md` has is answered with today's key."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from slime.__main__ import main
from slime.compose.overrides import SHORT
from slime.config.keys import own_keys
from slime.config.passthrough import SOURCES, fields_of, settable
from slime.config.renamed import other_names

DOCS = Path(__file__).parents[2] / "docs/coming-from.md"
NO_SETTING = ("prompt", "accelerate launch")
"""A column's name, and a program."""


def table() -> dict[str, set[str]]:
    """Name of another program -> the keys here, of all rows that have it."""
    found: dict[str, set[str]] = {}
    for line in DOCS.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) != 5 or "`" not in cells[4]:
            continue
        for name in (name for cell in cells[1:4] for name in re.findall(r"`([^`]+)`", cell)):
            found.setdefault(name.partition("=")[0], set()).update(re.findall(r"`([^`<]+)", cells[4]))
    return {name: keys for name, keys in found.items() if name not in NO_SETTING}


def ways_to_type(name: str) -> Iterator[list[str]]:
    plain = name.lstrip("-")
    underscored = plain.replace("-", "_")
    yield [f"--{plain}"]
    yield [f"--{plain}", "8"]
    yield [f"--{plain}=8"]
    yield [f"{underscored}=8"]
    if underscored.startswith(("actor.", "rollout.")):
        yield [f"actor_rollout_ref.{underscored}=8"]


def test_the_table_is_read() -> None:
    assert table()["--num-rollout"] == {"run.num_steps"}
    assert len(table()) > 90


@pytest.mark.parametrize("name", table())
def test_every_name_of_the_table_is_answered_with_a_key(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    keys = table()[name]
    if name in own_keys():
        assert name in keys
        return
    for words in ways_to_type(name):
        assert main(["plan", "+model=glm4-tiny", "+cluster=local", *words]) == 2
        *notes, told = capsys.readouterr().err.splitlines()
        assert all(note.startswith("slime: note: ") for note in notes)  # of two models
        assert any(key.rstrip(".") in told for key in keys), (words, told, keys)


def test_a_model_is_chosen_by_its_group(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--model", "glm4-tiny"]) == 2
    assert "Write +model=<value>." in capsys.readouterr().err


def test_fields_of_sglang_by_the_flags_of_launchers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--sglang-log-level", "info"]) == 2
    assert "Did you mean 'rollout.sglang.log_level'?" in capsys.readouterr().err


@pytest.mark.parametrize("word", ["--rotary-base", "--rotary-base=10000", "train.megatron.rotary_base=10000"])
def test_what_the_config_json_says_is_not_set(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "+model=glm4-9b", "+cluster=h100x8", word]) == 2
    assert "Remove it: config.json's rope_theta is read." in capsys.readouterr().err


def test_a_name_of_today_is_one() -> None:
    assert other_names()["num_rollout"] == "run.num_steps"
    for old, today in other_names().items():
        section, _, name = today.partition("=")[0].rpartition(".")
        if section and "." in today:
            own = {key.removeprefix(f"{section}.") for key in own_keys() if key.startswith(f"{section}.")}
            known = fields_of(section).keys() if section in SOURCES else own | ({"default.devices", "devices"})
            assert name in known or f"{section}.{name}" in SHORT or section == "observe.trackers", old


def test_no_other_name_hides_a_field_or_a_key() -> None:
    assert not other_names().keys() & own_keys().keys()
    assert not other_names().keys() & {field for section in SOURCES for field in settable(section)}
