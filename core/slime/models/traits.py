"""What a building block asks of the code around the model: trainer, optimizer, packing. No torch.

Bridges state it (`slime.models.bridge.TraitsBridge`), so that nothing outside `slime.models` knows any block by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from slime.errors import SlimeError

if TYPE_CHECKING:
    import numpy as np
    from megatron.core.transformer.transformer_config import TransformerConfig
    from torch import Tensor

    from slime.config.schema import TrainConfig
    from slime.segments import Rows
    from slime.types import MicroBatch, TrainSample


class ExtraLoss(Protocol):
    """A loss beside the policy's, made of one more row of the model's scores. Shape letter: t tokens of this rank."""

    name: str
    """Name of the metric: the loss in nats, without its weight."""

    lookahead: int
    """Number of tokens after the next one that it predicts. Samples that share a prompt do not share that many more of
    its last tokens."""

    def prepare(
        self,
        packed: Any,
        micro: MicroBatch,
        local: Callable[[np.ndarray], Tensor],
    ) -> None:
        """Put into `packed.given` what the model reads for it, before a training pass.

        Args:
            packed: `slime_megatron.train.model.packed.sequences.PackedSequences`.
            local: from one number a token of the whole micro-batch to this rank's [t].
        """

    def of(self, row: Tensor, packed: Any) -> Tensor:
        """Scalar, weighted as the policy's loss is; row: [t], with gradient."""


class Recording(Protocol):
    """What engines tell of tokens. That of a block, which `train.routing_replay` or `observe.routing` asks for, is read
    by its layers in training, in `PackedSequences.recorded`; that of the hook `slime_recordings` is one number a token,
    for a metric and for objectives. No torch."""

    name: str
    """The name by which it is known on its way."""

    @property
    def server_fields(self) -> Mapping[str, Any]:
        """Fields of SGLang's `ServerArgs`, for an engine that notes it."""

    @property
    def request_fields(self) -> Mapping[str, Any]:
        """Fields of SGLang's request, for an answer that has it."""

    @property
    def megatron_fields(self) -> Mapping[str, Any]:
        """Fields of Megatron's config, for layers that read it."""

    @property
    def token_bytes(self) -> int:
        """What an engine keeps of a token of its pool, answers, and what travels to the trainers."""

    def read(self, meta: Mapping[str, Any], tokens: Sequence[int], before: Rows | None = None) -> Rows | None:
        """What the `meta_info` of an answer says of the first of these tokens; a row of zeros: nothing that could be
        replayed. None: it says nothing.

        Args:
            tokens: those that were asked to be continued, and those of the answer.
            before: what earlier answers said of the first of these tokens.

        Raises:
            SlimeError: it cannot be about these tokens of this model.
        """

    def problems(self, megatron: Mapping[str, Any], sglang: Mapping[str, Any]) -> Iterable[str]:
        """Why it cannot be with these fields of an engine group and of `train.megatron`: ends of a sentence."""


class Reference(Protocol):
    """A block's weights and its loss by another implementation, for `slime_testing` alone."""

    def completed(self, model: Any, hf: Mapping[str, Any]) -> Any:
        """transformers' model of a config.json with the weights of the block, where its class lacks them."""

    def loss_and_gradients(
        self, hf: Mapping[str, Any], batch: Sequence[TrainSample]
    ) -> tuple[float, Mapping[str, Any]]:
        """Of `slime_testing.models.random_model`: the extra loss, as a mean over the batch's loss tokens, and its
        gradients by HF name, as NumPy arrays."""


@dataclass(frozen=True)
class Traits:
    """What one building block asks of the trainer.

    Attributes:
        name: in messages.
        learns_by: the key of the config that lets the block learn, by a value that is not 0. Without it the block is
            there, but frozen. Empty: it learns with the model.
        while_frozen: keywords of Megatron's config that are other ones then.
        config_class: gives the class of Megatron's config that the block's keywords belong to.
        head: from Megatron's config to what the block adds behind the last layer
            (`slime_megatron.train.model.policy.ExtraHead`).
        contiguous: a context-parallel rank gets one run of a sequence. Otherwise it gets an early and a late one, as
            queries cost the more the later they stand.
        refused: fields of Megatron's config that may not be set, and what they would mean.
        extra_loss: gives the loss by which the block learns, weighted by the value of `learns_by`.
        layer_losses: names of the losses that its layers add (`slime_megatron.train.model.layer_losses`).
        reference: `module:class` of a `Reference` that `slime_testing` compares the block with, if it has a loss.
        recording: what engines note for its layers.
        shares_prompts: its layers heed `slime_megatron.train.model.packed.sequences.PackedSequences.prefixes`.
            Otherwise they need every sequence whole.
    """

    name: str
    learns_by: str = ""
    while_frozen: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    config_class: Callable[[], type] | None = None
    head: Callable[[TransformerConfig], Any] | None = None
    contiguous: bool = False
    refused: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    extra_loss: Callable[[], ExtraLoss] | None = None
    layer_losses: tuple[str, ...] = ()
    reference: str = ""
    recording: Recording | None = None
    shares_prompts: bool = False

    def coefficient(self, train: TrainConfig) -> float:
        """The value of `learns_by`; 0 where it is not set."""
        return coefficient_of(train, self.learns_by) if self.learns_by else 0.0

    def needs_whole(self, train: TrainConfig) -> bool:
        """Whether sequences may not share a prompt's rows. A block with an extra loss is there for that loss alone."""
        return not self.shares_prompts and (self.extra_loss is None or bool(self.coefficient(train)))


def coefficient_of(train: TrainConfig, key: str) -> float:
    """The value of such a key, `train.<name>` or `train.megatron.<name>`; 0 where it is not set."""
    *_, section, name = key.split(".")
    value = train.megatron.get(name) if section == "megatron" else getattr(train, name)
    return float(value or 0)


def extra_losses(train: TrainConfig, traits: Iterable[Traits]) -> list[tuple[ExtraLoss, float]]:
    """The extra losses of the blocks that learn, each with its coefficient, in the order of the rows of scores."""
    found = [(trait.extra_loss, trait.coefficient(train)) for trait in traits if trait.extra_loss]
    return [(make(), coefficient) for make, coefficient in found if coefficient]


def obstacle_to_sharing(train: TrainConfig, traits: Iterable[Traits], cp: int) -> str | None:
    """What needs sequences whole where `train.share_prompts` has them share a prompt's rows; None: nothing does."""
    if cp > 1:
        return "context parallelism"
    return next((trait.name for trait in traits if trait.needs_whole(train)), None)


WORTH_SHARING = 0.8
"""Of a step's tokens, the most that sharing may leave to pay on GPUs. On an H200 a step of a dense model took 0.48 and
0.83 of its time where it left 0.42 and 0.78, one of a mixture of experts 0.57 where it left 0.42 (train-h200.md)."""


def share_below(train: TrainConfig, *, on_gpus: bool, obstacle: str | None) -> float:
    """Samples of an optimizer step share the tokens that they begin with where that leaves at most this share of them;
    0: never."""
    if train.share_prompts is not None:
        return float(train.share_prompts)
    return 0.0 if obstacle else WORTH_SHARING if on_gpus else 1.0


def sharing_problem(obstacle: str) -> SlimeError:
    """The one line about `obstacle_to_sharing`."""
    todo = "Leave it empty, or set it to false."
    return SlimeError(f"{obstacle} needs every sequence whole", where="train.share_prompts", todo=todo)
