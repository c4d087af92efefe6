"""Whether a family's table of config.json (`slime.models.published`) is what transformers' class says, field by field,
and has what SGLang's class reads beside.

    python -m slime_testing.published MODEL_TYPE        # prints the first class of such a table, to be looked through

SGLang is read as text: importing its models takes long, and asks for GPUs.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from slime.models.published import Published, annotations_of

_KINDS = {
    "Size": {"int"}, "Count": {"int"}, "Positive": {"float", "int"}, "Number": {"float", "int"}, "Flag": {"bool"},
    "Text": {"str"}, "Texts": {"list[str]"}, "Counts": {"list[int]"}, "Tokens": {"int", "list[int]", "None"},
    "Object": {"dict", "RopeParameters"}, "None": {"None"},
}  # fmt: skip
"""What transformers calls each kind."""
_COMMON = frozenset(
    ("architectures", "dtype", "max_position_embeddings", "num_key_value_heads", "num_nextn_predict_layers",
     "rope_parameters", "rope_scaling", "rope_theta", "text_config", "torch_dtype", "vision_config")
)  # fmt: skip
"""Fields that all families read, or that only models of several modalities have."""


def differences(published: Published, config_class: type) -> list[str]:
    """Sentences about fields that the table lacks, has too many, or has otherwise than transformers' config class."""
    from transformers import PreTrainedConfig

    of_all = {field.name for field in dataclasses.fields(PreTrainedConfig)}
    fields = {field.name: field for field in dataclasses.fields(config_class) if field.name not in of_all}
    written = annotations_of(published.config)
    found = [
        f"it lacks '{name}', {_type_of(fields[name])} = {fields[name].default}" for name in fields.keys() - written
    ]
    found += [f"transformers has no '{name}'" for name in written.keys() - fields]
    for name in written.keys() & fields.keys():
        theirs = _type_of(fields[name])
        if not all(_KINDS[kind] & theirs for kind in written[name].split(" | ")):
            found.append(f"'{name}' is {written[name]}, and transformers': {', '.join(sorted(theirs))}")
        default = published.defaults[name]
        if (type(default), default) != (type(fields[name].default), fields[name].default):
            found.append(f"'{name}' is {default!r} by default, and transformers': {fields[name].default!r}")
    return sorted(found)


def _type_of(field: dataclasses.Field[Any]) -> set[str]:
    text = field.type.__name__ if isinstance(field.type, type) else str(field.type)
    return {part.rpartition(".")[2] for part in text.split(" | ")}


def unknown_reads(published: Published) -> list[str]:
    """Fields that SGLang's class takes if config.json has them, and that the table does not know."""
    return sorted(_reads(published.architecture) - published.kinds.keys() - _COMMON)


def draft(config_class: type) -> str:
    """A table's first class, by transformers' one. What may be 0, and null that the family has no meaning for, are left
    to the author."""
    from transformers import PreTrainedConfig

    kinds = {"int": "Size", "float": "Positive", "bool": "Flag", "str": "Text", "list[str]": "Texts",
             "list[int]": "Counts", "dict": "Object", "RopeParameters": "Object"}  # fmt: skip
    of_all = {field.name for field in dataclasses.fields(PreTrainedConfig)}
    lines = [f"class {config_class.__name__}:"]
    for field in dataclasses.fields(config_class):
        theirs = _type_of(field)
        named = dict.fromkeys(kinds[each] for each in sorted(theirs & kinds.keys(), key=list(kinds).index))
        kind = "Tokens" if field.name.endswith("_token_id") else " | ".join([*named, *["None"] * ("None" in theirs)])
        kind = kind.replace("Size | Positive", "Number")
        if field.name not in of_all:
            default = f'"{field.default}"' if isinstance(field.default, str) else field.default
            lines.append(f"    {field.name}: {kind} = {default}")
    return "\n".join(lines) + "\n"


@cache
def _reads(architecture: str) -> frozenset[str]:
    """Of the file that defines the class and those of its bases."""
    spec = importlib.util.find_spec("sglang")
    assert spec, "SGLang is not installed"
    folder = Path(str(spec.origin)).parent / "srt/models"
    [file] = [file for file in folder.glob("*.py") if f"class {architecture}(" in file.read_text(encoding="utf-8")]
    return frozenset(_optional(ast.parse(file.read_text(encoding="utf-8"))))


def _optional(tree: ast.AST) -> Iterator[str]:
    """Names in `getattr(config, "name", default)` and `hasattr(config, "name")`."""
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) > 1):
            continue
        name = node.args[1]
        of_config = ast.unparse(node.args[0]).removeprefix("self.") in ("config", "hf_config")
        if node.func.id in ("getattr", "hasattr") and of_config and isinstance(name, ast.Constant):
            yield str(name.value)


if __name__ == "__main__":
    from transformers import AutoConfig

    sys.stdout.write(draft(type(AutoConfig.for_model(sys.argv[1]))))
