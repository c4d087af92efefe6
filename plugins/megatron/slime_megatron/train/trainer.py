"""One trainer rank (`slime.train.rank.TrainerRank`): builds the model, takes optimizer steps, saves what it has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from megatron.core import parallel_state

from megatron_core_portable import cpu_stands_in_for_cuda
from slime import plugins
from slime.algo.stages import Stage, run_stages
from slime.config.hf import read_hf_config
from slime.config.schema import Init, SlimeConfig
from slime.estimator import CriticEstimator
from slime.models.traits import extra_losses
from slime.objective import Source
from slime.plan.flops import attention
from slime.train.packing import RankLayout
from slime.train.rank import OWN_SECONDS, Usage
from slime.types import Batch
from slime_megatron.train import checkpoint, megatron, metrics, reference
from slime_megatron.train.critic import Critic
from slime_megatron.train.elsewhere import Elsewhere, reading
from slime_megatron.train.exports import Exports
from slime_megatron.train.first_weights import load_first, load_teacher
from slime_megatron.train.learning import Learning
from slime_megatron.train.local_batch import LocalMicroBatch, local_micro_batches, require_tokens
from slime_megatron.train.objective import StepLoss
from slime_megatron.train.offload import residue
from slime_megatron.train.optimizer import Optimizer
from slime_megatron.train.passes import ScoredColumns, score_columns
from slime_megatron.train.penalties import sums_of_penalties, with_penalties
from slime_megatron.train.shards import HostCopy
from slime_megatron.train.usage import peak_usage, timed

if TYPE_CHECKING:
    from slime.digest import FileFacts


class Trainer(Exports):
    """One per process, of a checked config. A batch may be whole, or the share of this rank (`Batch.share`)."""

    def __init__(self, cfg: SlimeConfig, rank: int, world_size: int, master_addr: str, master_port: int) -> None:
        self.cfg = cfg
        megatron.initialize(cfg, rank, world_size, master_addr, master_port)
        self.hf = read_hf_config(cfg.model.path, cfg.model.num_layers)
        self.bridge = plugins.load().models.create(cfg.model.family)
        if own := run_stages(cfg).own_model:
            cfg = megatron.without_extra_losses(cfg, self.bridge, self.hf)
        kind, self.mapping, self.exported = megatron.trained(own, self.bridge, self.hf)
        on_gpu = cfg.cluster.on_gpus
        self.device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
        self.model = megatron.build(cfg, self.bridge, self.hf, kind=kind)
        with cpu_stands_in_for_cuda():
            self.optimizer = Optimizer(cfg, self.model)
        self.extra_losses = extra_losses(cfg.train, self.model.traits)
        self._learning = Learning(self.model, self.optimizer, self.device)
        self._offload, self._offloads = self._learning.offload, [self._learning.offload]
        self.reference: reference.Weights | None = None
        self.teacher: reference.Weights | None = None
        self.critic: Critic | None = None
        self._kept: tuple[ScoredColumns, dict[str, float]] | None = None
        self._host_copies: dict[Path, HostCopy] = {}

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

    def layout(self) -> RankLayout:
        """What the driver packs by."""
        return RankLayout(
            self.data_parallel_rank,
            self.data_parallel_size,
            self.packing_align,
            self.micro_batch_multiple,
            megatron.sharing_of(self.cfg.train, self.model, on_gpus=self.cfg.cluster.on_gpus),
            attention(self.cfg.model, self.cfg.train.megatron, plugins.load()),
            max((loss.lookahead for loss, _ in self.extra_losses), default=0),
        )

    def init_weights(self) -> None:
        """Take those of `model.weights` or else of the HF folder; with `model.init=random` those it was built with."""
        if self.cfg.model.init is Init.random:
            return
        load_first(self.model, self.mapping, self.cfg.model.path, self.cfg.model.weights)
        self.optimizer.after_load_of_model()

    def snapshot_reference(self) -> None:
        if run_stages(self.cfg).needs(Source.reference):
            self.reference = reference.copy_weights(self.model.modules, frozen=False)

    def hold_teacher(self) -> None:
        """Load the weights of `algo.teacher.path` into host memory; those of the model stay bit for bit as they are."""
        assert self.cfg.algo.teacher.path, "compose() asks for it"
        self.teacher = load_teacher(self.model, self.mapping, self.cfg.algo.teacher.path)

    def begin_critic(self, stage: str) -> None:
        """Make the critic of a stage, from `algo.critic.path` or else the current weights; nothing if it has none."""
        if (estimator := run_stages(self.cfg)[stage].estimator) is None:
            return
        path, critic = self.cfg.algo.critic.path, self._make_critic(estimator)
        with reference.restored(self.model.modules) if path else nullcontext():
            if path:
                load_first(self.model, self.mapping, path, None)
            critic.begin(self.model.modules, stage)

    def _make_critic(self, estimator: CriticEstimator) -> Critic:
        self.critic = Critic(estimator, self.cfg, self.bridge, self.hf, self.device)
        self._offloads = [self._offload, self.critic.offload]
        return self.critic

    def penalties(self, batches: Sequence[Batch], stage: str) -> dict[int, float]:
        """What the stage's objective takes from rewards where no critic learns of them, by number of a sample: the sum
        over the loss tokens of it that this rank alone answers for. The `train` that follows finds the log-probs."""
        chosen = run_stages(self.cfg)[stage]
        with cpu_stands_in_for_cuda():
            local = self._begin(chosen, batches)
            self._kept = self._passes(chosen, local, chosen.epochs)
        if parallel_state.get_tensor_model_parallel_rank():
            return {}
        whole = [batch.micro_batches[self.data_parallel_rank] for batch in batches]
        return sums_of_penalties(whole, with_penalties(chosen, local, self._kept[0]))

    def train(self, batches: Sequence[Batch], step: int, stage: str, *, learns: bool = True) -> dict[str, float]:
        """The passes that the stage's objective asks for, then one optimizer step a batch, in each epoch of the stage.

        Returns:
            The same on every rank: the objective's metrics (a maximum is the largest, others are means; those measured
            on no token are left out); the losses that blocks of the model add, each under its own name
            (`slime.models.traits.ExtraLoss`, `.model.layer_losses`); grad_norm, lr, num_tokens, seconds/train. Of
            an objective that needs scores of a model, also seconds/logprobs; with a critic seconds/critic and its
            metrics, critic_... On GPUs memory/train_gib and memory/logprobs_gib, and the same with `_host`, of this
            rank, as is `OWN_SECONDS`. Of a first batch above `observe.logprob_alarm`, what `explain` returns.

        Raises:
            SlimeError: a metric or gradient is not finite, or the objective does not keep its contract.
        """
        chosen = run_stages(self.cfg)[stage]
        if self.critic and self.cfg.algo.critic.offload:
            self.critic.offload.offload()
        learns = learns and (chosen.estimator is None or step > self.cfg.algo.critic.only_steps)
        epochs, (kept, self._kept) = chosen.epochs if learns else 1, (self._kept, None)
        with cpu_stands_in_for_cuda():
            local = self._begin(chosen, batches)
            scored, seconds = kept or self._passes(chosen, local, epochs)
            of_critic, counts = dict[str, float](), [batch.num_loss_tokens for batch in batches]
            if chosen.estimator is not None:
                assert self.critic is not None, "begin_critic comes before the first step"
                whole = [batch.micro_batches[self.data_parallel_rank] for batch in batches]
                with timed("critic", self.device, seconds):
                    local = with_penalties(chosen, local, scored)
                    local, of_critic = self.critic.learn(whole, local, counts, step, self._offload)
            with timed("train", self.device, seconds):
                steps, maxima, before = [], set[str](), self._learning.own_seconds
                for done in range(len(counts) * epochs):
                    number = done % len(counts)
                    of_batch = {column: found[number] for column, found in scored.items()}
                    loss = StepLoss(chosen.objective, local[number], of_batch, is_first=done == 0)
                    values = self._learning.step(
                        counts[number],
                        local[number],
                        loss,
                        step=step,
                        extra_losses=self.extra_losses,
                        learns=learns,
                        replays=self.cfg.train.routing_replay,
                        # Later the weights are no longer the engine's.
                        explain=None if done else partial(self._of_alarm, local[0]),
                    )
                    steps.append(values)
                    maxima |= {*loss.metrics.maxima}
        if learns:
            seconds[OWN_SECONDS] = self._learning.own_seconds - before
        return metrics.combine(steps, maxima) | of_critic | seconds

    def _enter(self, stage: Stage) -> None:
        """Reinforcement learning is about the distribution that the engines sample from: policy, old policy and
        reference are all taken at the sampling temperature."""
        self._offload.take_gradients()
        self.optimizer.enter(stage.name)
        temperature = self.cfg.rollout.sampling.temperature if stage.reinforces else 1.0
        for module in self.model.modules:
            module.temperature = temperature
            module.entropy_gradient = getattr(stage.objective, "entropy_gradient", True)

    def _begin(self, stage: Stage, batches: Sequence[Batch]) -> list[list[LocalMicroBatch]]:
        for batch in batches:
            own = batch.micro_batches[self.data_parallel_rank]
            require_tokens(own, stage.objective.needs, self.hf["vocab_size"])
        self._enter(stage)
        return [self._local(batch) for batch in batches]

    def _local(self, batch: Batch) -> list[LocalMicroBatch]:
        """This rank's part of a batch, cut as the model's blocks want it."""
        contiguous = any(trait.contiguous for trait in self.model.traits)
        extra = [loss for loss, _ in self.extra_losses]
        return local_micro_batches(batch, self.device, contiguous=contiguous, extra_losses=extra)

    def _passes(
        self, stage: Stage, local: Sequence[list[LocalMicroBatch]], epochs: int
    ) -> tuple[ScoredColumns, dict[str, float]]:
        """What passes before the first optimizer step give, and metrics of them."""
        sources, seconds = stage.passes(len(local) * epochs), dict[str, float]()
        if not any(map(stage.needs, (Source.policy, Source.reference, Source.teacher))):
            return {}, seconds
        with timed("logprobs", self.device, seconds):
            replays = self.cfg.train.routing_replay
            return score_columns(
                stage.objective, sources, self.model, local, replays=replays, weights_of=self._weights_of
            ), seconds

    def _weights_of(self, source: Source) -> AbstractContextManager[None]:
        """Inside, the model has the weights whose log-probs `source` stands for."""
        if source is Source.policy:
            return nullcontext()
        is_teacher = source is Source.teacher
        weights = self.teacher if is_teacher else self.reference
        assert weights is not None, "hold_teacher and snapshot_reference come before the first step"
        return reference.swapped_in(weights, self.model.modules, frozen=is_teacher)

    def _of_alarm(self, micro_batches: Sequence[LocalMicroBatch], values: Mapping[str, float]) -> Mapping[str, float]:
        """What is said of metrics that pass `observe.logprob_alarm`."""
        alarm = self.cfg.observe.logprob_alarm
        return self.explain(micro_batches) if alarm and values.get("logprob_diff_mean", 0.0) > alarm else {}

    def explain(self, micro_batches: Sequence[LocalMicroBatch]) -> dict[str, float]:
        """What the installed explanations say of engines that differ on these samples of the current weights: metrics
        `gap/...` (`slime.contracts.Explanation`)."""
        found: dict[str, float] = {}
        for chosen in plugins.load().explanations:
            found |= chosen.factory().measure(self, micro_batches)
        return found

    def usage(self) -> Usage:
        return peak_usage(self.device)

    def trim(self) -> None:
        """Return the device memory of gradients, until the next step, and what torch keeps for the next activations."""
        for each in self._offloads:
            each.drop_gradients()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def offload(self) -> dict[str, float]:
        """Free the device; nothing but `onload` may follow."""
        for each in self._offloads:
            each.offload()
        return residue(self.device)

    def onload(self) -> None:
        """Take the device back: weights and optimizer state as they were; gradients come with the next step. A critic
        that takes turns with the policy comes with its next turn."""
        for each in self._offloads[: 1 if self.cfg.algo.critic.offload else None]:
            each.onload()

    def save(self, path: Path) -> dict[str, FileFacts]:
        """Write as `begin_save`, and wait for it."""
        return self._save(path, None).wait()

    def begin_save(self, path: Path) -> checkpoint.Saving:
        """Write model, optimizer, schedule, random state and reference into the existing folder `path` while training
        goes on, from a copy on the host. The ranks may wait for theirs at different times. Those in folders of one
        parent follow each other, and the next waits here for the one before; others have a group and memory of their
        own, as their threads meet at any time. Where the run waits for all of them (`async_save`), no copy is made."""
        asked = self.cfg.train.checkpoint
        if not (asked.async_save or asked.in_memory_every):
            return self._save(path, None)
        if path.parent not in self._host_copies:
            self._host_copies[path.parent] = HostCopy(dist.new_group(backend="gloo"))
        return self._save(path, self._host_copies[path.parent])

    def _save(self, path: Path, host_copy: HostCopy | None) -> checkpoint.Saving:
        if self.critic:
            self.critic.offload.onload()
        with cpu_stands_in_for_cuda():
            return checkpoint.Saving(path, self.model, self.optimizer, self.reference, host_copy, self.critic)

    def load(self, path: Path, elsewhere: Elsewhere | None = None) -> None:
        if self.model.adapters:
            self.init_weights()
        for stage in run_stages(self.cfg):
            if stage.estimator and checkpoint.read_facts(path).get("critic"):
                self._make_critic(stage.estimator)
        with cpu_stands_in_for_cuda(), reading(elsewhere):
            self.reference = checkpoint.load(path, self.model, self.optimizer, self.critic)
