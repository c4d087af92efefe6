"""slime's own keys: few, documented, and found again when mistyped."""

from dataclasses import fields

import pytest

from slime.config.keys import FOREIGN, SECTIONS, open_section, own_keys, suggest
from slime.config.passthrough import SOURCES

MAX_KEYS = 214
"""Last came: `train.checkpoint.in_memory_every` has trainers that die return to the last step;
`cluster.min_hosts` says with how many of them a run that has lost one goes on;
`cluster.driver_grace_s` lets what a killed driver has started wait for the next;
`model.batch_invariant` is of trainers and engines alike, of which SGLang's field is one half;
`cluster.spares`, `cluster.wait_for_host_s` and `cluster.exclude` say what becomes of hosts that are lost or slow;
`model.fp32_lm_head` is of trainers and engines alike, which no field of either library is;
`train.restarts` and `train.restart_window_s` bound how often trainers come back, as those of engines do;
`limit` of each set of rows takes its first ones;
`observe.replay_mb`, `observe.prometheus` and `observe.trace` keep and show what debugging a run needs;
`run.stop_at` ends a run before a scheduler does; `rollout.backend` chooses the inference server;
`cluster.gpu` and `cluster.gpu_row` say what estimates and rules count on, which were constants of an H100;
`rollout.addresses` lists servers that somebody else started."""


def is_added(name: str) -> bool:
    """By a plugin, whichever are installed as far as other tests have it."""
    homes = ((section, {field.name for field in fields(base)}) for section, base in SECTIONS.values())
    return any(name.startswith(f"{home}.") and name.split(".")[1] not in own for home, own in homes)


def test_there_are_few_keys_and_each_is_documented() -> None:
    keys = {name: key for name, key in own_keys().items() if not is_added(name)}
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
        ("cluster.nodes", "Did you mean 'cluster.num_nodes'?"),
        ("algo.clip", "Choose one of: algo.clip_low, algo.clip_high, algo.clip_dual."),
        (
            "rollout.engines.decode.dp_size",
            "'rollout.engines.<name>' has role, devices, devices_per_engine, sglang, environment, model.",
        ),
        ("zzz", "docs/config.md lists every key."),
    ],
)
def test_suggestion(name: str, says: str) -> None:
    assert suggest(name) == says
