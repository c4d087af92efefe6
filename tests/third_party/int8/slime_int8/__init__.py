"""The quantization `int8`: a row of a matrix has an fp32 scale, value = weight x scale."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slime.config.schema import RolloutConfig
from slime.errors import SlimeError
from slime.hookspecs import hookimpl
from slime.topology.quantization import Part, Quantization

WHOLE = 1 << 30
METHOD = "w8a8_int8"


@dataclass
class Int8Rollout(RolloutConfig):
    int8: str | None = None
    """row: engines hold the weights in INT8 with a scale a row."""


class Int8Format:
    block = (1, WHOLE)
    bytes_a_weight = 1.01
    quantizer = "slime_int8.quantizer:Int8Quantizer"

    def to_config(self) -> Mapping[str, Any]:
        return {"quant_method": METHOD}

    def is_quantized(self, name: str, shape: Sequence[int]) -> bool:
        return len(shape) == 2 and "_proj." in name

    def parts(self, shape: Sequence[int]) -> Sequence[Part]:
        rows, columns = shape
        return [Part("", (rows, columns), "int8"), Part("_scale", (rows, 1), "float32")]

    def problems(self, group, model) -> Iterator[SlimeError]:
        if group.sglang.get("cpu_offload_gb"):
            yield SlimeError("is set", where=group.home_of("cpu_offload_gb"), todo="Remove it.")


class Int8:
    presets = {"row": {"quant_method": METHOD}}
    logprob_alarm = 0.3

    def read(self, config: Mapping[str, Any], where: str) -> Int8Format:
        if config["quant_method"] != METHOD:
            raise SlimeError(f"is no {METHOD}", where=where, todo="Set it to 'row'.")
        return Int8Format()


@hookimpl
def slime_quantizations() -> Mapping[str, Callable[[], Quantization]]:
    return {"int8": Int8}


@hookimpl
def slime_config_schemas() -> Mapping[str, type]:
    return {"quantization/int8": Int8Rollout}
