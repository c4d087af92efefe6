"""Keys that belong to Megatron-core and SGLang: checked against the dataclasses of the versions slime is made for.

Their fields are in a table, `fields.json`, which `python -m slime.tools.fields` reads off the installed sources. To
import the classes would take seconds and torch, to parse their sources a third of a second a start.
"""

from __future__ import annotations

import ast
import functools
import json
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slime.config import megatron_fields
from slime.config.annotations import accepts, in_words, is_value
from slime.config.keys import FOREIGN
from slime.config.megatron_fields import ACCEPTED
from slime.errors import SlimeError, nearest

_TRANSFORMER = "core/transformer/transformer_config.py"
SOURCES: Mapping[str, tuple[str, Sequence[tuple[str, str]]]] = {
    "train.megatron": (
        "megatron",
        (
            ("core/model_parallel_config.py", "ModelParallelConfig"),
            (_TRANSFORMER, "TransformerConfig"),
            (_TRANSFORMER, "MLATransformerConfig"),
        ),
    ),
    "train.optimizer": ("megatron", (("core/optimizer/optimizer_config.py", "OptimizerConfig"),)),
    "train.ddp": (
        "megatron",
        (("core/distributed/distributed_data_parallel_config.py", "DistributedDataParallelConfig"),),
    ),
    "rollout.sglang": ("sglang", (("srt/server_args.py", "ServerArgs"),)),
}
"""Section -> installed package and the (file, dataclass) pairs whose fields the section takes."""

DISTRIBUTION = {"megatron": "megatron-core", "sglang": "sglang"}

_BY_LAUNCHER = "slime sets it for every engine it starts"
_BY_KEY = "engines take requests from their run alone, by a key that slime makes"
_BY_MODEL = "it comes from `model.path`"
SET_BY_SLIME: Mapping[str, Mapping[str, str]] = {
    **megatron_fields.SET_BY_SLIME,
    "rollout.sglang": {
        "model_path": _BY_MODEL,
        "tokenizer_path": "it comes from `model.tokenizer`",
        "load_format": "weights always arrive from the trainer",
        "skip_tokenizer_init": "slime sends and receives token ids",
        "host": _BY_LAUNCHER,
        "port": _BY_LAUNCHER,
        "nccl_port": _BY_LAUNCHER,
        "dist_init_addr": _BY_LAUNCHER,
        "nnodes": _BY_LAUNCHER,
        "node_rank": _BY_LAUNCHER,
        "base_gpu_id": _BY_LAUNCHER,
        "gpu_id_step": _BY_LAUNCHER,
        "api_key": _BY_KEY,
        "admin_api_key": _BY_KEY,
        "tokenizer_worker_num": "SGLang asks for its key only where there is one",
        "grpc_port": "SGLang asks for no key there",
        "device": "it follows `cluster.device`",
        "enable_memory_saver": "it follows `cluster.placement`",
        "random_seed": "it follows `run.seed`",
        "preferred_sampling_params": "they come from `rollout.sampling` and `eval.sampling`",
        "weight_version": "slime counts weight versions",
        "disaggregation_mode": "it is the engine group's `role`",
        "disaggregation_ib_device": "it is `cluster.ib_devices`",
        "disaggregation_bootstrap_port": _BY_LAUNCHER,
    },
}
"""Keys that slime fills in itself, with where their value comes from."""


TABLE = Path(__file__).parent / "fields.json"
"""`{"versions": {distribution: version}, "sections": {section: {field: {"type": ..., "choices": [...]}}}}`."""


@dataclass(frozen=True)
class ForeignField:
    """One field of somebody else's dataclass: its type as written there, and its values if it says them."""

    name: str
    type: str
    choices: tuple[Any, ...] | None = None

    def fault(self, value: Any) -> str:
        """Why the value does not fit, empty if it does."""
        annotation = ast.parse(self.type, mode="eval").body
        if not is_value(annotation):
            return f"takes code ({self.type}), which a config cannot give"
        if not accepts(annotation, value):
            return f"must be {in_words(annotation)}, got {value!r}"
        if self.choices is not None and value is not None and not self._chosen(value):
            near = nearest(str(value), map(str, self.choices))
            hint = f" (did you mean '{near}'?)" if near else ""
            return f"must be one of {', '.join(map(str, self.choices))}, got {value!r}{hint}"
        return ""

    def _chosen(self, value: Any) -> bool:
        assert self.choices is not None
        return all(item in self.choices for item in value) if isinstance(value, list) else value in self.choices


@functools.cache
def _table() -> dict[str, Any]:
    table = json.loads(TABLE.read_text(encoding="utf-8"))
    assert isinstance(table, dict)
    return table


@functools.cache
def fields_of(section: str) -> dict[str, ForeignField]:
    """The fields that a pass-through section takes."""
    return {
        name: ForeignField(name, field["type"], tuple(field["choices"]) if "choices" in field else None)
        for name, field in _table()["sections"][section].items()
    }


def made_for() -> dict[str, str]:
    """Distribution -> the version whose fields are known."""
    return dict(_table()["versions"])


def check_section(section: str, values: Mapping[str, Any], home: str = "") -> Iterator[SlimeError]:
    """What is wrong with the keys of one pass-through section.

    Args:
        home: the dotted key under which the values stand, if it is not `section`.
    """
    for key, value in values.items():
        where = f"{home or section}.{key}"
        if key in SET_BY_SLIME[section]:
            yield SlimeError("is not yours to set", where=where, todo=f"Remove it: {SET_BY_SLIME[section][key]}.")
        elif today := _renamed(key):
            yield SlimeError("has another name today", where=where, todo=f"Use {today}.")
        elif key not in fields_of(section):
            yield SlimeError(f"{_classes(section)} has no such field", where=where, todo=_elsewhere(section, key))
        elif fault := fields_of(section)[key].fault(value):
            yield SlimeError(fault, where=where, todo=f"The field is {_classes(section)}'s.")
        elif section in ACCEPTED:
            yield from _check_accepted(section, key, value, where)


def _check_accepted(section: str, key: str, value: Any, where: str) -> Iterator[SlimeError]:
    """Whether a field of Megatron-core's is one that does something here, at this value.

    Without a reason against it a field of `train.megatron` may still be the model's own, see `slime.config.check`.
    """
    field = ACCEPTED[section].get(key)
    if field is None:
        if reason := megatron_fields.reason_against(key):
            yield SlimeError(f"is not supported: {reason}", where=where, todo="Remove it.")
        elif section != "train.megatron":
            yield not_accepted(section, key, where)
    elif fault := field.fault(value):
        yield SlimeError(fault, where=where, todo=f"It is: {field.effect}.")


def not_accepted(section: str, key: str, where: str) -> SlimeError:
    """The refusal of a field that nothing here is known to heed."""
    near = nearest(key, ACCEPTED[section])
    todo = f"Remove it, or did you mean '{near}'?" if near else "Remove it; docs/config.md lists what may be set."
    return SlimeError("is not supported: nothing in slime is known to heed it", where=where, todo=todo)


def check_all(sections: Mapping[str, Mapping[str, Any]]) -> Iterator[SlimeError]:
    for section, values in sections.items():
        yield from check_section(section, values)


def homes_of(key: str) -> list[str]:
    """Dotted keys that a key without its section may be meant for: its name of today, or the sections that take it."""
    today = _renamed(key)
    return [today] if today else [f"{section}.{key}" for section in FOREIGN if key in settable(section)]


def _renamed(key: str) -> str | None:
    """Today's name of an old one; command lines write it with dashes."""
    return megatron_fields.RENAMED.get(key.strip("-").replace("-", "_"))


def settable(section: str) -> Set[str]:
    """The fields of a pass-through section that a run may set."""
    return ACCEPTED[section].keys() if section in ACCEPTED else fields_of(section).keys() - SET_BY_SLIME[section].keys()


def _elsewhere(section: str, key: str) -> str:
    others = [other for other in homes_of(key) if other != f"{section}.{key}"]
    return f"Did you mean '{others[0]}'?" if others else _nearest_field(section, key)


def _nearest_field(section: str, key: str) -> str:
    if near := nearest(key, settable(section)):
        return f"Did you mean '{near}'?"
    if begun := sorted(name for name in settable(section) if name.startswith(f"{key}_")):
        return f"What begins so: {', '.join(begun)}."
    return f"Its fields are in {_classes(section)} of the installed {DISTRIBUTION[SOURCES[section][0]]}."


def _classes(section: str) -> str:
    return SOURCES[section][1][-1][1] if section != "train.megatron" else "TransformerConfig"
