"""What a rank of an SGLang 0.5.16 engine holds on its device: weights, token pool, graphs, buffers. No torch.

Weights are shared out by SGLang's rules, which are not Megatron's: attention over its own tensor parallelism, experts
over `ep_size`, dense MLPs by `moe_dense_tp_size`. The pool takes what `mem_fraction_static` leaves of the memory that
was free when the engine began (`pool_configurator.py`, `kv_cache_configurator.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from slime.config.gpus import Gpu
from slime.config.schema import Role
from slime.models.blocks import BuildingBlock, Cache
from slime.models.shapes import Block, Cut, Model
from slime.plan.flops import ForwardFlops
from slime.sizes.parameters import DRAFTING_LAYER, Weight, blocks_by_layer
from slime.sizes.version import bytes_a_weight
from slime.topology.engines import FP32_HEAD, EngineGroup
from slime.topology.quantization import WeightFormat
from slime.topology.server_fields import (
    dispatch_tokens,
    draft_fields,
    drafts_with_own_layer,
    most_running,
    num_draft_tokens,
    prefill_chunk,
    requests_per_rank,
    uses_deepep,
)
from slime_tools.memory.serving import (
    INPUTS,
    MULTIPROCESSORS,
    attention_buffers,
    num_prefill_graphs,
    request_table,
    table_rows,
)
from slime_tools.memory.trainer import DEEPEP, GIB, HANDOVER, TRAINING, Phase, Table
from slime_tools.memory.trainer import NCCL as COMMUNICATOR

CONTEXT = 0.9 * GIB
"""CUDA context and kernels of an engine rank, as an H200 showed it; of other GPUs it was not measured."""
NCCL = 0.6 * GIB
"""Communicators of an engine of several ranks."""
MIB = 2**20
GRAPH_BYTES = 2 * MIB
"""Of CUDA graphs, a request of the largest batch: what SGLang itself reserves, and what an H200 showed."""
DEEPEP_BLOCK = 128
"""Elements of a hidden state that share an fp32 scale where DeepEP sends it in FP8."""


@dataclass(frozen=True)
class EngineRank:
    """One rank of an engine of `group`.

    Attributes:
        model: Megatron's keywords of the model, with `vocab_size`.
        longest: tokens of the longest sequence.
        device_bytes: of its device; None if not known, and then neither is the pool.
        colocated: a trainer rank shares its device.
        takes_turns: it gives its memory up for that one.
        form: how it holds weights; None: in bf16.
        num_sources: trainer ranks that hand it weights.
        broadcasts: over a process group each.
        gpu: its kind of device, if that is known.
    """

    group: EngineGroup
    model: Model
    weights: Sequence[Weight]
    longest: int
    device_bytes: float | None
    colocated: bool = False
    takes_turns: bool = False
    form: WeightFormat | None = None
    num_sources: int = 1
    broadcasts: bool = False
    gpu: Gpu | None = None

    def get(self, key: str, default: Any = None) -> Any:
        return self.group.sglang.get(key, default)

    @property
    def drafts(self) -> bool:
        return drafts_with_own_layer(self.group.sglang)

    @property
    def num_layers(self) -> int:
        return int(self.model["num_layers"])

    def share(self, weight: Weight) -> float:
        """Parameters that this rank holds of a weight."""
        if weight.block is Block.experts:
            ep = self.group.ep
            experts = (weight.count + (self.get("ep_num_redundant_experts") or 0)) / ep
            return weight.numel / weight.count * experts / (self.group.tp / ep)
        if weight.stated.engine_share:
            return weight.stated.engine_share(weight.numel, self.model, self.group.attention_tp)
        if weight.cut is Cut.whole:
            return weight.numel
        if weight.block is Block.mlp:
            return weight.numel / (self.get("moe_dense_tp_size") or self.group.tp)
        if weight.block is Block.shared:
            return weight.numel / (1 if self.group.spreads_experts else self.group.tp)
        if weight.block is Block.output:
            return weight.numel / (self.group.attention_tp if self.get("enable_dp_lm_head") else self.group.tp)
        return weight.numel / self.group.attention_tp

    def bytes_of(self, weight: Weight) -> float:
        """2 a parameter, or what the format says."""
        return bytes_a_weight(self.form, weight, 2) * self.share(weight)

    @cached_property
    def weight_bytes(self) -> float:
        """Of the model, and of its part that drafts where the engine does; and of what is absorbed, in bf16."""
        held = [weight for weight in self.weights if self.drafts or not weight.drafts]
        absorbed = [weight for weight in held if weight.stated.absorbed]
        return sum(map(self.bytes_of, held)) + sum(2 * self.share(weight) for weight in absorbed)

    @cached_property
    def expert_bytes(self) -> float:
        """Of the experts among the weights, of which a step reads those that its tokens meet."""
        held = (weight for weight in self.weights if self.drafts or not weight.drafts)
        return sum(self.bytes_of(weight) for weight in held if weight.block is Block.experts)

    @cached_property
    def flops(self) -> float:
        """Of a token in the whole model, without attention."""
        return ForwardFlops(self.model, self.weights, 0).whole

    @cached_property
    def _pooled(self) -> list[BuildingBlock]:
        """The blocks of all layers with a pool, the drafting one included."""
        layers = [*range(self.num_layers), *([DRAFTING_LAYER] if self.drafts else [])]
        by_layer = blocks_by_layer(self.weights)
        return [block for layer in layers for block in by_layer.get(layer, ())]

    @cached_property
    def _cell(self) -> Cache:
        """Bytes of a token in all layers."""
        fp8 = str(self.get("kv_cache_dtype", "auto")).startswith("fp8")
        caches = [block.cache(self.model, self.group.attention_tp, fp8=fp8) for block in self._pooled]
        return Cache(*map(sum, zip(*caches, strict=True)))

    @property
    def context(self) -> float:
        return CONTEXT + NCCL * (self.group.tp > 1)

    @property
    def fraction(self) -> float | None:
        """`mem_fraction_static`, or SGLang's own from a device's memory (`_handle_gpu_memory_settings`): in MiB it
        keeps back 512 + 1.5 tokens of a pass + 128 tp + graphs, on cards over 60 GB at least 10 GiB."""
        given: float | None = self.get("mem_fraction_static")
        if given is not None or self.device_bytes is None:
            return given
        tokens, batch, dp = self.chunk, self.largest_batch, self.group.dp
        if self.group.role is Role.decode:
            tokens = (self.running or batch) * max(self._drafted, 1)
        graphs = 2.0 * batch * self.has_graphs
        if dp > 1 and self.group.role is not Role.prefill:
            graphs += (4.5 if batch > 300 else 3) * batch * dp
        idle = self.group.role is Role.decode or dp > 1 or self.group.spreads_experts or self.get("disable_cuda_graph")
        if not (idle or self.model.get("multi_latent_attention") or self.get("enable_lora")):
            graphs += 8 * num_prefill_graphs(self.chunk)
        kept = 512 + 1.5 * max(tokens, 2048) + 128 * self.group.tp + graphs
        if self.device_bytes > 60 * GIB:
            kept = max(kept, 10 * 1024)
        kept += 2048 * (uses_deepep(self.group.sglang) and self.has_graphs)
        return float(round(1 - kept * MIB / self.device_bytes, 3))

    @cached_property
    def pool_tokens(self) -> int | None:
        """Tokens of one data-parallel rank: (fraction x memory free at start - weights) / bytes a token, in pages; at
        most `max_total_tokens`. None if the device's memory is not known."""
        limit: int | None = self.get("max_total_tokens")
        fraction = self.fraction
        if self.device_bytes is None or fraction is None:
            return limit
        room = fraction * (self.device_bytes - self.context) - self.weight_bytes
        tokens = int(max(room, 0) / self._cell.sized) // self._page * self._page
        return min(tokens, limit) if limit else tokens

    @property
    def _page(self) -> int:
        return self.get("page_size") or max(block.page for block in self._pooled)

    @property
    def least_fraction(self) -> float:
        """`mem_fraction_static` with which the pool holds one sequence of the longest length."""
        assert self.device_bytes is not None, "asked of a pool that is too small"
        pool = -(-self.longest // self._page) * self._page * self._cell.sized
        return (self.weight_bytes + pool) / (self.device_bytes - self.context)

    @property
    def pool_bytes(self) -> float:
        return (self.pool_tokens or 0) * self._cell.allocated

    @property
    def unreleased_bytes(self) -> float:
        """Of the pool, what SGLang keeps while the engine has given up its memory."""
        return (self.pool_tokens or 0) * self._cell.unreleased

    @property
    def sequences(self) -> int | None:
        """Of the longest length that the whole engine's pools hold at once; at most `max_running_requests`."""
        if self.pool_tokens is None:
            return None
        fit = self.pool_tokens // self.longest * self.group.dp
        return min(fit, self.running) if self.running else fit

    @property
    def running(self) -> int | None:
        """Requests that the whole engine decodes at once; None: SGLang chooses."""
        fields = {**most_running(self.group), **self.group.sglang}
        running: int | None = fields.get("max_running_requests")
        return running

    @property
    def largest_batch(self) -> int:
        return requests_per_rank(self.group)

    @property
    def longest_context(self) -> int:
        """Tokens that a request may have by SGLang, whatever this run asks for."""
        return int(self.get("context_length") or self.model["max_sequence_length"])

    @property
    def chunk(self) -> int:
        """Tokens of prompts in one pass, of all data-parallel ranks; SGLang's own number goes by a device's memory."""
        given: int | None = self.get("chunked_prefill_size")
        if given is not None:
            return given if given > 0 else int(self.get("max_prefill_tokens") or 16384)
        return prefill_chunk(None if self.device_bytes is None else self.device_bytes / MIB)

    @property
    def request_table(self) -> float:
        """Of the requests that run, on a decode engine also of those whose caches come."""
        if self.pool_tokens is None:
            return 0.0
        running = None if self.running is None else self.running // self.group.dp
        waiting = 0
        if self.group.role is Role.decode:
            few = running is not None and running <= 32
            waiting = int(self.get("disaggregation_decode_extra_slots", 2 * (running or 0) if few else 0))
        rows = table_rows(self.pool_tokens, self.longest_context, running, waiting=waiting)
        return request_table(rows, self.longest_context, self._drafted)

    @property
    def _drafted(self) -> int:
        return num_draft_tokens(self.group.sglang) if self.get("speculative_algorithm") else 0

    @property
    def attention(self) -> float:
        """Buffers of CUDA graphs, and of all inputs."""
        model, latent = self.model, bool(self.model.get("multi_latent_attention"))
        value = model["kv_lora_rank"] if latent else model.get("kv_channels") or 128
        kept = attention_buffers(
            self.get("attention_backend") or self._own_attention,
            self.largest_batch if self.has_graphs else 0,
            self.longest_context,
            max(1, model["num_attention_heads"] // self.group.attention_tp),
            value,
            latent=latent,
            drafted=self._drafted,
            steps=int(draft_fields(self.group.sglang).get("speculative_num_steps", 0)),
            multiprocessors=self.gpu.multiprocessors if self.gpu else MULTIPROCESSORS,
        )
        return kept + INPUTS * max(self.pool_tokens or 0, self.chunk // self.group.dp)

    @property
    def _own_attention(self) -> str:
        """SGLang's choice (`_get_default_attn_backend`). A GPU that nobody named is taken for a Hopper where it has the
        memory of one: their buffers are the smallest."""
        large = self.device_bytes is None or self.device_bytes > 60e9
        architecture = self.gpu.architecture if self.gpu else 9 if large else 8
        if architecture == 9:
            return "fa3"
        if self.model.get("multi_latent_attention"):
            return "flashinfer" if architecture == 10 else "triton"
        return "trtllm_mha" if architecture == 10 else "flashinfer"

    @property
    def has_graphs(self) -> bool:
        """Prefill engines decode nothing."""
        return self.group.role is not Role.prefill and not self.get("disable_cuda_graph")

    @property
    def graphs(self) -> float:
        """2 MiB a request of the largest batch, once for the model and once for each drafted token."""
        return GRAPH_BYTES * self.largest_batch * num_draft_tokens(self.group.sglang) * self.has_graphs

    @property
    def deepep(self) -> float:
        """Low latency: 4 x experts x T x (2 H + 4 H / 128) for T dispatch tokens; the normal kernels' beside, unless
        the mode is one of the two alone."""
        if not uses_deepep(self.group.sglang):
            return 0.0
        mode, hidden = self.get("deepep_mode", "auto"), self.model["hidden_size"]
        tokens = dispatch_tokens(self.group)
        low = 4 * self.model["num_moe_experts"] * tokens * (2 * hidden + 4 * hidden / DEEPEP_BLOCK)
        return float(low * (mode != "normal") + DEEPEP * (mode != "low_latency"))

    @property
    def workspace(self) -> float:
        """Activations of a chunk of prompts (four hidden states, one MLP), and two fp32 copies of a batch's logits. For
        logits in fp32 SGLang casts the output layer in each step, in memory of CUDA graphs and beside them."""
        model = self.model
        tokens = self.chunk / self.group.dp
        width = model["ffn_hidden_size"] / (self.get("moe_dense_tp_size") or self.group.tp)
        if model.get("num_moe_experts"):
            width = max(width, model["moe_router_topk"] * model["moe_ffn_hidden_size"] / self.group.tp * self.group.dp)
        vocabulary = model["vocab_size"]
        ranks = self.group.attention_tp if self.get("enable_dp_lm_head") else self.group.tp
        cast = 4 * vocabulary / ranks * model["hidden_size"] * (1 + self.has_graphs) if self.get(FP32_HEAD) else 0
        return float(2 * tokens * (4 * model["hidden_size"] + 3 * width) + 8 * self.largest_batch * vocabulary + cast)

    def on_device(self, *, bucket: float) -> Table:
        """By phase.

        Args:
            bucket: bytes of weights that arrive at once over a process group of trainers and engines, 0 through shared
                memory.
        """
        table = Table()
        others = [Phase.start, Phase.generate]
        always = [*others, *(TRAINING if self.colocated else [Phase.publish])]
        table.add("engine's weights", self.weight_bytes, [*others, *HANDOVER] if self.takes_turns else always)
        released = self.unreleased_bytes if self.takes_turns else self.pool_bytes
        table.add("KV cache", self.pool_bytes, others)
        table.add("KV cache", released, [phase for phase in always if phase not in others])
        keeps_workspace = self.colocated and not self.takes_turns
        table.add("prefill and logits", self.workspace, always if keeps_workspace else [Phase.generate])
        table.add("request table", self.request_table, always if not self.takes_turns else others)
        table.add("attention and inputs", self.attention, always)
        table.add("CUDA graphs", self.graphs, always)
        table.add("DeepEP buffers", self.deepep, always)
        table.add("arriving weights", (1 + self.num_sources) * bucket, [Phase.publish])
        table.add("engine's CUDA, NCCL", self.context, always)
        if self.broadcasts:  # opened by the first version
            groups = self.num_sources * COMMUNICATOR
            table.add("engine's CUDA, NCCL", groups, [phase for phase in always if phase is not Phase.start])
        return table
