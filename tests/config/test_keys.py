"""slime's own keys: few, documented, and found again when mistyped."""

import pytest

from slime.config.keys import FOREIGN, SECTIONS, added_keys, open_section, own_keys, suggest
from slime.config.passthrough import SOURCES

MAX_KEYS = 194


def test_there_are_few_keys_and_each_is_documented() -> None:
    added = {name for kind in SECTIONS for names in added_keys(kind).values() for name in names}
    keys = {name: key for name, key in own_keys().items() if name not in added}
    assert len(keys) <= MAX_KEYS
    assert [name for name, key in keys.items() if not key.doc.endswith((".", ")"))] == []


def test_foreign_sections_are_open() -> None:
    assert tuple(SOURCES) == FOREIGN
    assert all(own_keys()[section].is_open for section in FOREIGN)


@pytest.mark.parametrize(
    ("name", "section"),
    [("train.megatron.bf16", "train.megatron"), ("train.megatron", "train.megatron"), ("train.megatrons", None)],
)
def test_open_section(name: str, section: str | None) -> None:
    assert open_section(name) == section


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("trian.megatron.bf16", "Did you mean 'train.megatron.bf16'?"),
        ("run.sed", "Did you mean 'run.seed'?"),
        ("seed", "Did you mean 'run.seed'?"),
        ("temperature", "Choose one of: rollout.sampling.temperature, eval.sampling.temperature."),
        ("buffer.zzz", "'buffer' has name, options."),
        (
            "rollout.engines.decode.dp_size",
            "'rollout.engines.<name>' has role, devices, devices_per_engine, sglang, environment, model.",
        ),
        ("zzz", "docs/config.md lists every key."),
    ],
)
def test_suggestion(name: str, says: str) -> None:
    assert suggest(name) == says
