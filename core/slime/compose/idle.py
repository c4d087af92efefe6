"""Keys that act only under a condition: one that is set and does nothing in the composed run is refused, with what
would make it act."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cached_property

from slime import plugins
from slime.algo.stages import ONE_STEP, idle_options, keys_read, keys_with_readers, run_stages
from slime.compose.check import SGLANG_BOUNDS
from slime.compose.objective import CHOSEN_BY, estimator_problems, objective_problems
from slime.compose.options import defaults_of
from slime.config.keys import ANY_NAME, added_keys, default_config, own_keys, value_of
from slime.config.schema import (
    OPTIMIZER_DEFAULTS,
    Importance,
    ImportanceTokens,
    KlEstimator,
    KlIn,
    LrDecay,
    SlimeConfig,
)
from slime.errors import SlimeError
from slime.objective import Source
from slime.topology.engines import generates
from slime.topology.launcher import launcher_name
from slime.topology.transport import transport_name

OPTIONS_OF = {f"algo.{options}": (kind, key) for kind, (key, options) in CHOSEN_BY.items()}
"""Whose the options of a section are: the kind of plugin, and the key of `algo` that chooses it."""


@dataclass(frozen=True)
class Composition:
    """A config whose values are derived, and what the conditions ask of it."""

    cfg: SlimeConfig

    @cached_property
    def reinforces(self) -> bool:
        return run_stages(self.cfg).reinforces

    @property
    def generates(self) -> bool:
        return generates(self.cfg.algo, self.cfg.eval)

    @property
    def supervises(self) -> bool:
        return self.cfg.sft.path is not None and self.cfg.sft.num_steps > 0

    @property
    def awaits_hosts(self) -> bool:
        """It is asked who the other hosts are (`slime.compose.needs`)."""
        return self.cfg.cluster.on_gpus and self.cfg.cluster.num_nodes > 1

    @property
    def clips(self) -> bool:
        """With one optimizer step a rollout the ratio to the trainer's old policy is 1."""
        return self.cfg.train.optimizer_steps > 1 or self.cfg.algo.rollout_logprobs_as_old

    @property
    def corrects(self) -> bool:
        return self.cfg.algo.importance_tokens is ImportanceTokens.all or self.cfg.rollout.continues

    @property
    def rejects(self) -> bool:
        """Rejection by what is known before the step."""
        algo = self.cfg.algo
        masks = self.corrects and algo.importance is Importance.mask
        return masks or algo.sequence_bound is not None or algo.sequence_veto is not None

    @property
    def criticises(self) -> bool:
        """True of an estimator that cannot be made, too, of which others say so."""
        return any(estimator_problems(self.cfg.algo, plugins.load())) or run_stages(self.cfg).have_critic

    @cached_property
    def idle(self) -> dict[str, Rule]:
        """Every key without effect, set or not, with the first condition that does not hold."""
        found: dict[str, Rule] = {}
        for rule in (rule for rule in (*rules(), *self._declared()) if not rule.acts(self)):
            for key in rule.names:
                found.setdefault(key, rule)
        return found

    @property
    def has_groups(self) -> bool:
        """Samples that may have one prompt, as demonstrations and pairs of a file; or segments, which programs make."""
        alone = self.cfg.rollout.samples_per_prompt == 1 and self.cfg.rollout.program.name == "single"
        return not self.reinforces or self.supervises or not alone

    def _declared(self) -> Iterator[Rule]:
        """What the chosen objective and estimator say of their own options; nothing of those that cannot be made."""
        algo, installed = self.cfg.algo, plugins.load()
        if any((*objective_problems(algo, installed), *estimator_problems(algo, installed))):
            return
        for key, why in idle_options(algo, self.cfg.train).items():
            if self.reinforces or key.startswith("algo.options."):  # of estimators a broad rule says more
                yield Rule(why, key, lambda run: False)

    def says_as(self, other: Composition, key: str) -> bool:
        """Whether a key has the value that it has there; options of what is not chosen here have none."""
        section, _, name = key.rpartition(".")
        known = section not in OPTIONS_OF or name in value_of(self.cfg, section)
        return bool(known and value_of(self.cfg, key) == value_of(other.cfg, key))

    def is_set(self, key: str) -> bool:
        """Whether it has another value than where nobody sets it; one that follows other keys has theirs."""
        section, _, name = key.rpartition(".")
        if section == "train.optimizer":
            default = OPTIMIZER_DEFAULTS.get(name)
        elif section in OPTIONS_OF:
            kind, chosen = OPTIONS_OF[section]
            default = defaults_of(plugins.load().schemas.get(f"{kind}/{getattr(self.cfg.algo, chosen)}")).get(name)
            return name in value_of(self.cfg, section) and bool(value_of(self.cfg, key) != default)
        elif isinstance(default := value_of(default_config(), key), str):
            followed = re.fullmatch(r"\$\{([^}]+)\}", default)
            if followed:
                default = value_of(self.cfg, followed[1])
            else:
                default = re.sub(r"\$\{([^}]+)\}", lambda found: str(value_of(self.cfg, found[1])), default)
        return bool(value_of(self.cfg, key) != default)


@dataclass(frozen=True)
class Rule:
    """A condition of some keys.

    Attributes:
        why: what the keys do nothing "without ..." or "with ...", as the message has it.
        keys: names and patterns (`sft.*`), separated by blanks.
        acts: whether the condition holds.
    """

    why: str
    keys: str
    acts: Callable[[Composition], bool]

    @property
    def names(self) -> Iterator[str]:
        for pattern in self.keys.split():
            yield from [key for key in own_keys() if fnmatch(key, pattern) and ANY_NAME not in key] or [pattern]

    def refusal(self, key: str) -> SlimeError:
        todo = "Remove one of them." if self.why.startswith("with ") else "Set that too, or remove this."
        return SlimeError(f"does nothing {self.why}", where=key, todo=todo)


def _is_read(key: str) -> Callable[[Composition], bool]:
    return lambda run: key in keys_read(run.cfg.algo)


_LAG = "rollout.max_weight_lag"
_BOUNDS = "algo.importance algo.importance_low algo.importance_high"

RULES: Sequence[Rule] = (
    Rule(
        "without algo=grpo (the supervised stage has sft.num_steps and sft.lr*)",
        "run.num_steps train.optimizer.lr train.optimizer.min_lr train.lr_*",
        lambda run: run.reinforces or not run.cfg.run.num_steps,
    ),
    Rule(
        "without algo=grpo",
        "algo.advantage algo.advantage_options algo.critic.* algo.normalize_std algo.clip_* algo.entropy_coef "
        "algo.kl_* algo.importance* algo.rollout_logprobs_as_old algo.sequence_* algo.opsm_bound algo.rejected_in_mean "
        "algo.mask_truncated algo.teacher.* "
        "rollout.prompts_per_step rollout.samples_per_prompt rollout.over_sampling rollout.surplus "
        f"rollout.fixed_prompts rollout.max_staleness rollout.publish {_LAG} train.*_per_rollout data.shuffle "
        "data.sets data.share filter.* buffer.* observe.logprob_alarm eval.interval observe.zero_variance_steps "
        "train.routing_replay observe.routing",
        lambda run: run.reinforces,
    ),
    Rule(
        "with pairs of answers, of which each counts once (algo.name=dpo)",
        "algo.loss_mean",
        lambda run: not run_stages(run.cfg).all[0].trains_on_pairs,
    ),
    Rule("without an estimator that has a critic, as algo=ppo", "algo.critic.*", lambda run: run.criticises),
    Rule(
        "without GPUs, where both models stay in host memory",
        "algo.critic.offload",
        lambda run: run.cfg.cluster.on_gpus,
    ),
    Rule("without an estimator that reads it, as algo.advantage=grpo", "algo.normalize_std", _is_read("normalize_std")),
    *(
        Rule("without an objective that reads it, as algo=grpo", f"algo.{key}", _is_read(key))
        for key in keys_with_readers()
    ),
    Rule(
        "without eval.path (algo=sft generates for evaluation alone)",
        "rollout.* weights.* reward.options reward.num_workers reward.timeout_s reward.memory_mb "
        "reward.max_failed_share observe.samples_mb",
        lambda run: run.generates,
    ),
    Rule(
        "with rollout.addresses, whose servers somebody else starts",
        " ".join(["rollout.restarts rollout.restart_window_s", *(f"rollout.sglang.{size}" for size in SGLANG_BOUNDS)]),
        lambda run: not run.cfg.rollout.addresses or any(each.model for each in run.cfg.rollout.engines.values()),
    ),
    Rule(
        "with train.restarts=0: the run ends as a trainer rank dies",
        "train.restart_window_s train.checkpoint.in_memory_every cluster.min_hosts",
        lambda run: run.cfg.train.restarts > 0,
    ),
    Rule(
        "without more hosts of trainer ranks than that (cluster.num_trainers by cluster.devices_per_node)",
        "cluster.min_hosts",
        lambda run: (run.cfg.cluster.min_hosts or 0) * run.cfg.cluster.devices_per_node < run.cfg.cluster.num_trainers,
    ),
    Rule(
        "without cluster.hostfile or cluster.ray_address, on this host alone",
        "cluster.spares cluster.wait_for_host_s cluster.min_hosts cluster.exclude",
        lambda run: bool(launcher_name(run.cfg.cluster) or run.cfg.cluster.ray_address) or run.awaits_hosts,
    ),
    Rule(
        "with other hosts, or a Ray that was there before: the run has to have started all of it on this host",
        "cluster.driver_grace_s",
        lambda run: not (launcher_name(run.cfg.cluster) or run.cfg.cluster.ray_address or run.awaits_hosts),
    ),
    Rule(
        "where engines share the trainers' GPUs: such hosts are not replaced",
        "cluster.spares cluster.wait_for_host_s cluster.min_hosts",
        lambda run: not (run.cfg.cluster.colocated and run.cfg.cluster.on_gpus and run.generates),
    ),
    Rule("without eval.path", "eval.*", lambda run: run.cfg.eval.path is not None),
    Rule(
        "without eval.sampling.temperature above 0",
        "eval.sampling.top_p eval.sampling.top_k",
        lambda run: run.cfg.eval.sampling.temperature > 0,
    ),
    Rule(
        "without an objective that has a teacher, as algo=opd",
        "algo.teacher.*",
        lambda run: run_stages(run.cfg).needs(Source.teacher),
    ),
    Rule("without data.sets", "data.share", lambda run: bool(run.cfg.data.sets)),
    Rule("without sft.num_steps", "sft.path sft.eval_path", lambda run: run.cfg.sft.num_steps > 0),
    Rule("without sft.path and sft.num_steps", "sft.batch_size sft.lr*", lambda run: run.supervises),
    Rule("without algo.kl_coef", "algo.kl_estimator", lambda run: run.cfg.algo.kl_coef is not None),
    Rule("without algo.kl_coef above 0", "algo.kl_in algo.kl_unbiased", lambda run: bool(run.cfg.algo.kl_coef)),
    Rule(
        "with algo.kl_in=reward, whose estimate is log pi - log ref",
        "algo.kl_estimator algo.kl_unbiased",
        lambda run: run.cfg.algo.kl_in is KlIn.loss or not run.cfg.algo.kl_coef,
    ),
    Rule(ONE_STEP, "algo.clip_*", lambda run: run.clips),
    Rule(
        f"{ONE_STEP}, because algo.kl_estimator=k2 is multiplied with a ratio of 1",
        "algo.kl_unbiased",
        lambda run: run.clips or run.cfg.algo.kl_estimator is not KlEstimator.k2,
    ),
    Rule(
        "with algo.rollout_logprobs_as_old, whose ratio already compares with the engine",
        f"{_BOUNDS} algo.importance_tokens algo.sequence_* algo.rejected_in_mean",
        lambda run: not run.cfg.algo.rollout_logprobs_as_old,
    ),
    Rule(
        "without algo.importance_tokens=all, rollout.over_sampling above 1 or rollout.max_staleness",
        _BOUNDS,
        lambda run: run.corrects,
    ),
    Rule(
        "without algo.sequence_bound, algo.sequence_veto or algo.importance=mask with tokens that it corrects",
        "algo.rejected_in_mean",
        lambda run: run.rejects,
    ),
    Rule("without rollout.max_staleness", "rollout.publish", lambda run: run.cfg.rollout.max_staleness > 0),
    Rule(
        "with rollout.max_staleness, which has the groups of the next steps generated meanwhile",
        f"rollout.over_sampling rollout.surplus rollout.fixed_prompts {_LAG} buffer.*",
        lambda run: run.cfg.rollout.max_staleness == 0,
    ),
    Rule(
        "without rollout.over_sampling above 1",
        f"rollout.surplus rollout.fixed_prompts {_LAG} buffer.*",
        lambda run: run.cfg.rollout.over_sampling > 1,
    ),
    Rule(
        "with rollout.surplus=drop, which leaves no token of older weights",
        f"{_LAG} buffer.*",
        lambda run: run.cfg.rollout.continues,
    ),
    Rule(
        "without rollout.samples_per_prompt above 1",
        "train.share_prompts",
        lambda run: run.has_groups or not run.cfg.train.share_prompts,
    ),
    Rule(
        "without train.lr_decay=linear or cosine",
        "train.lr_decay_steps",
        lambda run: run.cfg.train.lr_decay is not LrDecay.constant,
    ),
    Rule(
        "without train.checkpoint.interval",
        "train.checkpoint.keep",
        lambda run: run.cfg.train.checkpoint.interval is not None,
    ),
)
"""The broad ones come first: of a key, the first condition that does not hold is named."""


def rules() -> Iterator[Rule]:
    """All of them, those of the installed transports last."""
    yield from RULES
    for name, keys in added_keys("transport").items():
        yield Rule(f"without weights.transport={name}", " ".join(keys), _is_transport(name))


def _is_transport(name: str) -> Callable[[Composition], bool]:
    return lambda run: transport_name(run.cfg.weights, run.cfg.rollout, run.cfg.cluster) == name


def idle_keys(
    given: Composition,
    composed: Composition,
    below: Iterable[Composition],
    preset: Iterable[Composition],
) -> Iterator[SlimeError]:
    """The keys with another value than their default that do nothing.

    Args:
        given: the config before values were derived, which look as if somebody had set them.
        below: what the run's files say under what is chosen and set above them. A key that acts there is no mistake:
            whoever switches evaluation off (`eval.path=null`) need not take back a recipe's `eval.*`.
        preset: what the file of the chosen algorithm says. Its values define it, also where none acts.
    """
    idle = {key: rule for key, rule in composed.idle.items() if given.is_set(key)}
    for layer in preset if any(key.startswith("algo.") for key in idle) else ():
        same = [key for key in idle if key.startswith("algo.") and layer.says_as(composed, key)]
        idle = {key: rule for key, rule in idle.items() if key not in same}
    for layer in below if idle else ():
        acts = [key for key in idle if layer.says_as(composed, key) and key not in layer.idle]
        idle = {key: rule for key, rule in idle.items() if key not in acts}
        if not idle:
            return
    yield from (rule.refusal(key) for key, rule in idle.items())
