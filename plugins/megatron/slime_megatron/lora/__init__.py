"""LoRA for slime (Hu et al. 2021): the adapters `lora`, chosen by `train.lora.rank`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from slime.hookspecs import hookimpl

if TYPE_CHECKING:
    from slime.config.schema import SlimeConfig, TrainConfig
    from slime.topology.adapters import Adapters


@hookimpl
def slime_adapters() -> Mapping[str, Callable[[TrainConfig], Adapters | None]]:
    return {"lora": _lora}


@hookimpl
def slime_config_schemas() -> Mapping[str, type]:
    from slime_megatron.lora.options import LoraTrain

    return {"adapter/lora": LoraTrain}


@hookimpl
def slime_check(cfg: SlimeConfig) -> Sequence[str]:
    from slime_megatron.lora.check import problems

    return list(problems(cfg))


def _lora(train: TrainConfig) -> Adapters | None:
    from slime_megatron.lora.adapters import LoraAdapters
    from slime_megatron.lora.options import LoraTrain

    return LoraAdapters(train.lora) if isinstance(train, LoraTrain) and train.lora.rank is not None else None
