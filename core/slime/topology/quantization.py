"""How engines hold weights in fewer bits than they are trained in: what a plugin implements (hook
`slime_quantizations`), and what a run has chosen. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from slime import plugins
from slime.config.hf import QUANTIZATION, config_folder, read_hf_config
from slime.config.schema import ModelConfig, RolloutConfig
from slime.errors import SlimeError
from slime.topology.engines import EngineGroup, sampling_groups

_OF_THE_FOLDER = frozenset(
    {QUANTIZATION, "_name_or_path", "dtype", "torch_dtype", "transformers_version", "architectures"}
)
"""Keys of a config.json that may differ between a trained and a quantised folder of one model."""


class Part(NamedTuple):
    """A tensor that an engine gets in place of a matrix, or beside it.

    Attributes:
        ending: of its name, behind that of the matrix; of the first part it is empty.
        dtype: torch's name of it, such as `float8_e4m3fn`.
    """

    ending: str
    shape: tuple[int, ...]
    dtype: str


@runtime_checkable
class WeightFormat(Protocol):
    """How the engines of a run hold weights. It keeps nothing between calls, and must not import torch."""

    @property
    def block(self) -> tuple[int, int]:
        """Rows and columns of a matrix that are quantised without a look at the rest, counted from its first row and
        column; those at the end may be fewer. A rank quantises its shard itself where that is whole blocks."""

    @property
    def bytes_a_weight(self) -> float:
        """Bytes of a quantised matrix in an engine, all parts together, for each of its elements."""

    @property
    def quantizer(self) -> str:
        """`module:name` of what makes a `slime.weights.quantized.Quantizer` of this format."""

    def to_config(self) -> Mapping[str, Any]:
        """The `quantization_config` that the engines read."""

    def is_quantized(self, name: str, shape: Sequence[int]) -> bool:
        """Whether engines get the tensor of this name in a checkpoint quantised."""

    def parts(self, shape: Sequence[int]) -> Sequence[Part]:
        """What engines get for a matrix, or for some of its rows or columns in whole blocks, perhaps none."""

    def problems(self, group: EngineGroup, model: Mapping[str, Any]) -> Iterable[SlimeError]:
        """Why engines of this group cannot hold the model so.

        Args:
            model: keywords of Megatron's TransformerConfig.
        """


@runtime_checkable
class Quantization(Protocol):
    """A kind of formats. The key `rollout.<name>` chooses it; its value is one of the presets, or an HF folder whose
    config.json says the format."""

    @property
    def presets(self) -> Mapping[str, Mapping[str, Any]]:
        """By value of the key, the `quantization_config` that it stands for; the first is proposed in errors."""

    @property
    def logprob_alarm(self) -> float:
        """`observe.logprob_alarm` where the run does not set it: nats a token."""

    def read(self, config: Mapping[str, Any], where: str) -> WeightFormat:
        """What a `quantization_config` says.

        Args:
            where: the key that it comes from, for the message.

        Raises:
            SlimeError: it is of another kind, or one that running engines take no new weights in.
        """


def choices(rollout: RolloutConfig) -> dict[str, str]:
    """The keys of installed quantizations that a run sets, with their values."""
    values = {f"rollout.{name}": getattr(rollout, name, None) for name in plugins.load().quantizations.names()}
    return {key: value for key, value in values.items() if value is not None}


def quantizes(rollout: RolloutConfig) -> bool:
    """Whether engines hold weights or KV caches in less than 16 bits."""
    fields = [rollout.sglang, *(group.sglang for group in sampling_groups(rollout).values())]
    cache = [str(each.get("kv_cache_dtype")) for each in fields]
    asks = any(each.get("quantization") for each in fields) or any(dtype.startswith("fp") for dtype in cache)
    return bool(choices(rollout)) or asks


def quantization_of(key: str) -> Quantization:
    """What the key of a quantization chooses."""
    found: Quantization = plugins.load().quantizations.create(key.removeprefix("rollout."))
    return found


def folders(rollout: RolloutConfig) -> dict[str, str]:
    """The keys of quantizations that name an HF folder."""
    return {key: value for key, value in choices(rollout).items() if value not in quantization_of(key).presets}


def weight_format(model: ModelConfig, rollout: RolloutConfig) -> WeightFormat | None:
    """How engines hold weights; None: as they are trained.

    Raises:
        SlimeError: two quantizations are chosen; or a folder has no `quantization_config`, one that engines cannot be
            published to, or belongs to another model.
    """
    chosen = choices(rollout)
    if not chosen:
        return None
    (key, value), *others = chosen.items()
    if others:
        todo = "Remove one of the two."
        raise SlimeError(f"is set, and so is {key}: engines hold weights in one format", where=others[0][0], todo=todo)
    quantization = quantization_of(key)
    if value in quantization.presets:
        return quantization.read(quantization.presets[value], key)
    return quantization.read(_config_of(key, value, model, preset=next(iter(quantization.presets))), f"{key}={value}")


def _config_of(key: str, folder: str, model: ModelConfig, preset: str) -> Mapping[str, Any]:
    """The `quantization_config` of a folder of the trained model."""
    try:
        hf = read_hf_config(folder)
    except SlimeError as problem:
        raise problem.under(key) from problem
    trained, where = read_hf_config(config_folder(model)), f"{key}={folder}"
    for name in sorted(hf.keys() & trained.keys() - _OF_THE_FOLDER):
        if hf[name] != trained[name]:
            what = f"its config.json has '{name}: {hf[name]}', that of the trained model {trained[name]}"
            raise SlimeError(what, where=where, todo=f"Name a quantised folder of that model, or '{preset}'.")
    if not hf.get(QUANTIZATION):
        raise SlimeError(f"its config.json has no '{QUANTIZATION}'", where=where, todo=f"Set {key}={preset}.")
    config: Mapping[str, Any] = hf[QUANTIZATION]
    return config
