"""The policy: Megatron-core's GPTModel whose last stage answers with log-probs and entropies instead of logits."""

from __future__ import annotations

from typing import Any

from megatron.core.models.gpt import GPTModel
from megatron.core.tensor_parallel.mappings import gather_from_sequence_parallel_region
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from slime.train.logprob import logprobs_and_entropy, vocabulary_kernels
from slime.train.specs.linear import device_of


class PolicyModel(GPTModel):  # type: ignore[misc]
    """With labels, the last pipeline stage returns [2, tokens]: log-prob of each label and entropy, in nats.

    Without labels it returns logits, other stages return hidden states, all as GPTModel does. Parameter names are
    GPTModel's own.

    Args:
        chunk_tokens: tokens whose logits are alive at once.
        entropy_gradient: whether the entropy is part of the loss.

    Attributes:
        temperature: the scored distribution is softmax(logits / temperature); 1 until the trainer sets it.
    """

    def __init__(
        self,
        config: TransformerConfig,
        layer_spec: ModuleSpec,
        *,
        chunk_tokens: int,
        entropy_gradient: bool,
        **kwargs: Any,
    ) -> None:
        super().__init__(config, layer_spec, parallel_output=True, **kwargs)
        self.chunk_tokens, self.entropy_gradient = chunk_tokens, entropy_gradient
        self.temperature = 1.0
        self.vocabulary_kernels = vocabulary_kernels(device_of(config))

    def _postprocess(self, hidden_states: Tensor, *args: Any, labels: Tensor | None = None, **kwargs: Any) -> Tensor:
        if labels is None or not self.post_process:
            result: Tensor = super()._postprocess(hidden_states, *args, labels=labels, **kwargs)
            return result
        return self._score(hidden_states, labels)

    def _score(self, hidden: Tensor, labels: Tensor) -> Tensor:
        """hidden [tokens (/ tp under sequence parallelism), 1, hidden size], labels [1, tokens] -> [2, tokens]."""
        group = self.pg_collection.tp
        if self.config.sequence_parallel:
            # Every rank adds its part of the vocabulary to the hidden states' gradient: the backward sums them.
            hidden = gather_from_sequence_parallel_region(hidden, tensor_parallel_output_grad=True, group=group)
        tied = self.share_embeddings_and_output_weights
        weight = self.shared_embedding_or_output_weight() if tied else self.output_layer.weight
        # A tied weight gets a second gradient from the embedding, and autograd adds the two up.
        fused = self.config.gradient_accumulation_fusion and not tied
        return logprobs_and_entropy(
            hidden[:, 0],
            weight,
            labels[0],
            chunk_tokens=self.chunk_tokens,
            entropy_gradient=self.entropy_gradient,
            group=group,
            kernels=self.vocabulary_kernels,
            temperature=self.temperature,
            main_grad=weight.main_grad if fused else None,
        )
