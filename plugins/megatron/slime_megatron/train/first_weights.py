"""The weights that a run starts from, and those of its teacher: of an HF folder, or of a Megatron-core checkpoint."""

from __future__ import annotations

from functools import partial

from megatron_core_portable import cpu_stands_in_for_cuda
from slime.config.paths import resolve
from slime.errors import SlimeError
from slime.models.mapping import WeightMapping
from slime.weights.elsewhere import is_megatrons
from slime_megatron.train import checkpoint, reference
from slime_megatron.train.megatron import Model
from slime_megatron.train.weights.load import load_hf


def load_first(model: Model, mapping: WeightMapping, path: str, weights: str | None) -> None:
    """Collective: those of the Megatron-core checkpoint `weights`, or else of the HF folder `path`.

    Raises:
        SlimeError: what is there is damaged, of another model, or adapters for a model without any.
    """
    if weights is None:
        load_hf(model.modules, mapping, resolve(path))
        return
    if base := checkpoint.base_of(resolve(weights)):
        if model.adapters is None:
            todo = "Choose adapters as its run did, or take that run's export, into which they are merged."
            raise SlimeError("holds adapters and no model", where=f"model.weights={weights}", todo=todo)
        load_first(model, mapping, *base)
    with cpu_stands_in_for_cuda():
        checkpoint.load_weights(resolve(weights), model)


def load_teacher(model: Model, mapping: WeightMapping, path: str) -> reference.Weights:
    """Collective: those of either kind of folder, in host memory; the model's own stay bit for bit as they are."""
    weights = path if is_megatrons(resolve(path)) else None
    try:
        return reference.loaded_by(partial(load_first, model, mapping, path, weights), model.modules)
    except SlimeError as problem:
        raise problem.under("algo.teacher.path") from None
