"""What slime asks of LoRA (`slime.topology.adapters.Adapters`). No torch but where it is called for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slime.models.mapping import WeightMapping
from slime_megatron.lora.engines import engine_fields
from slime_megatron.lora.options import LoraConfig, Published
from slime_megatron.lora.targets import adapter_rules, layers_of_experts, layers_with_adapters, require_known

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True)
class LoraAdapters:
    """Of a run with `train.lora.rank`."""

    options: LoraConfig

    @property
    def rank(self) -> int:
        assert self.options.rank is not None, "only then there are adapters"
        return self.options.rank

    @property
    def in_words(self) -> str:
        of_experts = self.options.expert_rank
        on = ", ".join(self.options.targets) or f"all linear layers{'' if of_experts else ' but routed experts'}"
        beside = "" if self.scale_beside is None else ", beside the weights of engines"
        rank = f"{self.rank}{f', of routed experts {of_experts}' if of_experts else ''}"
        return f"LoRA of rank {rank}, alpha {self.options.alpha:g}, on {on}{beside}"

    @property
    def scale_beside(self) -> float | None:
        return self.options.alpha / self.rank if self.options.publish is Published.adapters else None

    def engine_fields(self, base: WeightMapping, *, on_gpus: bool) -> Mapping[str, Any]:
        return engine_fields(self.rank, layers_with_adapters(base, self.options), on_gpus=on_gpus)

    def mapping(self, base: WeightMapping) -> WeightMapping:
        require_known(base, self.options)
        return WeightMapping(adapter_rules(base, self.options), base.num_layers, base.num_experts, adapts=True)

    def attach(self, modules: Sequence[nn.Module], base: WeightMapping, seed: int) -> None:
        from slime_megatron.lora.attach import attach

        require_known(base, self.options)
        attach(modules, base, self.options, seed)

    def save(self, tensors: Iterable[tuple[str, Tensor]], folder: Path, base: WeightMapping, model: str) -> None:
        from slime_megatron.lora.peft_folder import write

        write(dict(tensors), folder, self.options, model, layers_of_experts(base))
