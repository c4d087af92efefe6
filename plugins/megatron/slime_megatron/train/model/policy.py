"""The policy: Megatron-core's GPTModel whose last stage answers with log-probs and entropies instead of logits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from megatron.core.models.gpt import GPTModel
from megatron.core.tensor_parallel.mappings import gather_from_sequence_parallel_region
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from batch_invariant.passes import forward_pass
from slime_megatron.train.model.invariant import InvariantKernels, check_layers
from slime_megatron.train.model.linear import device_of
from slime_megatron.train.model.packed.sequences import PackedSequences
from vocabulary_logprobs.kept import renormalised
from vocabulary_logprobs.logprob import logprobs_and_entropy, top_logprobs, vocabulary_kernels


class ExtraHead(Protocol):
    """A part of the model behind its last layer. Shape letters: s tokens of a rank's sequence shard, t of its
    context-parallel rank."""

    def model_kwargs(self, config: TransformerConfig) -> Mapping[str, Any]:
        """Keywords of Megatron's `GPTModel` on the last pipeline stage."""

    def attach(self, model: PolicyModel) -> None:
        """Add to the model of the last pipeline stage what Megatron has not made of those keywords."""

    def rows(self, model: PolicyModel, hidden: Tensor, packed: PackedSequences, rotary: Tensor | None) -> Tensor | None:
        """[1, t] that the block's `slime.models.traits.ExtraLoss` is made of; None where the block is not trained.

        Args:
            hidden: [s, 1, hidden_size] the model's output behind its final norm.
            rotary: as the model's layers get it.
        """


@contextmanager
def most_probable(modules: Sequence[PolicyModel], k: int | None) -> Iterator[None]:
    """Inside, they answer with the k most probable tokens (`PolicyModel.top`); None: with what they always do."""
    for module in modules:
        module.top = k
    try:
        yield
    finally:
        for module in modules:
            module.top = None


class PolicyModel(GPTModel):  # type: ignore[misc]
    """With labels, the last pipeline stage returns [2, tokens]: log-prob of each label and entropy, in nats. Behind
    them come the log-probs of further tokens, where labels have more rows than one.

    In training the blocks that learn by extra losses add their rows behind these. Without labels the model returns
    logits, other stages return hidden states, all as GPTModel does. Parameter names are GPTModel's own.

    Args:
        chunk_tokens: tokens whose logits are alive at once.
        fp32_logits: log-probs and entropies are made of logits in fp32 (`logprobs_and_entropy`).
        batch_invariant: the forward pass is made of the operators that engines have (`model.batch_invariant`).
        heads: what blocks of the model add behind the last layer (`slime.models.traits.Traits.head`).

    Attributes:
        entropy_gradient: whether the entropies have one; True until the trainer sets it.
        temperature: the scored distribution is softmax(logits / temperature); 1 until the trainer sets it.
        top: k, where not the labels are asked for, but the most probable tokens of each place: then the last stage
            returns [2, tokens, k], their ids and log-probs. Ids are exact up to 2^24 in fp32.
    """

    def __init__(
        self,
        config: TransformerConfig,
        layer_spec: ModuleSpec,
        *,
        chunk_tokens: int,
        fp32_logits: bool = False,
        batch_invariant: bool = False,
        heads: Sequence[ExtraHead] = (),
        **kwargs: Any,
    ) -> None:
        last_heads = tuple(heads) if kwargs["post_process"] else ()
        for head in last_heads:
            kwargs |= head.model_kwargs(config)
        super().__init__(config, layer_spec, parallel_output=True, **kwargs)
        self.heads = last_heads
        for head in self.heads:
            head.attach(self)
        self.chunk_tokens, self.fp32_logits, self.entropy_gradient = chunk_tokens, fp32_logits, True
        self.temperature = 1.0
        self.top: int | None = None
        self.vocabulary_kernels = vocabulary_kernels(device_of(config))
        self.batch_invariant = batch_invariant
        if batch_invariant:
            check_layers(self)
            if device_of(config).type == "cpu":
                self.vocabulary_kernels = InvariantKernels()

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """As upstream."""
        with forward_pass(self.batch_invariant):
            result: Tensor = super().forward(*args, **kwargs)
            return result

    def _postprocess(self, hidden_states: Tensor, *args: Any, labels: Tensor | None = None, **kwargs: Any) -> Tensor:
        if not self.post_process:
            return hidden_states
        if labels is None:
            return self._logits(hidden_states)
        if self.top is not None:
            return self._most_probable(hidden_states, self.top)
        scores = self._score_kept(hidden_states, labels, kwargs["packed_seq_params"].kept)
        if not (self.heads and torch.is_grad_enabled()):
            return scores
        given = (self, hidden_states, kwargs["packed_seq_params"], kwargs["rotary_pos_emb"])
        added = [rows for head in self.heads if (rows := head.rows(*given)) is not None]
        return torch.cat([scores, *added]) if added else scores

    def _logits(self, hidden: Tensor) -> Tensor:
        """[1, tokens, vocabulary / tp], in the model's precision. Upstream's way there wants labels where a head is
        trained by them."""
        tied = self.share_embeddings_and_output_weights
        logits, _ = self.output_layer(hidden, weight=self.shared_embedding_or_output_weight() if tied else None)
        result: Tensor = logits.transpose(0, 1).contiguous()
        return result

    def _score_kept(self, hidden: Tensor, labels: Tensor, kept: Tensor | None) -> Tensor:
        """`score` under the distribution that samples are drawn from: of the tokens `kept` [t, k] alone."""
        if kept is None:
            return self.score(hidden, labels)
        assert len(labels) == 1, "further tokens have no log-prob among those that were kept"
        ids = kept.t().long() - 1
        return renormalised(self.score(hidden, torch.cat([labels, ids])), ids >= 0)

    def score(self, hidden: Tensor, labels: Tensor, *, with_head: bool = True) -> Tensor:
        """hidden [tokens (/ tp under sequence parallelism), 1, hidden size], labels [1 + k, tokens] -> [2 + k, tokens].

        Args:
            with_head: the output head gets its gradient; otherwise the hidden states alone do.
        """
        rows, weight = self._rows_and_weight(hidden)
        # A tied weight gets a second gradient from the embedding, and autograd adds the two up.
        tied = self.share_embeddings_and_output_weights
        fused = self.config.gradient_accumulation_fusion and not tied and with_head and weight.requires_grad
        return logprobs_and_entropy(
            rows,
            weight if with_head else weight.detach(),
            labels[0],
            chunk_tokens=self.chunk_tokens,
            entropy_gradient=self.entropy_gradient and with_head,
            group=self.pg_collection.tp,
            kernels=self.vocabulary_kernels,
            temperature=self.temperature,
            main_grad=weight.main_grad if fused else None,
            others=labels[1:] if len(labels) > 1 else None,
            fp32_logits=self.fp32_logits,
        )

    def _most_probable(self, hidden: Tensor, k: int) -> Tensor:
        options = {"chunk_tokens": self.chunk_tokens, "group": self.pg_collection.tp}
        options |= {"kernels": self.vocabulary_kernels, "temperature": self.temperature}
        options |= {"fp32_logits": self.fp32_logits}
        ids, logprobs = top_logprobs(*self._rows_and_weight(hidden), k, **options)
        return torch.stack([ids.to(logprobs), logprobs])

    def _rows_and_weight(self, hidden: Tensor) -> tuple[Tensor, Any]:
        """All [tokens, hidden size] of the context-parallel rank, and this rank's rows of the output head."""
        if self.config.sequence_parallel:
            # Every rank adds its part of the vocabulary to the hidden states' gradient: the backward sums them.
            options = {"tensor_parallel_output_grad": True, "group": self.pg_collection.tp}
            hidden = gather_from_sequence_parallel_region(hidden, **options)
        tied = self.share_embeddings_and_output_weights
        return hidden[:, 0], self.shared_embedding_or_output_weight() if tied else self.output_layer.weight
