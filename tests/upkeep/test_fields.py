"""The table of foreign fields is that of the installed versions, which are the ones slime asks for."""

import tomllib
from pathlib import Path

from slime.config.passthrough import TABLE, made_for
from upkeep import fields

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]


def test_the_table_is_up_to_date() -> None:
    assert TABLE.read_text() == fields.to_text(fields.read()), "run `python upkeep/fields.py`"


def test_the_table_is_of_the_versions_that_are_asked_for() -> None:
    asked = [line for extra in ("train", "gpu") for line in PROJECT["optional-dependencies"][extra]]
    assert {f"{name}=={version}" for name, version in made_for().items()} <= set(asked)
