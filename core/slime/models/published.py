"""What the published class of a family knows of config.json: every field, its kind and its default. No torch.

A family writes it as two classes of plain annotations, which no one makes an instance of: the fields of transformers'
config class, and those that the engine reads, or that published folders have, beside them.

    class Config:
        vocab_size: Size = 32000
        num_key_value_heads: Size | None = None

    class Beside:
        partial_rotary_factor: Positive = 1.0

    PUBLISHED = Published("MyFamilyForCausalLM", Config, Beside)

`slime_testing.published` compares the first with transformers' class, the second with SGLang's sources.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Any, TypeAlias

from slime.config.hf import scores
from slime.config.hf_fields import wrong_fields
from slime.errors import SlimeError

Size: TypeAlias = int  # from 1
Count: TypeAlias = int  # from 0
Positive: TypeAlias = float  # above 0
Number: TypeAlias = float  # from 0
Flag: TypeAlias = bool
Text: TypeAlias = str
Texts: TypeAlias = list[str]
Counts: TypeAlias = list[int]
Tokens: TypeAlias = int | list[int] | None
Object: TypeAlias = dict[str, Any]


class OfAnyModel:
    """What the code around all models reads beside their classes: the masks of attention."""

    is_causal: Flag = True


class Published:
    """What the published class of one family knows.

    Args:
        architecture: the class with the output layer, by the name that transformers and the engine know.
        config: the fields of transformers' config class; `beside` has those that this class has not.
    """

    def __init__(self, architecture: str, config: type, beside: type = object) -> None:
        self.architecture, self.config, self.beside = architecture, config, beside

    @cached_property
    def kinds(self) -> Mapping[str, str]:
        """The kinds of all fields, as they are written."""
        tables = (OfAnyModel, self.beside, self.config)
        return MappingProxyType({name: kind for each in tables for name, kind in annotations_of(each).items()})

    @cached_property
    def defaults(self) -> Mapping[str, Any]:
        """The defaults of all fields that have one."""
        tables = (OfAnyModel, self.beside, self.config)
        return MappingProxyType(
            {name: getattr(each, name) for each in tables for name in self.kinds if hasattr(each, name)}
        )

    def complete(self, hf: Mapping[str, Any], *, for_engines: bool = False) -> dict[str, Any]:
        """config.json with the default of every field that it lacks, but for the vocabulary, which is the tokenizer's.

        Raises:
            SlimeError: fields have values of other kinds than their own, or it is of another class.
        """
        wrong = [str(each) for each in wrong_fields(hf, self.kinds)]
        if "vocab_size" not in hf:
            wrong.insert(0, "the field 'vocab_size' is missing")
        if wrong:
            todo = "Use the config.json that the model comes with."
            raise SlimeError("; ".join(wrong), where="config.json", todo=todo)
        names = hf.get("architectures") or []
        whole = [name for name in names if not name.endswith("Model")]
        if (names or for_engines) and whole[:1] != [self.architecture] and not scores(hf):
            todo = f'Write ["{self.architecture}"], by which engines choose their code.'
            what = f"'architectures: {json.dumps(names)[:60]}' is not the class of this model family that writes text"
            raise SlimeError(what, where="config.json", todo=todo)
        return {**self.defaults, **hf}


def annotations_of(table: type) -> Mapping[str, str]:
    """The kinds of a class's own fields and of those of its bases, as text."""
    owns = (vars(each).get("__annotations__", {}) for each in reversed(table.__mro__))
    return {name: str(kind) for own in owns for name, kind in own.items()}
