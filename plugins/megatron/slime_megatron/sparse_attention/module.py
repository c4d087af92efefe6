"""Sparse latent attention (DSA): an indexer chooses keys, latent attention attends to those alone.

(DeepSeek-AI 2025), "DeepSeek-V3.2: Pushing the Frontier of Open Large Language Models", section 2.1; layers that
share what was chosen: arXiv 2603.12201. The up projections of keys and values are absorbed into queries and output
(arXiv 2405.04434, section 2.1.2), so that a key is one latent vector for all heads, and context parallelism gathers
latents and index keys only. For the attention itself tensor-parallel ranks trade their heads of all tokens for all
heads of their tokens (as arXiv 2309.14509 does for another reason): a chosen key is fetched once for all heads.

Queries that see no more keys than would be chosen attend to all of them, by the kernels of dense attention: see
`.split`. Their keys and values are of the heads' own, and nothing is traded.

Shape letters: s tokens of a rank's sequence shard, t of its context-parallel rank, T of the pack; h heads of this
tensor-parallel rank, H of all of them; n what a rank has of traded tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel.mappings import (
    all_to_all_hp2sp,
    all_to_all_sp2hp,
    gather_from_sequence_parallel_region,
)
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import get_num_layers_to_build
from megatron.core.transformer.transformer_layer import get_transformer_layer_offset
from torch import Tensor

from slime.errors import SlimeError
from slime_megatron.latent_attention.module import ReplicatedDownMLA, submodules
from slime_megatron.sparse_attention import INDEXER_LOSS
from slime_megatron.sparse_attention.config import SparseLatentConfig
from slime_megatron.sparse_attention.indexer import Indexer, IndexQueries, select_keys
from slime_megatron.sparse_attention.indexer_loss import AttentionTarget, IndexerLoss, add_indexer_loss
from slime_megatron.sparse_attention.sparse_attention import sparse_attention
from slime_megatron.sparse_attention.split import Split
from slime_megatron.train.model.layer_losses import add_layer_loss
from slime_megatron.train.model.linear import device_of, whole_weight
from slime_megatron.train.model.packed.context_parallel import slice_rows
from slime_megatron.train.model.packed.sequences import PackedSequences, TakesPrefixes
from slime_megatron.transformer.attention.causal import causal_attention
from slime_megatron.transformer.attention.core import CAUSAL
from slime_megatron.transformer.rotary.module import RotaryTable


@dataclass
class SharedKeys:
    """What layers share in one pass through a pipeline stage, by the number of the layer that chose the keys.

    Attributes:
        selected: rows of the pack int32, [s, topk] where an indexer learns; else of the queries that see more than
            `topk` keys alone.
        targets: in a training pass, what the indexer of such a layer learns from all that share its choice.
        split: of this rank's queries, the same in all layers.
    """

    selected: dict[int, Tensor] = field(default_factory=dict)
    targets: dict[int, AttentionTarget] = field(default_factory=dict)
    split: Split | None = None


def sparse_latent_attention() -> ModuleSpec:
    """Sparse latent attention, of a decoder layer (`check_stage`) or a prediction layer."""
    return ModuleSpec(module=SparseLatentAttention, params=CAUSAL, submodules=submodules(IdentityOp))


def check_stage(config: SparseLatentConfig, vp_stage: int | None) -> None:
    """Raises SlimeError: a pipeline stage starts on a layer that reuses the keys of a layer in another stage."""
    first = get_transformer_layer_offset(config, vp_stage=vp_stage)
    if get_num_layers_to_build(config, vp_stage=vp_stage) and not config.dsa_indexer_layers[first]:
        raise SlimeError(
            f"a pipeline stage starts on layer {first} (counted from 0), which reuses the keys that layer "
            f"{config.source_layer(first + 1) - 1} chooses in another stage",
            where="train.megatron.pipeline_model_parallel_size",
            todo="Give train.megatron.pipeline_model_parallel_layout with stages that start on choosing layers.",
        )


class SparseLatentAttention(ReplicatedDownMLA, TakesPrefixes):
    """Latent attention to the keys that this layer's indexer, or that of the latest layer which has one, chooses."""

    def __init__(self, config: SparseLatentConfig, submodules: Any, layer_number: int, *args: Any, **kwargs: Any):
        super().__init__(config, submodules, layer_number, *args, **kwargs)
        assert config.q_lora_rank, "index queries are made of the compressed queries"
        self.source_layer = config.source_layer(layer_number)
        self.indexer = Indexer(config) if self.source_layer == layer_number else None
        if self.checkpoint_core_attention or self.recompute_up_proj:
            raise SlimeError(
                "sparse attention has no part that could be computed again by itself",
                where="train.megatron.recompute_modules",
                todo="Leave out core_attn and mla_up_proj, or set train.megatron.recompute_granularity=full.",
            )
        groups = kwargs.get("pg_collection") or ProcessGroupCollection.use_mpu_process_groups()
        self.cp_group, self.shard_group = groups.cp, groups.tp
        self.attend = causal_attention(device_of(config), config.params_dtype)

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None, *, packed_seq_params: PackedSequences, **_: Any
    ) -> tuple[Tensor, None]:
        """hidden_states [s, 1, hidden_size] -> the same shape, and no bias."""
        packed, hidden = packed_seq_params, hidden_states[:, 0]
        split, table = self._split(packed), self.rotary_table(packed)
        own = table.part(*self._shard(packed))
        query_latent = self.down_queries(hidden)
        plain, turned = self.up_queries(query_latent, table)
        latents = self._latents(hidden, own, packed)
        index = self._index(hidden, query_latent, own, packed)
        selected = self._selected(index, split, packed)
        dense = sparse = None
        if not all(split.is_sparse):
            dense = self._to_all(split.take(plain, sparse=False), split.take(turned, sparse=False), latents, split)
        if any(split.is_sparse):
            assert selected is not None, "a sequence is longer than what is chosen"
            query = self._absorbed(split.take(plain, sparse=True), split.take(turned, sparse=True))
            sparse = self._to_chosen(query, latents, selected, split, packed)
        output, _ = self.linear_proj(split.together(dense, sparse).flatten(1)[:, None])
        if self._teaches(packed):
            assert selected is not None, "an indexer that learns chooses for all"
            with torch.no_grad():
                query = self._trade(all_to_all_hp2sp, self._absorbed(plain, turned))
            output = self._with_indexer_loss(output, index, query, latents, selected, packed)
        return output, None

    def _to_all(self, plain: Tensor, turned: Tensor, latents: Tensor, split: Split) -> Tensor:
        """[dense tokens, h, v_head_dim] of queries that see all keys before them."""
        latent, rotary = torch.split(
            latents.index_select(0, split.dense_keys),
            [self.config.kv_lora_rank, self.config.qk_pos_emb_head_dim],
            dim=-1,
        )
        up = F.linear(latent, whole_weight(self.linear_kv_up_proj)).view(len(latent), plain.size(1), -1)
        keys, values = torch.split(up, [self.config.qk_head_dim, self.config.v_head_dim], dim=-1)
        keys = torch.cat([keys, rotary[:, None].expand(-1, plain.size(1), -1)], dim=-1)
        query = torch.cat([plain, turned], dim=-1)
        return self.attend(query, keys, values.contiguous(), split.dense, self.softmax_scale)

    def _to_chosen(
        self, query: Tensor, latents: Tensor, selected: Tensor, split: Split, packed: PackedSequences
    ) -> Tensor:
        """[sparse tokens, h, v_head_dim] of absorbed queries."""
        if self._learns(packed):
            selected = selected.index_select(0, split.own)
        query = split.trade(query, partial(self._trade, all_to_all_hp2sp))
        mixed = sparse_attention(query, latents, split.filled(selected), self.softmax_scale, self.config.kv_lora_rank)
        mixed = split.trade_back(mixed, partial(self._trade, all_to_all_sp2hp))
        return torch.einsum("thr,hvr->thv", mixed, self._up_projections()[1])

    def loss_coefficients(self) -> Mapping[str, float]:
        """See `slime_megatron.train.model.layer_losses.HasLosses`."""
        coefficient = self.config.dsa_indexer_loss_coeff if self.indexer is not None else None
        return {INDEXER_LOSS: float(coefficient)} if coefficient else {}

    def _learns(self, packed: PackedSequences) -> bool:
        """Whether indexers learn from this pack: they then choose for all queries, also for those that see all keys."""
        return bool(self.config.dsa_indexer_loss_coeff) and packed.loss_weights is not None

    def _teaches(self, packed: PackedSequences) -> bool:
        """Whether an indexer learns from this pass: in one that is computed again later, from that one alone."""
        return self._learns(packed) and torch.is_grad_enabled()

    def _with_indexer_loss(
        self,
        output: Tensor,
        index: tuple[IndexQueries, Tensor] | None,
        query: Tensor,
        latents: Tensor,
        selected: Tensor,
        packed: PackedSequences,
    ) -> Tensor:
        target = packed.of_pass(SharedKeys).targets.setdefault(self.source_layer, AttentionTarget())
        target.add(query, latents.detach(), selected, self.softmax_scale)
        if index is None:
            return output
        assert packed.loss_weights is not None, "only a training step has a loss"
        token_weights = self.config.dsa_indexer_loss_coeff * packed.loss_weights[slice(*self._shard(packed))]
        report = partial(add_layer_loss, INDEXER_LOSS, config=self.config, layer_number=self.layer_number)
        return add_indexer_loss(output, *index, IndexerLoss(selected, target, token_weights, report))

    def _trade(self, exchange: Callable[[Tensor, dist.ProcessGroup], Tensor], x: Tensor) -> Tensor:
        """Between [t, h, ...] and [s, H, ...], by either of Megatron's exchanges."""
        if self.shard_group.size() == 1:
            return x
        traded = exchange(x.flatten(1), self.shard_group)
        return traded.view(len(traded), -1, x.size(-1))

    def _shard(self, packed: PackedSequences) -> tuple[int, int]:
        """The tokens of this context-parallel rank that sequence parallelism gives this one: begin and end."""
        length = len(packed.rows.positions) // self.shard_group.size()
        begin = self.shard_group.rank() * length
        return begin, begin + length

    def _split(self, packed: PackedSequences) -> Split:
        shared = packed.of_pass(SharedKeys)
        if shared.split is None:
            group, device = self.shard_group, packed.rows.positions.device
            topk = self.config.dsa_indexer_topk
            shared.split = Split.of(packed.rows.runs, topk, group.size(), group.rank(), device)
        return shared.split

    def _absorbed(self, plain: Tensor, turned: Tensor) -> Tensor:
        """Both parts of queries -> [t, h, kv_lora_rank + rotary size], to be compared with latents."""
        return torch.cat([torch.einsum("thn,hnr->thr", plain, self._up_projections()[0]), turned], dim=-1)

    def _latents(self, hidden: Tensor, table: RotaryTable, packed: PackedSequences) -> Tensor:
        """[T, kv_lora_rank + rotary size] of the whole pack, in its order."""
        latent, turning = self.down_keys(hidden)
        return self._gather(torch.cat([latent, self.rotate(turning[:, None], *table, True)[:, 0]], dim=-1), packed)

    def _index(
        self, hidden: Tensor, query_latent: Tensor, table: RotaryTable, packed: PackedSequences
    ) -> tuple[IndexQueries, Tensor] | None:
        """Index queries of this shard and index keys of the pack; None in layers without an indexer, and where there
        is nothing to choose."""
        longest: int = packed.max_seqlen_kv
        if self.indexer is None or not (self._learns(packed) or longest > self.config.dsa_indexer_topk):
            return None
        queries, keys = self.indexer(hidden, query_latent, table)
        return queries, self._gather(keys, packed)

    def _selected(
        self, index: tuple[IndexQueries, Tensor] | None, split: Split, packed: PackedSequences
    ) -> Tensor | None:
        """See `SharedKeys.selected`; None where there is nothing to choose. A choosing layer chooses once a pass,
        recomputation finds what it chose."""
        chosen = packed.of_pass(SharedKeys).selected
        if not self._learns(packed) and not any(split.is_sparse):
            return None
        if self.source_layer not in chosen:
            assert index is not None, f"layer {self.source_layer} chooses in this very stage"
            topk = min(self.config.dsa_indexer_topk, packed.max_seqlen_kv)
            queries, keys = index
            if self._learns(packed):
                runs = slice_rows(packed.rows.runs, *self._shard(packed))
            else:
                runs, queries = split.runs, queries.of(split.own)
            chosen[self.source_layer] = select_keys(queries, keys, runs, topk)
        return chosen[self.source_layer]

    def _up_projections(self) -> tuple[Tensor, Tensor]:
        """From latents to keys [h, qk_head_dim, kv_lora_rank] and to values [h, v_head_dim, kv_lora_rank]."""
        sizes = [self.config.qk_head_dim, self.config.v_head_dim]
        weight = whole_weight(self.linear_kv_up_proj)
        keys, values = torch.split(weight.view(-1, sum(sizes), weight.size(1)), sizes, dim=1)
        return keys, values

    def _gather(self, x: Tensor, packed: PackedSequences) -> Tensor:
        """[s, ...] -> [T, ...]; the gradient is summed over all ranks and scattered back."""
        if self.shard_group.size() > 1:
            x = gather_from_sequence_parallel_region(x, tensor_parallel_output_grad=True, group=self.shard_group)
        if packed.cp_size > 1:
            x = gather_from_sequence_parallel_region(x, tensor_parallel_output_grad=True, group=self.cp_group)
            x = x.index_select(0, packed.rows.order)
        return x
