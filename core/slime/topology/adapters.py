"""Adapters: small weights that learn while the model's own stay as they are. What a plugin implements (hook
`slime_adapters`), and what a run has chosen. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from slime import plugins
from slime.config.hf import config_folder, read_hf_config
from slime.config.schema import ModelConfig
from slime.config.train import TrainConfig
from slime.errors import SlimeError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from slime.models.mapping import WeightMapping


@runtime_checkable
class Adapters(Protocol):
    """One kind of adapters with its options. Everything but `attach` and `save` must not import torch."""

    @property
    def in_words(self) -> str:
        """The options, for the plan."""

    @property
    def scale_beside(self) -> float | None:
        """By what engines multiply the products of A and B, which they get as they are; None: they get merged
        weights."""

    def engine_fields(self, base: WeightMapping, *, on_gpus: bool) -> Mapping[str, Any]:
        """Fields of SGLang's `ServerArgs` with which engines have room for them; `base`: of the model."""

    def mapping(self, base: WeightMapping) -> WeightMapping:
        """The table of the adapters' parameters (`WeightMapping.adapts`); its HF names are those of their own files.

        Args:
            base: of the model.

        Raises:
            SlimeError: the options name no layer of the model.
        """

    def attach(self, modules: Sequence[nn.Module], base: WeightMapping, seed: int) -> None:
        """Freeze all parameters, and add those of the adapters to the layers, with the mark `of_adapter`.

        A layer whose weight is published with something added is an `Adapted` of `slime_megatron.train.model.linear`.
        At first the model computes what it computes without them. First values depend on `seed` and names alone, not on
        the layout.

        Args:
            modules: the rank's model chunks, in the precision that they are made in; perhaps on the meta device.
        """

    def save(self, tensors: Iterable[tuple[str, Tensor]], folder: Path, base: WeightMapping, model: str) -> None:
        """Write the adapters in the form in which other programs read them.

        Args:
            tensors: whole, by HF name.
            folder: an empty one.
            base: the table of the model.
            model: its HF folder.
        """


def adapters_of(train: TrainConfig) -> Adapters | None:
    """The adapters that the keys of `train` choose; None: all weights learn.

    Raises:
        SlimeError: two kinds are chosen.
    """
    made = {item.name: item.factory(train) for item in plugins.load().adapters}
    chosen = {name: adapters for name, adapters in made.items() if adapters is not None}
    if len(chosen) > 1:
        first, second = list(chosen)[:2]
        what = f"is set, and so is train.{first}: a model has one kind of adapters"
        raise SlimeError(what, where=f"train.{second}", todo="Remove one of the two.")
    return next(iter(chosen.values()), None)


def adapters_beside(train: TrainConfig) -> Adapters | None:
    """The adapters that engines get as they are; None if there are none, or engines get merged weights."""
    adapters = adapters_of(train)
    return adapters if adapters and adapters.scale_beside is not None else None


def adapter_fields(model: ModelConfig, train: TrainConfig, *, on_gpus: bool) -> Mapping[str, Any]:
    """Fields of engines that get adapters as they are, not merged.

    Raises:
        SlimeError: the model cannot be read.
    """
    if not (adapters := adapters_beside(train)):
        return {}
    hf = read_hf_config(config_folder(model), model.num_layers)
    return adapters.engine_fields(plugins.load().models.create(model.family).weight_mapping(hf), on_gpus=on_gpus)
