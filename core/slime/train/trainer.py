"""One trainer rank: builds the model, takes optimizer steps, exports and saves weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from megatron.core import parallel_state
from torch import Tensor

from slime import plugins
from slime.config.hf import read_hf_config
from slime.config.paths import resolve
from slime.config.schema import Device, Init, SlimeConfig
from slime.models.layer_losses import LayerLosses
from slime.models.traits import extra_losses
from slime.topology.fp8 import rollout_format
from slime.train import checkpoint, megatron, metrics, reference
from slime.train.compat import cpu_stands_in_for_cuda
from slime.train.local_batch import LocalMicroBatch, local_micro_batches
from slime.train.objective import OUTSIDE_SHARE, Contribution, reinforced, supervised, with_extra_loss
from slime.train.offload import Offload, residue
from slime.train.optimizer import Optimizer
from slime.train.step import GradientCheck, LossFunction, accumulate_gradients, score, update_expert_bias
from slime.train.usage import timed
from slime.types import Batch

if TYPE_CHECKING:
    from slime.config.fp8 import Fp8Format
    from slime.digest import FileFacts
    from slime.weights.megatron.export import Export, Inventory, Receivers

Scores = list[Tensor]
"""[2, t] log-probs and entropies by micro-batch; empty on pipeline stages other than the last."""


class Trainer:
    """One per process; every method is collective: all ranks call it with the same arguments.

    A batch may be whole, or the share of this rank (`Batch.share`).

    Args:
        cfg: the checked config of the run.
        rank, world_size: of this process among the trainers.
        master_addr, master_port: where rank 0 listens.
    """

    def __init__(self, cfg: SlimeConfig, rank: int, world_size: int, master_addr: str, master_port: int) -> None:
        self.cfg = cfg
        megatron.initialize(cfg, rank, world_size, master_addr, master_port)
        self.hf = read_hf_config(cfg.model.path, cfg.model.num_layers)
        bridge = plugins.load().models.create(cfg.model.family)
        self.mapping = bridge.weight_mapping(self.hf)
        on_gpu = cfg.cluster.device is Device.cuda
        self.device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
        self.model = megatron.build(cfg, bridge, self.hf)
        with cpu_stands_in_for_cuda():
            self.optimizer = Optimizer(cfg, self.model)
        self.gradient_check = GradientCheck(self.model)
        self.extra_losses = extra_losses(cfg, self.model.traits)
        self.layer_losses = LayerLosses(self.model.modules, self.device)
        self._offload = Offload(self.model, self.optimizer, self.device)
        self.reference: reference.Weights | None = None

    @property
    def data_parallel_size(self) -> int:
        """Ranks that train on different samples: `num_dp` of `slime.train.packing.pack`."""
        return int(parallel_state.get_data_parallel_world_size())

    @property
    def data_parallel_rank(self) -> int:
        """Whose share of a batch this rank trains on."""
        return int(parallel_state.get_data_parallel_rank())

    @property
    def packing_align(self) -> int:
        """Every sequence is padded to a multiple of this: zig-zag halves for each context-parallel rank, and an
        equal part for each sequence-parallel one."""
        config = self.model.config
        cp_size = config.context_parallel_size
        return int((2 * cp_size if cp_size > 1 else 1) * config.tensor_model_parallel_size)

    @property
    def micro_batch_multiple(self) -> int:
        """A rank's micro-batches come in multiples of this: the interleaved schedule wants full groups."""
        config = self.model.config
        return int(config.pipeline_model_parallel_size if config.virtual_pipeline_model_parallel_size else 1)

    def init_weights(self) -> None:
        """Those of `model.weights` or else of the HF checkpoint; with `model.init=random` those it was built with."""
        if self.cfg.model.init is Init.random:
            return
        if self.cfg.model.weights is not None:
            with cpu_stands_in_for_cuda():
                checkpoint.load_weights(resolve(self.cfg.model.weights), self.model)
        else:
            from slime.weights.megatron.load import load_hf

            load_hf(self.model.modules, self.mapping, resolve(self.cfg.model.path))
        self.optimizer.after_load_of_model()

    def snapshot_reference(self) -> None:
        """The current weights become the reference that the KL divergence is taken to; kept only if it is asked for."""
        if self.cfg.algo.kl_coef is not None:
            self.reference = reference.copy_weights(self.model.modules)

    def train_sft(self, batch: Batch, step: int) -> dict[str, float]:
        """One optimizer step on demonstrations: mean negative log-likelihood of the response tokens.

        Returns:
            loss, entropy (nats), grad_norm, lr, num_tokens (padding left out), seconds/train; the losses that blocks of
            the model add, each under its own name (`slime.models.traits.ExtraLoss`, `slime.models.layer_losses`); the
            same on every rank.
        """
        seconds: dict[str, float] = {}
        with cpu_stands_in_for_cuda(), timed("train", self.device, seconds):
            self._enter("sft")
            micro_batches = self._local(batch)
            values = self._optimizer_step(
                batch,
                micro_batches,
                lambda scores, number: supervised(scores, micro_batches[number]),
                step=step,
                means=metrics.SFT_MEANS,
            )
        return values | seconds

    def train_rl(self, batches: Sequence[Batch], step: int) -> dict[str, float]:
        """Log-probs under the old and the reference policy, then one optimizer step a batch.

        The old log-probs are computed again, unless `algo.rollout_logprobs_as_old`, or there is one batch: before the
        only step the old policy is the current one.

        Returns:
            Means over the batches, the same on every rank:

            - loss, pg_loss: as `algo.loss_mean` weighs tokens; grad_norm, lr;
            - the losses that blocks of the model add: as in `train_sft`;
            - entropy, kl (to the reference), approx_kl (from the old policy): nats a loss token;
            - ratio_mean (to the old policy), clip_fraction, clip_low_fraction, clip_high_fraction: over loss tokens;
            - logprob_diff_mean, logprob_diff_max, engine_kl (engine against trainer, nats): over the loss tokens that
              the current weights generated; stale_share: the share of the others;
            - importance_ratio_mean, importance_ratio_max: over the tokens that are corrected;
              importance_truncated_share or importance_masked_share: over loss tokens.

            What was measured on no token is left out. Of the first batch, where it passes `observe.logprob_alarm` under
            `rollout.fp8`, also what `explain_gap` returns. Besides num_tokens (padding left out), seconds/logprobs,
            seconds/train; on GPUs memory/logprobs_gib, memory/train_gib and the same with `_host`, of this rank.

        Raises:
            SlimeError: a metric or gradient is not finite.
        """
        seconds: dict[str, float] = {}
        with cpu_stands_in_for_cuda():
            self._enter("rl")
            with timed("logprobs", self.device, seconds):
                local = [self._local(batch) for batch in batches]
                old = self._old_scores(local)
                ref = self._reference_scores(local)
            with timed("train", self.device, seconds):
                steps = [
                    self._rl_step(batch, local[i], old[i] if old else None, ref[i] if ref else None, i == 0, step)
                    for i, batch in enumerate(batches)
                ]
        return metrics.combine(steps) | seconds

    def _enter(self, stage: str) -> None:
        """Reinforcement learning is about the distribution that the engines sample from: policy, old policy and
        reference are all taken at the sampling temperature."""
        self._offload.take_gradients()
        self.optimizer.enter(stage)
        temperature = self.cfg.rollout.sampling.temperature if stage == "rl" else 1.0
        for module in self.model.modules:
            module.temperature = temperature

    def _local(self, batch: Batch) -> list[LocalMicroBatch]:
        """This rank's part of a batch, cut as the model's blocks want it."""
        contiguous = any(trait.contiguous for trait in self.model.traits)
        extra = [loss for loss, _ in self.extra_losses]
        return local_micro_batches(batch, self.device, contiguous=contiguous, extra_losses=extra)

    def _old_scores(self, local: Sequence[list[LocalMicroBatch]]) -> list[Scores]:
        """Empty where the old policy needs no pass of its own."""
        if self.cfg.algo.rollout_logprobs_as_old or len(local) == 1:
            return []
        return [score(self.model, micro_batches) for micro_batches in local]

    def _reference_scores(self, local: Sequence[list[LocalMicroBatch]]) -> list[Scores]:
        if self.cfg.algo.kl_coef is None:
            return []
        assert self.reference is not None, "snapshot_reference comes before the first step"
        with reference.swapped_in(self.reference, self.model.modules):
            return [score(self.model, micro_batches) for micro_batches in local]

    def _rl_step(
        self,
        batch: Batch,
        micro_batches: list[LocalMicroBatch],
        old: Scores | None,
        ref: Scores | None,
        is_first: bool,
        step: int,
    ) -> dict[str, float]:
        algo = self.cfg.algo
        # After the first step the weights are no longer the engine's.
        knows_start = old is not None or is_first

        def contribute(scores: Tensor, number: int) -> Contribution:
            start = scores[0].detach() if is_first else None
            return reinforced(
                scores,
                micro_batches[number],
                algo,
                start=old[number][0] if old else start,
                reference=ref[number][0] if ref else None,
            )

        importance = knows_start and not algo.rollout_logprobs_as_old
        return self._optimizer_step(
            batch,
            micro_batches,
            contribute,
            step=step,
            alarm=self.cfg.observe.logprob_alarm if is_first else None,  # later the weights are no longer the engine's
            means=metrics.RL_MEANS,
            token_sums=metrics.RL_TOKEN_SUMS
            + metrics.REFERENCE_TOKEN_SUMS * (algo.kl_coef is not None)
            + metrics.ENGINE_TOKEN_SUMS * knows_start
            + (*metrics.IMPORTANCE_TOKEN_SUMS, OUTSIDE_SHARE[algo.importance]) * importance,
            maxima=metrics.ENGINE_MAXIMA * knows_start + metrics.IMPORTANCE_MAXIMA * importance,
        )

    def _optimizer_step(
        self,
        batch: Batch,
        micro_batches: Sequence[LocalMicroBatch],
        loss: LossFunction,
        *,
        step: int,
        alarm: float | None = None,
        **names: Any,
    ) -> dict[str, float]:
        """Gradients, metrics (which refuse what is not finite; above `alarm` explained), then the step itself."""
        if self.extra_losses:
            loss = self._with_extra_losses(loss, micro_batches)
            names["means"] = (*names["means"], *(extra.name for extra, _ in self.extra_losses))
        contributions = accumulate_gradients(self.model, micro_batches, loss)
        num_step_tokens = micro_batches[0].num_step_tokens
        values = metrics.reduce_contributions(
            contributions,
            layer_losses=self.layer_losses.collect(num_step_tokens, self.device),
            num_loss_tokens=batch.num_loss_tokens,
            gradients_are_finite=self.gradient_check.is_finite,
            step=step,
            device=self.device,
            **names,
        )
        if alarm and values.get("logprob_diff_mean", 0.0) > alarm:
            values |= self.explain_gap(micro_batches)
        update_expert_bias(self.model)
        grad_norm, lr = self.optimizer.step()
        return values | {"grad_norm": grad_norm, "lr": lr, "num_tokens": float(num_step_tokens)}

    def explain_gap(self, micro_batches: Sequence[LocalMicroBatch]) -> dict[str, float]:
        """What makes FP8 engines differ on some of these samples of the current weights: metrics `gap/...`, see
        `slime.train.gap.explain`. Empty where engines hold the trainer's weights."""
        from slime.train.gap import explain, few, multiplies_fp8

        if (fp8 := rollout_format(self.cfg)) is None:
            return {}
        some = few(micro_batches, self.cfg.train.max_tokens_per_micro_batch, self.micro_batch_multiple)
        return explain(self.model, self._inventory.local, fp8, some, activations=multiplies_fp8(self.device))

    def _with_extra_losses(self, loss: LossFunction, micro_batches: Sequence[LocalMicroBatch]) -> LossFunction:
        """`loss`, of the first two rows of scores, and the extra ones, each of one of the further rows."""

        def contribute(scores: Tensor, number: int) -> Contribution:
            contribution, packed = loss(scores[:2], number), micro_batches[number].packed
            for row, (extra, scale) in zip(scores[2:], self.extra_losses, strict=True):
                contribution = with_extra_loss(contribution, extra.name, extra.of(row, packed), scale)
            return contribution

        return contribute

    def export(
        self, bucket_bytes: int | None = None, *, everywhere: bool = False, fp8: Fp8Format | None = None
    ) -> Iterator[tuple[str, Tensor]]:
        """HF names and full tensors of the current weights, on rank 0 or everywhere; a rank that receives none runs
        through it for nothing. See `slime.weights.megatron.export.export_hf`."""
        from slime.weights.megatron.export import BUCKET_BYTES, export_hf

        return export_hf(
            self.model.modules,
            self.mapping,
            bucket_bytes or BUCKET_BYTES,
            everywhere=everywhere,
            fp8=fp8,
            inventory=self._inventory,
        )

    def export_plan(self, bucket_bytes: int, receivers: Receivers, *, drafts: bool, fp8: Fp8Format | None) -> Export:
        """The same in buckets, divided among `receivers`. See `slime.weights.megatron.export.Export`."""
        return self._inventory.export(self.mapping, bucket_bytes, receivers, drafts=drafts, fp8=fp8)

    @cached_property
    def _inventory(self) -> Inventory:
        from slime.weights.megatron.export import take_inventory

        return take_inventory(self.model.modules, self.mapping)

    def trim(self) -> None:
        """Return the device memory of gradients, until the next step, and what torch keeps for the next activations."""
        self._offload.drop_gradients()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def offload(self) -> dict[str, float]:
        """Free the device for engines that share it; returns what stays there, `residue/..._gib`. Nothing but `onload`
        may follow."""
        self._offload.offload()
        return residue(self.device)

    def onload(self) -> None:
        """Take the device back: weights and optimizer state as they were; gradients come with the next step."""
        self._offload.onload()

    def save(self, path: Path) -> dict[str, FileFacts]:
        """Write model, optimizer, schedule, random state and reference into the existing folder `path`.

        Returns:
            The facts of the files that this rank digested as it wrote them, by name.

        Raises:
            SlimeError: the disk is full or the folder cannot be written.
        """
        with cpu_stands_in_for_cuda():
            return checkpoint.save(path, self.model, self.optimizer, self.reference)

    def load(self, path: Path) -> None:
        """Take up what `save` wrote, also in another parallel layout.

        Raises:
            SlimeError: the folder is not a checkpoint of this model, or a file of it is damaged.
        """
        with cpu_stands_in_for_cuda():
            self.reference = checkpoint.load(path, self.model, self.optimizer)
