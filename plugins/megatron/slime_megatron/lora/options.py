"""The keys of `train` that LoRA adds."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from slime.config.declare import Bound, key
from slime.config.train import TrainConfig


class Published(enum.Enum):
    """What engines get of adapters."""

    merged = "merged"
    adapters = "adapters"


@dataclass
class LoraConfig:
    rank: int | None = key(None, Bound(1, 4096), known_as="actor.lora_rank model.lora_rank lora_rank lora_r r")
    """Rows of A and columns of B of every adapter, which learn in the place of the model's weights; empty: the model
    itself learns."""
    alpha: float = key(32.0, Bound(0, 10**6, strict=True), known_as="model.lora_alpha lora_alpha")
    """An adapter adds alpha / rank times B A to the weight of its layer."""
    targets: list[str] = key(make=list, known_as="model.target_modules target_modules")
    """Linear layers that get an adapter, by the last part of their name in the checkpoint, as PEFT's `target_modules`:
    q_proj, down_proj, ...; empty: all of attention, dense MLPs and shared experts, and of routed experts if these have
    a rank."""
    expert_rank: int | None = key(None, Bound(1, 4096))
    """The rank of adapters of routed experts, each of which has its own and adds alpha / expert_rank times B A. A first
    choice is rank over the experts that a token goes to; empty: routed experts have none."""
    publish: Published = key(Published.merged)
    """merged: engines get W + alpha / rank B A, as many bytes as in full training. adapters: they get A and B, and W
    once; they compute both products of every layer."""


@dataclass
class LoraTrain(TrainConfig):
    lora: LoraConfig = field(default_factory=LoraConfig)
