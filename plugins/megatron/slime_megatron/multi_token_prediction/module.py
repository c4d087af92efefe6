"""Multi-token prediction: a layer that predicts the token after the next one (DeepSeek-AI 2024), arXiv 2412.19437.

Section 2.2, for prediction depth 1: h'_i = M [RMSNorm(h_i); RMSNorm(Emb(t_i+1))], through one decoder layer and a norm,
and with the output head of the main model to the distribution of t_i+2. h is the main model's output behind its final
norm, as engines draft with it.

The layer alone learns: the main model's output, its embeddings and its output head come without gradient.

Shape letter: t tokens of this rank, a share of them under sequence parallelism.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from megatron.core.models.common.embeddings.language_model_embedding import LanguageModelEmbedding
from megatron.core.tensor_parallel.layers import ColumnParallelLinear
from megatron.core.tensor_parallel.mappings import (
    gather_from_tensor_model_parallel_region,
    scatter_to_sequence_parallel_region,
)
from megatron.core.tensor_parallel.random import checkpoint
from megatron.core.transformer.multi_token_prediction import (
    MultiTokenPredictionBlock,
    MultiTokenPredictionBlockSubmodules,
    MultiTokenPredictionLayer,
    MultiTokenPredictionLayerSubmodules,
)
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.utils import make_viewless_tensor
from torch import Tensor

from slime_megatron.multi_token_prediction.loss import TokensAhead
from slime_megatron.train.model.linear import RMSNorm
from slime_megatron.train.model.packed.sequences import PackedSequences
from slime_megatron.train.model.policy import PolicyModel


def mtp_layer(config: TransformerConfig, layer: ModuleSpec, *, hidden_first: bool = False) -> ModuleSpec:
    """The prediction layer.

    Args:
        layer: the decoder layer inside.
        hidden_first: the projection takes [hidden state | embedding]; otherwise [embedding | hidden state].
    """
    submodules = MultiTokenPredictionLayerSubmodules(
        enorm=RMSNorm, hnorm=RMSNorm, eh_proj=ColumnParallelLinear, transformer_layer=layer, layer_norm=RMSNorm
    )
    return ModuleSpec(module=PredictionLayer, params={"hidden_first": hidden_first}, submodules=submodules)


class PredictionHead:
    """The layer on the last pipeline stage, an `ExtraHead`. It learns where `config.mtp_num_layers`; otherwise it is
    only there, frozen.

    Args:
        layer: see `mtp_layer`.
    """

    def __init__(self, layer: ModuleSpec) -> None:
        submodules = MultiTokenPredictionBlockSubmodules(layer_specs=[layer])
        self._block = ModuleSpec(module=MultiTokenPredictionBlock, submodules=submodules)

    def model_kwargs(self, config: TransformerConfig) -> Mapping[str, Any]:
        """One that learns is Megatron-core's own, which gives it embeddings."""
        return {"mtp_block_spec": self._block} if config.mtp_num_layers else {}

    def attach(self, model: PolicyModel) -> None:
        if not model.mtp_process:
            model.mtp = MultiTokenPredictionBlock(model.config, self._block, model.vp_stage).requires_grad_(False)

    def rows(self, model: PolicyModel, hidden: Tensor, packed: PackedSequences, rotary: Tensor | None) -> Tensor | None:
        """[1, t]: log-prob of the label after each."""
        ahead = TokensAhead.of(packed)
        if not (model.mtp_process and ahead):
            return None
        predicted = model.mtp.layers[0].predict(hidden, model.embedding, packed, ahead, rotary)
        return model.score(predicted, ahead.labels, with_head=False)[:1]


class PredictionLayer(MultiTokenPredictionLayer):  # type: ignore[misc]
    """Megatron-core's layer, given the tokens one ahead instead of shifting them, and cut off from the main model.

    Upstream shifts a pack by a loop over device tensors, between context-parallel ranks by messages in it; and its
    gradients go on into the main model. Parameters, their names and checkpoints are upstream's.
    """

    def __init__(self, config: TransformerConfig, *args: Any, hidden_first: bool = False, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        self.hidden_first = hidden_first

    def predict(
        self,
        hidden: Tensor,
        embedding: LanguageModelEmbedding,
        packed: PackedSequences,
        ahead: TokensAhead,
        rotary_pos_emb: Tensor | None,
    ) -> Tensor:
        """[t, 1, hidden_size] of the main model, behind its final norm -> the same shape: what the output head predicts
        from."""
        counted = copy.copy(packed)  # the same pass, in which a query counts as its prediction does
        counted.loss_weights = ahead.loss_weights
        counted.recorded = {}  # engines record nothing of this layer
        output: Tensor = self(
            input_ids=ahead.tokens,
            position_ids=torch.zeros_like(ahead.tokens),  # rotary families embed no positions
            hidden_states=hidden,
            attention_mask=None,
            rotary_pos_emb=rotary_pos_emb,
            packed_seq_params=counted,
            embedding=embedding,
        )[0]
        return output

    def _get_embeddings(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        embedding: LanguageModelEmbedding,
        hidden_states: Tensor,
        packed_seq_params: PackedSequences,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        is_copy = getattr(embedding.word_embeddings.weight, "shared", False)
        with torch.set_grad_enabled(is_copy):
            embedded = embedding(input_ids=input_ids, position_ids=position_ids)
        if is_copy:
            embedded = _Cut.apply(embedded)  # type: ignore[no-untyped-call]
        # Recomputation wants an input with a gradient; nobody reads this one's. Upstream's function returns what is no
        # view as it is, whatever it is told about gradients.
        hidden = make_viewless_tensor(hidden_states.detach(), requires_grad=True, keep_graph=False).requires_grad_()
        return input_ids, position_ids, embedded, hidden

    def _concat_embeddings(self, hidden_states: Tensor, decoder_input: Tensor) -> Tensor:
        """M [...; ...] of hidden states and embeddings, both [t, 1, hidden_size]."""
        normed = [self.enorm(decoder_input), self.hnorm(hidden_states)]
        projected, _ = self.eh_proj(torch.cat(normed[::-1] if self.hidden_first else normed, dim=-1))
        projected = gather_from_tensor_model_parallel_region(projected)
        output: Tensor = scatter_to_sequence_parallel_region(projected) if self.sequence_parallel else projected
        return output

    def _checkpointed_forward(
        self, forward_func: Callable[..., Tensor], *, hidden_states: Tensor, decoder_input: Tensor, **kwargs: Any
    ) -> Tensor:
        """Upstream's wants to save every argument, which only tensors can be."""
        function = partial(forward_func, **kwargs)
        output: Tensor = checkpoint(function, self.config.distribute_saved_activations, hidden_states, decoder_input)
        return output


class _Cut(torch.autograd.Function):
    """The same values, and a gradient of zeros.

    The copy of the embeddings on the last pipeline stage gets no other, and DDP waits for one of every parameter when
    it reduces them during the backward pass.
    """

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return torch.zeros_like(grads[0])
