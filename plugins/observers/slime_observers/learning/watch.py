"""A watch over learning: a run ends when its rewards say nothing for long, and warns of what comes before that."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from slime.errors import SlimeError
from slime.events import Event, Events, Step
from slime.observe.metrics import ENTROPY, REWARD, REWARD_STD, TRUNCATED, ZERO_VARIANCE
from slime.types import RL, TrackedRun

COLLAPSED, RECOVERED = 0.1, 0.2
"""Entropy relative to the first step's: a warning below the one, its end above the other."""
NEARLY_ALL, FEWER = 0.9, 0.8
"""Share of truncated responses, likewise."""
MOST_EQUAL, FEWER_EQUAL, FOR_STEPS, SOLVED = 0.8, 0.5, 10, 0.5
"""Share of groups of equal rewards, likewise, and steps in a row; from this mean reward on prompts may be solved."""
READ = {ENTROPY, REWARD, REWARD_STD, TRUNCATED, ZERO_VARIANCE}

log = logging.getLogger(__name__)


def of_run(run: TrackedRun, events: Events) -> LearningWatch:
    """The watch over a run, which it may stop; a subscriber of every session."""
    observe, sampling = run.config.get("observe", {}), run.config.get("rollout", {}).get("sampling", {})
    limits = observe.get("zero_variance_steps", 0), sampling.get("max_response_tokens", 0)
    return LearningWatch(*limits, stop=events.stop)


class LearningWatch:
    """Sees the metrics of every step of a reinforcement-learning stage; where a run continues, it counts from 0 again.

    Args:
        stop: called with why the run should stop, once `zero_variance_steps` steps taught nothing.
    """

    def __init__(self, zero_variance_steps: int, max_response_tokens: int, stop: Callable[[SlimeError], None]) -> None:
        self._limit, self._response_limit, self._stop = zero_variance_steps, max_response_tokens, stop
        self._num_equal = self._num_mostly_equal = 0
        self._first_entropy: float | None = None
        self._warned: set[str] = set()

    def __call__(self, event: Event) -> None:
        """Warn of what the metrics of a complete step show."""
        if isinstance(event, Step) and event.complete and event.stage == RL and event.values.keys() >= READ:
            self._entropy(event.values, event.step)
            self._truncation(event.values, event.step)
            self._mostly_equal_rewards(event.values, event.step)
            if problem := self._equal_rewards(event.values, event.step):
                self._stop(problem)

    def _equal_rewards(self, values: Mapping[str, float], step: int) -> SlimeError | None:
        self._num_equal = self._num_equal + 1 if values[ZERO_VARIANCE] == 1 else 0
        if not self._limit or self._num_equal < self._limit:
            return None
        rewards = f"every reward is {values[REWARD]:g}" if not values[REWARD_STD] else f"the mean is {values[REWARD]:g}"
        what = f"the rewards of each prompt's samples were equal in {self._num_equal} steps in a row ({rewards})"
        todo = (
            "Nothing is learnt from equal rewards. If no higher one is possible, the prompts are solved: take the last "
            "checkpoint, or give harder prompts. Otherwise see the responses ('slime samples'): the reward may not "
            "find the answer in them, or the prompts are too hard. observe.zero_variance_steps=0 goes on."
        )
        return SlimeError(what, where=f"step {step}", todo=todo)

    def _mostly_equal_rewards(self, values: Mapping[str, float], step: int) -> None:
        share, reward = values[ZERO_VARIANCE], values[REWARD]
        mostly = share > MOST_EQUAL and reward < SOLVED
        self._num_mostly_equal = self._num_mostly_equal + 1 if mostly else 0
        if self._is_new(ZERO_VARIANCE, self._num_mostly_equal >= FOR_STEPS, share < FEWER_EQUAL):
            log.warning(
                "rl step %d: more than %.0f %% of the prompts got equal rewards for all samples in %d steps in a row, "
                "at a mean reward of %.3g: they teach nothing. See whether right answers are paid ('slime samples', "
                "'slime check-reward'): the reward may ask for another form than the model gives; or give easier "
                "prompts, more rollout.samples_per_prompt, or filter=dynamic-sampling.",
                step,
                100 * MOST_EQUAL,
                FOR_STEPS,
                reward,
            )

    def _entropy(self, values: Mapping[str, float], step: int) -> None:
        entropy = values[ENTROPY]
        first = self._first_entropy = entropy if self._first_entropy is None else self._first_entropy
        if self._is_new(ENTROPY, entropy < COLLAPSED * first, entropy > RECOVERED * first):
            log.warning(
                "rl step %d: the entropy fell to %.3g nats a token, from %.3g: the samples of a prompt become the same "
                "and teach nothing. Unless the rewards are as high as they can be, lower train.optimizer.lr, or raise "
                "algo.clip_high, algo.entropy_coef or algo.kl_coef.",
                step,
                entropy,
                first,
            )

    def _truncation(self, values: Mapping[str, float], step: int) -> None:
        share = values[TRUNCATED]
        if self._is_new(TRUNCATED, share >= NEARLY_ALL, share <= FEWER):
            log.warning(
                "rl step %d: %.0f %% of the responses reached the limit of tokens and may lack their answer. Raise "
                "rollout.sampling.max_response_tokens=%d, or see why they do not end ('slime samples').",
                step,
                100 * share,
                self._response_limit,
            )

    def _is_new(self, what: str, begins: bool, ends: bool) -> bool:
        """True if something begins that was not warned of since it ended last."""
        if ends:
            self._warned.discard(what)
        if not begins or what in self._warned:
            return False
        self._warned.add(what)
        return True
