"""Opens a run that takes no step, and has its engines answer the held-out prompts."""

from __future__ import annotations

from contextlib import ExitStack

from slime.checkpoints import Checkpoint
from slime.compose.compose import Composed
from slime.learner import Position
from slime.opening import open_run


def evaluate(composed: Composed, checkpoint: Checkpoint | None = None) -> dict[str, float]:
    """The held-out metrics of the model that the run starts from.

    Args:
        checkpoint: whose weights `model.weights` names.

    Raises:
        SlimeError: the checkpoint is damaged, or whatever stopped the evaluation.
    """
    with ExitStack() as stack:
        run = open_run(composed, stack, log_metrics=False)
        position = Position(**checkpoint.driver_state()["position"]) if checkpoint else run.learner.position
        version = position.rl_step
        run.generation.publish(version)
        with run.events.stage("eval", sum(len(each.prompts) for each in run.data.held_out)):
            return run.generation.evaluate(version)
