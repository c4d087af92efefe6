"""The critic of a trainer rank: a second model in the policy's layout, which learns the returns of tokens.

It is never published nor exported.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from megatron_core_portable import cpu_stands_in_for_cuda
from slime.config.changes import changed
from slime.config.schema import LrDecay, SlimeConfig
from slime.estimator import CriticEstimator
from slime.models.bridge import HfConfig, ModelBridge
from slime.types import MicroBatch
from slime_megatron.train import megatron, metrics
from slime_megatron.train.learning import Learning
from slime_megatron.train.local_batch import LocalMicroBatch
from slime_megatron.train.model.policy import PolicyModel
from slime_megatron.train.model.value import ValueModel
from slime_megatron.train.objective import StepLoss
from slime_megatron.train.offload import Offload
from slime_megatron.train.optimizer import Optimizer
from slime_megatron.train.reference import tensors_of
from slime_megatron.train.returns import with_advantages
from slime_megatron.train.step import score

HEAD = "output_layer."
PREFIX = "critic_"
"""Of its metrics."""


class Critic:
    """The policy's layers with one number a token behind them, and an optimizer of its own. Every method is collective.

    Attributes:
        model, optimizer: which checkpoints hold, too. Weights are random, until `begin` or a checkpoint.
        offload: takes the device from them, and gives it back.
    """

    def __init__(
        self, estimator: CriticEstimator, cfg: SlimeConfig, bridge: ModelBridge, hf: HfConfig, device: torch.device
    ) -> None:
        changes = {
            "train.optimizer.lr": cfg.algo.critic.lr,
            "train.optimizer.min_lr": 0.0,
            "train.optimizer.clip_grad": cfg.algo.critic.clip_grad,
            "train.lr_warmup_steps": cfg.algo.critic.lr_warmup_steps,
            "train.lr_decay": LrDecay.constant,
            "train.lr_decay_steps": None,
            "train.routing_replay": False,  # its routers choose for themselves
        }
        own = megatron.without_extra_losses(changed(cfg, changes), bridge, hf)
        self.model = megatron.build(own, bridge, hf, kind=ValueModel)
        with cpu_stands_in_for_cuda():
            self.optimizer = Optimizer(own, self.model)
        self._estimator = estimator
        self._learning, self._device = Learning(self.model, self.optimizer, device, "the critic's "), device
        self._takes_turns, self._epochs = cfg.algo.critic.offload, cfg.train.epochs_per_rollout
        self.offload = self._learning.offload

    @torch.no_grad()
    def begin(self, policy: Sequence[PolicyModel], stage: str) -> None:
        """Take all weights of a policy in the same layout but those of the output layer; the value head stays at zero.

        Args:
            stage: whose learning-rate schedule begins.
        """
        for module, other in zip(self.model.modules, policy, strict=True):
            given = tensors_of(other)
            for name, tensor in tensors_of(module).items():
                if not name.startswith(HEAD):
                    tensor.copy_(given[name])
        with cpu_stands_in_for_cuda():
            self.optimizer.after_load_of_model()
            self.optimizer.enter(stage)

    def learn(
        self,
        whole: Sequence[Sequence[MicroBatch]],
        local: Sequence[Sequence[LocalMicroBatch]],
        num_loss_tokens: Sequence[int],
        step: int,
        policy: Offload,
    ) -> tuple[list[list[LocalMicroBatch]], dict[str, float]]:
        """Score the tokens, put advantages in the place of rewards, and take an optimizer step a batch. With
        `algo.critic.offload` the policy is in host memory meanwhile, and the critic from then on.

        Args:
            whole, local: micro-batches of this rank, by optimizer step.
            num_loss_tokens: of each optimizer step, over all ranks.
            step: for messages.
            policy: gives its device up, and has it again.

        Returns:
            The micro-batches with the columns of `with_advantages`, and metrics `critic_...`.

        Raises:
            SlimeError: a metric or gradient is not finite.
        """
        if self._takes_turns:
            policy.offload()
            self.offload.onload()
        self.offload.take_gradients()
        scored = [score(self.model, micro_batches, replays=False) for micro_batches in local]
        contiguous = any(trait.contiguous for trait in self.model.traits)
        valued, found = with_advantages(self._estimator, whole, local, scored, self._device, contiguous=contiguous)
        steps, maxima = [], set[str]()
        for count, micro_batches in [*zip(num_loss_tokens, valued, strict=True)] * self._epochs:
            loss = StepLoss(self._estimator.critic, micro_batches, {}, is_first=False)
            values = self._learning.step(count, micro_batches, loss, step=step, replays=False)
            del values["num_tokens"]
            steps.append(values)
            maxima |= {*loss.metrics.maxima}
        if self._takes_turns:
            self.offload.offload()
            policy.onload()
            policy.take_gradients()
        found |= metrics.combine(steps, maxima)
        return valued, {f"{PREFIX}{name}": value for name, value in found.items()}
