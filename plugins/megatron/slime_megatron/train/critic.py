"""The contract of a critic: a second model of a trainer rank, in the policy's layout, with an optimizer of its own.

It says of each token what return it expects. It is never published nor exported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from torch import Tensor

from slime.algo.stages import PenalisesRewards, Stage
from slime.estimator import PENALTIES
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


def with_penalties(
    stage: Stage, local: list[list[LocalMicroBatch]], scored: Mapping[str, Sequence[Sequence[Tensor]]]
) -> list[list[LocalMicroBatch]]:
    """The micro-batches with the column `PENALTIES`, if the stage takes anything from rewards. It is 0 on pipeline
    stages other than the last, which know no log-probs.

    Args:
        local: by optimizer step.
        scored: by column and optimizer step, what passes gave of each micro-batch; nothing on these other stages.
    """
    if not (names := stage.penalised_by):
        return local
    objective = stage.objective
    assert isinstance(objective, PenalisesRewards), "the stage has asked it"

    def penalised(micro: LocalMicroBatch, batch: int, number: int) -> LocalMicroBatch:
        masked, penalties = micro.loss_mask == 0, micro.loss_mask.new_zeros(len(micro.loss_mask))
        given = {name: scored[name][batch] for name in names if name in scored}
        if all(given.values()):
            columns = {name: given[name][number] if name in given else micro.columns[name] for name in names}
            penalties = objective.penalties({name: x.masked_fill(masked, 0.0) for name, x in columns.items()})
        return replace(micro, columns={**micro.columns, PENALTIES: penalties})

    return [
        [penalised(micro, batch, number) for number, micro in enumerate(of_batch)]
        for batch, of_batch in enumerate(local)
    ]
