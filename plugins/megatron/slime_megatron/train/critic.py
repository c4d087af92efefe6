"""The contract of a critic: a second model of a trainer rank, in the policy's layout, with an optimizer of its own.

It says of each token what return it expects. It is never published nor exported.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from slime.types import MicroBatch
from slime_megatron.train.local_batch import LocalMicroBatch
from slime_megatron.train.megatron import Model
from slime_megatron.train.model.policy import PolicyModel
from slime_megatron.train.offload import Offload
from slime_megatron.train.optimizer import Optimizer


class Critic(Protocol):
    """What `slime.estimator.CriticEstimator.make_critic` makes. Every method is collective.

    Attributes:
        model, optimizer: which checkpoints hold, too. Weights are random, until `begin` or a checkpoint.
        offload: takes the device from them, and gives it back.
    """

    model: Model
    optimizer: Optimizer
    offload: Offload

    def begin(self, policy: Sequence[PolicyModel], stage: str) -> None:
        """Take first weights of a policy.

        Args:
            policy: this rank's modules, of the same layout.
            stage: whose learning-rate schedule begins.
        """

    def learn(
        self,
        whole: Sequence[Sequence[MicroBatch]],
        local: Sequence[Sequence[LocalMicroBatch]],
        num_loss_tokens: Sequence[int],
        step: int,
        policy: Offload,
    ) -> tuple[list[list[LocalMicroBatch]], dict[str, float]]:
        """Score the tokens, put advantages in the place of rewards, and take an optimizer step a batch. Where `local`
        has the column `slime.estimator.PENALTIES`, that is taken from the rewards, and nobody else does so. With
        `algo.critic.offload` the policy is in host memory meanwhile, and the critic from then on.

        Args:
            whole, local: micro-batches of this rank, by optimizer step.
            num_loss_tokens: of each optimizer step, over all ranks.
            step: for messages.
            policy: gives its device up, and has it again.

        Returns:
            The micro-batches with advantages and what else the policy's objective reads of `Source.critic`, and
            metrics `critic_...`.

        Raises:
            SlimeError: a metric or gradient is not finite.
        """
