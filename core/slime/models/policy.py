"""The policy: Megatron-core's GPTModel whose last stage answers with log-probs and entropies instead of logits."""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.models.gpt import GPTModel
from megatron.core.tensor_parallel.mappings import gather_from_sequence_parallel_region
from megatron.core.transformer.multi_token_prediction import MultiTokenPredictionBlock
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from slime.models.linear import device_of
from slime.models.mtp.module import mtp_block
from slime.models.output.logprob import logprobs_and_entropy, vocabulary_kernels
from slime.models.packed.attention import PackedSequences


class PolicyModel(GPTModel):  # type: ignore[misc]
    """With labels, the last pipeline stage returns [2, tokens]: log-prob of each label and entropy, in nats.

    In training a multi-token prediction layer adds a row, its log-prob of the label after each: [3, tokens]. Without
    labels the model returns logits, other stages return hidden states, all as GPTModel does. Parameter names are
    GPTModel's own.

    Args:
        chunk_tokens: tokens whose logits are alive at once.
        entropy_gradient: whether the entropy is part of the loss.
        mtp_spec: of the model's multi-token prediction layer, which lies on the last pipeline stage. It learns where
            `config.mtp_num_layers`; otherwise it is only there, frozen.

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
        mtp_spec: ModuleSpec | None = None,
        **kwargs: Any,
    ) -> None:
        block = mtp_block(mtp_spec) if mtp_spec and kwargs["post_process"] else None
        trained = block if config.mtp_num_layers else None  # Megatron-core gives it embeddings of its own
        super().__init__(config, layer_spec, parallel_output=True, mtp_block_spec=trained, **kwargs)
        if block and not trained:
            self.mtp = MultiTokenPredictionBlock(config, block, self.vp_stage).requires_grad_(False)
        self.chunk_tokens, self.entropy_gradient = chunk_tokens, entropy_gradient
        self.temperature = 1.0
        self.vocabulary_kernels = vocabulary_kernels(device_of(config))

    def _postprocess(self, hidden_states: Tensor, *args: Any, labels: Tensor | None = None, **kwargs: Any) -> Tensor:
        if not self.post_process:
            return hidden_states
        if labels is None:
            return self._logits(hidden_states)
        scores = self._score(hidden_states, labels)
        packed: PackedSequences = kwargs["packed_seq_params"]
        if not (self.mtp_process and packed.ahead and torch.is_grad_enabled()):
            return scores
        ahead = self.mtp.layers[0].predict(hidden_states, self.embedding, packed, kwargs["rotary_pos_emb"])
        return torch.cat([scores, self._score(ahead, packed.ahead.labels, with_head=False)[:1]])

    def _logits(self, hidden: Tensor) -> Tensor:
        """[1, tokens, vocabulary / tp]. Upstream's way there trains a prediction layer, for which it wants labels."""
        tied = self.share_embeddings_and_output_weights
        logits, _ = self.output_layer(hidden, weight=self.shared_embedding_or_output_weight() if tied else None)
        result: Tensor = logits.transpose(0, 1).contiguous()
        return result

    def _score(self, hidden: Tensor, labels: Tensor, *, with_head: bool = True) -> Tensor:
        """hidden [tokens (/ tp under sequence parallelism), 1, hidden size], labels [1, tokens] -> [2, tokens].

        Args:
            with_head: the output head gets its gradient; otherwise the hidden states alone do.
        """
        group = self.pg_collection.tp
        if self.config.sequence_parallel:
            # Every rank adds its part of the vocabulary to the hidden states' gradient: the backward sums them.
            hidden = gather_from_sequence_parallel_region(hidden, tensor_parallel_output_grad=True, group=group)
        tied = self.share_embeddings_and_output_weights
        weight = self.shared_embedding_or_output_weight() if tied else self.output_layer.weight
        # A tied weight gets a second gradient from the embedding, and autograd adds the two up.
        fused = self.config.gradient_accumulation_fusion and not tied and with_head
        return logprobs_and_entropy(
            hidden[:, 0],
            weight if with_head else weight.detach(),
            labels[0],
            chunk_tokens=self.chunk_tokens,
            entropy_gradient=self.entropy_gradient and with_head,
            group=group,
            kernels=self.vocabulary_kernels,
            temperature=self.temperature,
            main_grad=weight.main_grad if fused else None,
        )
