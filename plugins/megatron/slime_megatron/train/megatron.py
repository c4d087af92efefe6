"""Brings Megatron-core up: process groups, seeds, and the model as DDP-wrapped pipeline chunks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer.attention import Attention
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.moe.router import Router
from megatron.core.transformer.transformer_config import TransformerConfig

from megatron_core_portable import apply_fixups, cpu_stands_in_for_cuda
from slime.config.changes import changed
from slime.config.hf import QUANTIZATION
from slime.config.paths import resolve
from slime.config.schema import ClusterConfig, ModelConfig, SlimeConfig, TrainConfig
from slime.errors import SlimeError
from slime.layout import default_etp
from slime.models.bridge import HasModel, HfConfig, ModelBridge, traits_of
from slime.models.mapping import WeightMapping
from slime.models.traits import Traits, obstacle_to_sharing, share_below, sharing_problem
from slime.net import file_store, join_store, serve_store
from slime.topology.adapters import Adapters, adapters_of
from slime.weights.causes import quantization
from slime_megatron.train import settings
from slime_megatron.train.model.packed.sequences import TakesPrefixes
from slime_megatron.train.model.policy import PolicyModel
from slime_megatron.train.model.value import ValueHead

_GROUP_SIZES = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "virtual_pipeline_model_parallel_size",
    "context_parallel_size",
    "expert_model_parallel_size",
    "expert_tensor_parallel_size",
)


class Base(NamedTuple):
    """Folders of weights: a HF folder, and the Megatron-core checkpoint that is taken instead, if any."""

    path: str
    weights: str | None


@dataclass
class Model:
    """One rank's part of the model.

    Attributes:
        chunks: one DDP-wrapped chunk a virtual pipeline stage (one without interleaving).
        modules: the same chunks, unwrapped; parameter names are Megatron-core's own.
        config: the TransformerConfig that all chunks share.
        traits: of the model's blocks.
        adapters: that learn; None: the model itself does.
        base: of adapters, where the weights come from that stay as they are; checkpoints hold none of these.
    """

    chunks: list[DistributedDataParallel]
    modules: list[PolicyModel]
    config: TransformerConfig
    traits: tuple[Traits, ...]
    adapters: Adapters | None = None
    base: Base | None = None


def initialize(cfg: SlimeConfig, rank: int, world_size: int, master_addr: str, master_port: int) -> None:
    """Join the process group (gloo on cpu, NCCL on cuda) and make Megatron's parallel groups; collective.

    Args:
        master_addr, master_port: where rank 0 listens; a file and 0 on one host.
    """
    timeout = timedelta(seconds=cfg.cluster.hang_timeout_s)
    if master_port:
        join(cfg.cluster, rank, world_size, (join_store if rank else serve_store)(master_addr, master_port, timeout))
    else:
        join(cfg.cluster, rank, world_size, file_store(master_addr, timeout))
    make_groups(cfg.train.megatron, cfg.run.seed)


def initialize_alone(cluster: ClusterConfig, megatron: Mapping[str, Any], seed: int) -> None:
    """`initialize` where this process is the only rank."""
    join(cluster, 0, 1, dist.HashStore())  # type: ignore[attr-defined]
    make_groups(megatron, seed)


def join(cluster: ClusterConfig, rank: int, world_size: int, store: Any) -> None:
    """Join the process group by a store (torch's) that is there already."""
    cuda = cluster.on_gpus
    if cuda:
        torch.cuda.set_device(rank % torch.cuda.device_count())
    apply_fixups()
    if dist.is_initialized():  # of a trainer that this process was before
        dist.destroy_process_group()
    timeout = timedelta(seconds=cluster.hang_timeout_s)
    dist.init_process_group("nccl" if cuda else "gloo", store=store, rank=rank, world_size=world_size, timeout=timeout)


def make_groups(megatron: Mapping[str, Any], seed: int) -> None:
    """Make Megatron's parallel groups and seeds for the layout of `train.megatron`; again for another layout.

    Raises:
        SlimeError: the parallel sizes do not divide the number of ranks.
    """
    sizes = {name: megatron[name] for name in _GROUP_SIZES if megatron.get(name) is not None}
    tp, ep = (sizes.get(f"{kind}_model_parallel_size", 1) for kind in ("tensor", "expert"))
    sizes.setdefault("expert_tensor_parallel_size", default_etp(tp, ep))
    parallel_state.destroy_model_parallel()
    try:
        parallel_state.initialize_model_parallel(**sizes)
    except RuntimeError as error:
        raise SlimeError(
            str(error), where="train.megatron", todo="Make the parallel sizes divide cluster.num_trainers."
        ) from error
    _seed(seed)


def _seed(base: int) -> None:
    """One seed a pipeline stage and a part of the experts, so that no two of them start with the same weights.

    Ranks that hold the same parameters draw the same ones.
    """
    stage, experts = parallel_state.get_pipeline_model_parallel_rank(), parallel_state.get_expert_model_parallel_rank()
    seed = base + 100 * stage + 10007 * experts
    torch.manual_seed(seed)
    model_parallel_cuda_manual_seed(seed, force_reset_rng=True)


def build(cfg: SlimeConfig, bridge: ModelBridge, hf: HfConfig, *, kind: type[PolicyModel] = PolicyModel) -> Model:
    """This rank's chunks of the model. Weights are random.

    Another kind than the policy has no adapters, and nothing of what blocks add behind the last layer.

    For logits, call a module of the last stage without labels, packed as everywhere (`position_ids` play no part):
    `module(input_ids[None], position_ids[None], None, packed_seq_params=PackedSequences.of([0, n], 1, 0, device))`.
    """
    if hf.get(QUANTIZATION) and (problem := quantization(resolve(cfg.model.path), hf)):
        raise problem
    is_policy, traits = kind is PolicyModel, traits_of(bridge, hf)
    adapters = adapters_of(cfg.train) if is_policy else None
    config = settings.transformer_config(cfg.train, bridge, hf, traits, on_gpus=cfg.cluster.on_gpus)
    with cpu_stands_in_for_cuda():
        modules = _modules(kind, cfg.model, cfg.train, bridge, hf, config, traits if is_policy else ())
        if adapters:
            adapters.attach(modules, bridge.weight_mapping(hf), cfg.run.seed)
        if cfg.cluster.on_gpus:
            for module in modules:
                module.cuda()
        ddp = settings.ddp_config(cfg.train.ddp)
        chunks = [_wrap(ddp, config, module, index) for index, module in enumerate(modules)]
    if chunks[0].ddp_config.overlap_grad_reduce:
        # Only the last micro-batch's backward may start the reduction.
        config.no_sync_func = chunks[0].no_sync if len(chunks) == 1 else [chunk.no_sync for chunk in chunks]
    return Model(chunks, modules, config, traits, adapters, _base(cfg.model) if adapters else None)


def trained(
    own: HasModel | None, bridge: ModelBridge, hf: HfConfig
) -> tuple[type[PolicyModel], WeightMapping, HfConfig]:
    """The kind of model that a run trains, its table, and config.json of its export.

    Args:
        own: the objective, where it has a model of its own.
    """
    mapping = bridge.weight_mapping(hf)
    if own is None:
        return PolicyModel, mapping, hf
    return own.model(), own.mapping(mapping), own.exported(hf)


def without_extra_losses(cfg: SlimeConfig, bridge: ModelBridge, hf: HfConfig) -> SlimeConfig:
    """For a model of another kind than the policy: what learns by a loss of its own behind the last layer is not
    there."""
    return changed(cfg, {trait.learns_by: None for trait in traits_of(bridge, hf) if trait.extra_loss})


def _base(model: ModelConfig) -> Base:
    weights = str(resolve(model.weights).absolute()) if model.weights else None
    return Base(str(resolve(model.path).absolute()), weights)


def sharing_of(train: TrainConfig, model: Model, *, on_gpus: bool) -> float:
    """When packs hold the prompt of several samples once: `share_below` of `slime.train.packing.pack`.

    Raises:
        SlimeError: `train.share_prompts` wants what the model cannot.
    """
    found = _obstacle_to_sharing(train, model)
    if train.share_prompts and found:
        raise sharing_problem(found)
    return share_below(train, on_gpus=on_gpus, obstacle=found)


def _obstacle_to_sharing(train: TrainConfig, model: Model) -> str | None:
    """As `slime.models.traits.obstacle_to_sharing`, whatever the model's family states of its blocks."""
    if stated := obstacle_to_sharing(train, model.traits, model.config.context_parallel_size):
        return stated
    modules = [layer for module in model.modules for layer in module.modules()]
    found = [(layer, layer.core_attention) for layer in modules if isinstance(layer, Attention)]
    found += [(layer, layer) for layer in modules if isinstance(layer, Router)]
    unaware = [layer for layer in found if not any(isinstance(each, TakesPrefixes) for each in layer)]
    return type(unaware[0][-1]).__name__ if unaware else None


def skeleton(model: ModelConfig, train: TrainConfig, bridge: ModelBridge, hf: HfConfig, *, on_gpus: bool) -> Model:
    """The modules of `build` with names, shapes and parallel marks, but without memory for their parameters, and
    without chunks."""
    traits = traits_of(bridge, hf)
    config = settings.transformer_config(train, bridge, hf, traits, on_gpus=on_gpus)
    with cpu_stands_in_for_cuda(), torch.device("meta"):
        return Model([], _modules(PolicyModel, model, train, bridge, hf, config, traits), config, traits)


def _modules(
    kind: type[PolicyModel],
    model: ModelConfig,
    train: TrainConfig,
    bridge: ModelBridge,
    hf: HfConfig,
    config: TransformerConfig,
    traits: Sequence[Traits],
) -> list[PolicyModel]:
    kwargs: dict[str, Any] = {"chunk_tokens": train.logprob_chunk_tokens, "fp32_logits": model.fp32_lm_head}
    kwargs |= {"batch_invariant": model.batch_invariant}
    kwargs |= _model_kwargs(bridge, hf, config)
    kwargs["heads"] = [trait.head(config) for trait in traits if trait.head is not None]
    stages = range(config.virtual_pipeline_model_parallel_size or 1)
    return [_chunk(kind, bridge, config, kwargs, stage) for stage in stages]


def _model_kwargs(bridge: ModelBridge, hf: HfConfig, config: TransformerConfig) -> dict[str, Any]:
    kwargs = {"vocab_size": hf.get("vocab_size"), "max_sequence_length": hf.get("max_position_embeddings")}
    kwargs |= {"position_embedding_type": "rope", **bridge.model_kwargs(hf)}
    if kwargs["vocab_size"] % config.tensor_model_parallel_size:
        raise SlimeError(
            f"a vocabulary of {kwargs['vocab_size']} cannot be split over {config.tensor_model_parallel_size} ranks",
            where="train.megatron.tensor_model_parallel_size",
            todo="Choose a size that divides the vocabulary.",
        )
    return kwargs


def _chunk(
    kind: type[PolicyModel], bridge: ModelBridge, config: TransformerConfig, kwargs: dict[str, Any], stage: int
) -> PolicyModel:
    vp_stage = stage if config.virtual_pipeline_model_parallel_size else None
    where = {"ignore_virtual": False, "vp_stage": vp_stage}
    return kind(
        config,
        bridge.block_spec(config, vp_stage),
        pre_process=parallel_state.is_pipeline_first_stage(**where),
        post_process=parallel_state.is_pipeline_last_stage(**where),
        vp_stage=vp_stage,
        **kwargs,
    )


def _wrap(
    ddp: DistributedDataParallelConfig, config: TransformerConfig, module: PolicyModel, index: int
) -> DistributedDataParallel:
    """In the compute precision, with gradients reduced over data-parallel ranks."""
    inner = Float16Module(config, module) if config.bf16 or config.fp16 else module
    for head in (each for each in module.modules() if isinstance(each, ValueHead)):
        head.in_fp32()
    # Only the first chunk's gradients can overlap with computation: later chunks' reductions would delay the pipeline.
    chunk = DistributedDataParallel(config, ddp, inner, disable_bucketing=index > 0)
    chunk.broadcast_params()
    return chunk
