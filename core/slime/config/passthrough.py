"""Keys that belong to Megatron-core and SGLang: checked against the dataclasses of the versions slime is made for.

Their fields are in a table, `fields.json`, which `python upkeep/fields.py` reads off the installed sources. To
import the classes would take seconds and torch, to parse their sources a third of a second a start.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slime.config import megatron_fields
from slime.config.keys import FOREIGN
from slime.config.megatron_fields import ACCEPTED
from slime.config.renamed import FROM_CONFIG_JSON, renamed
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

_ADDRESSES = "host port nccl_port dist_init_addr nnodes node_rank base_gpu_id gpu_id_step disaggregation_bootstrap_port"
SET_BY_SLIME: Mapping[str, Mapping[str, str]] = {
    **megatron_fields.SET_BY_SLIME,
    "rollout.sglang": {
        "model_path": "it comes from `model.path`",
        "tokenizer_path": "it comes from `model.tokenizer`",
        "load_format": "weights always arrive from the trainer",
        "skip_tokenizer_init": "slime sends and receives token ids",
        **dict.fromkeys(_ADDRESSES.split(), "slime sets it for every engine it starts"),
        **dict.fromkeys(["api_key", "admin_api_key"], "engines take requests from their run alone, by slime's own key"),
        "tokenizer_worker_num": "SGLang asks for its key only where there is one",
        "grpc_port": "SGLang asks for no key there",
        "device": "it follows `cluster.device`",
        "random_seed": "it follows `run.seed`",
        "preferred_sampling_params": "they come from `rollout.sampling` and `eval.sampling`",
        "weight_version": "slime counts weight versions",
        "disaggregation_mode": "it is the engine group's `role`",
        "disaggregation_ib_device": "it is `cluster.ib_devices`",
    },
}
"""Keys that slime fills in itself, with where their value comes from."""


_LEVELS = ("critical", "error", "warning", "info", "debug")
CHOICES: Mapping[str, tuple[Any, ...]] = {"log_level": _LEVELS, "log_level_http": _LEVELS}
"""Values of SGLang's fields that its dataclass leaves out: these are known to Python's logging and to uvicorn."""

TABLE = Path(__file__).parent / "fields.json"
"""`{"versions": {distribution: version}, "sections": {section: {field: {"type", "takes", "choices"}}}}`: the type in
words, the alternatives of `fits` where these are not the words, and the values if the field names them."""

DTYPES = ("fp32", "bf16", "fp16")
"""Values of a `torch.dtype` field, by Megatron-LM's names (`slime_megatron.train.settings` turns them into dtypes)."""
_SCALARS: Mapping[str, Any] = {"bool": bool, "int": int, "float": (int, float), "str": str, "null": type(None)}


def fits(kind: Any, value: Any) -> bool:
    """Whether a value of YAML is of a kind: a scalar's name, "dtype", "any", or `{"one of": values}`,
    `{"list": kinds}`, `{"dict": kinds}` with the kinds of its values."""
    if isinstance(kind, str):
        if kind in ("any", "dtype"):
            return kind == "any" or value in DTYPES
        return isinstance(value, _SCALARS[kind]) and (kind == "bool" or not isinstance(value, bool))
    [(form, inside)] = kind.items()
    if form == "one of":
        return value in inside
    items = value.values() if isinstance(value, dict) else value
    is_form = isinstance(value, {"list": list, "dict": dict}[form])
    return is_form and all(any(fits(each, item) for each in inside) for item in items)


@dataclass(frozen=True)
class ForeignField:
    """One field of somebody else's dataclass: its type in words, what it takes, and its values if it says them."""

    name: str
    type: str
    takes: tuple[Any, ...]
    choices: tuple[Any, ...] | None = None

    def fault(self, value: Any) -> str:
        """Why the value does not fit, empty if it does."""
        if not self.takes:
            return f"takes code ({self.type}), which a config cannot give"
        if not any(fits(kind, value) for kind in self.takes):
            return f"must be {self.type}, got {value!r}"
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
    return {
        name: ForeignField(
            name,
            field["type"],
            tuple(field.get("takes", field["type"].split(" or "))),
            tuple(field["choices"]) if "choices" in field else CHOICES.get(name),
        )
        for name, field in _table()["sections"][section].items()
    }


def made_for() -> dict[str, str]:
    """Distribution -> the version whose fields are known."""
    return dict(_table()["versions"])


def check_section(section: str, values: Mapping[str, Any], home: str = "") -> Iterator[SlimeError]:
    """What is wrong with the keys of one pass-through section, which stand under `home`, or else under `section`."""
    for key, value in values.items():
        where = f"{home or section}.{key}"
        if key in SET_BY_SLIME[section]:
            yield SlimeError("is not yours to set", where=where, todo=f"Remove it: {SET_BY_SLIME[section][key]}.")
        elif today := renamed(f"{section}.{key}".partition(".")[2]) or renamed(key):
            yield SlimeError("has another name today", where=where, todo=f"Use {today}.")
        elif key not in fields_of(section):
            yield SlimeError(f"{_classes(section)} has no such field", where=where, todo=_elsewhere(section, key))
        elif fault := fields_of(section)[key].fault(value):
            yield SlimeError(fault, where=where, todo=f"The field is {_classes(section)}'s.")
        elif section in ACCEPTED:
            yield from _check_accepted(section, key, value, where)


def _check_accepted(section: str, key: str, value: Any, where: str) -> Iterator[SlimeError]:
    """Whether a field of Megatron-core's is one that does something here, at this value.

    Without a reason against it a field of `train.megatron` may still be the model's own, see `slime.compose.check`.
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
    if key in FROM_CONFIG_JSON:
        return SlimeError("is not yours to set", where=where, todo=meant(key))
    near = nearest(key, ACCEPTED[section])
    todo = f"Remove it, or did you mean '{near}'?" if near else "Remove it; docs/config.md lists what may be set."
    return SlimeError("is not supported: nothing in slime reads it", where=where, todo=todo)


def homes_of(key: str) -> list[str]:
    """Dotted keys that a key without its section may be meant for: its name of today, or the sections that take it.

    Command lines write `--sglang-log-level` for a field of SGLang's.
    """
    if today := renamed(key):
        return [today]
    plain = key.strip("-").replace("-", "_")
    section, _, last = plain.rpartition(".")
    if section:  # as `train.lr`
        return [home for home in homes_of(last) if home.split(".")[0] == section.split(".")[0]]
    sections = ["rollout.sglang"] if plain.startswith("sglang_") else FOREIGN
    field = plain.removeprefix("sglang_")
    return [f"{section}.{field}" for section in sections if field in settable(section)]


def meant(name: str) -> str:
    """What the user of another program's name should do; empty if nobody knows it."""
    if field := FROM_CONFIG_JSON.get(name.strip("-").replace("-", "_")):
        return f"Remove it: config.json's {field} is read."
    homes = homes_of(name)
    return f"Did you mean '{homes[0]}'?" if homes else ""


def settable(section: str) -> Set[str]:
    return ACCEPTED[section].keys() if section in ACCEPTED else fields_of(section).keys() - SET_BY_SLIME[section].keys()


def _elsewhere(section: str, key: str) -> str:
    others = [other for other in homes_of(key) if other != f"{section}.{key}"]
    return f"Did you mean '{others[0]}'?" if others else _nearest_field(section, key)


def _nearest_field(section: str, key: str) -> str:
    if near := nearest(key, settable(section)):
        return f"Did you mean '{near}'?"
    if begun := sorted(name for name in settable(section) if name.startswith(f"{key}_")):
        return f"Did you mean '{begun[0]}'?" if len(begun) == 1 else f"These begin so: {', '.join(begun)}."
    return f"Its fields are in {_classes(section)} of the installed {DISTRIBUTION[SOURCES[section][0]]}."


def _classes(section: str) -> str:
    return SOURCES[section][1][-1][1] if section != "train.megatron" else "TransformerConfig"
