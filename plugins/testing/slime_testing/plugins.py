"""Contract tests for plugins, to be called from a plugin's own tests: what slime relies on, checked on the real thing.

    from slime_testing.plugins import RewardCase, check_reward

    def test_contract() -> None:
        check_reward("shortness", [RewardCase("hi", None, 0.5), RewardCase("", None, Verdict.invalid("empty"))])

They need the plugin to be installed (`pip install -e .`), because being found is part of the contract.
"""

from __future__ import annotations

import asyncio
import copy
import math
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from slime import builtins, events, plugins
from slime.compose import groups as config_groups
from slime.config.schema import RewardConfig
from slime.contracts import SampleTracker, Tracker
from slime.errors import SlimeError
from slime.registry import Contribution, Registry
from slime.reward.service import RewardService
from slime.sampling.guarded import REASON, are_amounts
from slime.segments import Segment, WeightSpan
from slime.types import Decision, Group, Prompt, Sample, TrackedRun, Verdict, VerdictKind

HEAVY = ("torch", "ray", "sglang", "transformers", "megatron")
"""What neither importing a plugin nor `slime plan` may import: each costs a second or more."""
TRACKED = {"rollout/reward_mean": 0.25, "train/loss": math.nan, "seconds/step": 1.5}
"""Metrics of a step of `check_tracker`."""
SHOWN = [
    {
        "prompt": "0/7",
        "sample": sample,
        "reward": reward,
        "verdict": "value",
        "reason": "",
        "parts": {"digits": 0.5},
        "filter": "kept",
        "finish": "completed",
        "num_tokens": 2,
        "weight_versions": [[3, 2]],
        "label": label,
        "messages": [{"role": "user", "content": "3 + 5"}],
        "response": response,
    }
    for sample, reward, label, response in [(0, 0.0, 8, "<b>7</b>\n"), (1, 1.0, "8", "It is\n8")]
]
"""Samples of a step of `check_tracker`."""
UNKNOWN_OPTION = "no_such_option"

Options = Mapping[str, Any]


@dataclass(frozen=True)
class RewardCase:
    """One response, its label, and the verdict it must get (a number stands for a VALUE verdict with any parts)."""

    response: str
    label: Any
    expected: Verdict | float
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class GroupCase:
    """The responses to one prompt, and the verdict that each must get of a reward that judges them together."""

    responses: Sequence[str]
    label: Any
    expected: Sequence[Verdict | float]
    metadata: Mapping[str, Any] = field(default_factory=dict)


def sample(response: str, label: Any = None, metadata: Mapping[str, Any] | None = None) -> Sample:
    """A sample that has only what most rewards read."""
    return Sample(Prompt("0/0", (), (), label, metadata or {}), index=0, response=response)


def group(rewards: Sequence[float | None], lengths: Sequence[int] = ()) -> Group:
    """A group of samples with these reward values, and as many sampled tokens as `lengths` says, if it says any; a
    reward of None is an error."""
    prompt = Prompt("0/0", (), ())
    verdicts = [Verdict.error("no value") if reward is None else Verdict.of(reward) for reward in rewards]
    samples = [Sample(prompt, index, verdict=verdict) for index, verdict in enumerate(verdicts)]
    for sample, count in zip(samples, lengths, strict=False):
        sample.segments.append(Segment((), [0] * count, [0.0] * count, [1] * count, [WeightSpan(0, count)]))
    return Group(prompt, samples)


def check_reward(name: str, cases: Sequence[RewardCase | GroupCase], options: Options | None = None) -> None:
    """Assert that reward `name` is well installed and gives the expected verdicts in real worker processes.

    Every case is judged twice, by two workers with a reward object each: the verdicts must be equal.

    Args:
        cases: at least one; of a reward with `score_group` in the place of `score`, all are `GroupCase`.
        options: `reward.options` of the run; the plugin's schema must know and type them.

    Raises:
        AssertionError: a part of the contract is broken; says which.
        SlimeError: the reward cannot be created.
    """
    assert cases, "a contract test needs a case"
    check_contribution(plugins.load().rewards, name, options or {})
    cfg = RewardConfig(name=name, options=typed_options(f"reward/{name}", options or {}), num_workers=2, timeout_s=60)
    with RewardService(cfg) as service:
        kind = GroupCase if service.judges_groups(sample("").prompt) else RewardCase
        assert all(isinstance(case, kind) for case in cases), f"reward '{name}' is tested by {kind.__name__}s"
        once, again = (asyncio.run(_verdicts(service, cases)) for _ in range(2))
    for case, firsts, seconds in zip(cases, once, again, strict=True):
        texts = case.responses if isinstance(case, GroupCase) else [case.response]
        wanted = case.expected if isinstance(case, GroupCase) else [case.expected]
        for text, want, first, second in zip(texts, wanted, firsts, seconds, strict=True):
            assert _like(first, want), f"{text!r} with label {case.label!r}: {first}, not {want}"
            assert first == second, f"{text!r} is judged differently the second time: {first}, then {second}"


def check_filter(
    name: str, cases: Sequence[tuple[Sequence[float | None], Decision]], options: Options | None = None
) -> None:
    """Assert that filter `name` is well installed and decides as expected, twice alike and without touching the group.

    Args:
        cases: the reward values of a group (None where the reward failed), and the decision; at least one.
        options: `filter.options` of the run; the plugin's schema must know and type them.

    Raises:
        AssertionError: a part of the contract is broken; says which.
    """
    assert cases, "a contract test needs a case"
    registry = plugins.load().filters
    check_contribution(registry, name, options or {})
    chosen = registry.create(name, **typed_options(f"filter/{name}", options or {}))
    for rewards, expected in cases:
        given = group(rewards)
        before = copy.deepcopy(given)
        decision = chosen.decide(given)
        assert decision == expected, f"{rewards}: {decision}, not {expected}"
        assert chosen.decide(given) == decision, f"{rewards}: decided differently the second time"
        assert given == before, f"{rewards}: the filter changed the group"
        check_reason(decision)


def check_shaping(name: str, cases: Sequence[tuple[Group, Sequence[float]]], options: Options | None = None) -> None:
    """Assert that filter `name` shapes rewards as expected, twice alike and without touching the group.

    Args:
        cases: a group (`group` makes one), and what is added to each of its rewards; at least one.
        options: as of `check_filter`, which checks the rest of its contract.

    Raises:
        AssertionError: a part of the contract is broken; says which.
    """
    assert cases, "a contract test needs a case"
    chosen: Any = plugins.load().filters.create(name, **typed_options(f"filter/{name}", options or {}))
    for given, expected in cases:
        before = copy.deepcopy(given)
        amounts = chosen.shape(given)
        assert are_amounts(amounts, len(given.samples)), f"{amounts!r}: not {len(given.samples)} finite numbers"
        close = all(_close(one, other) for one, other in zip(amounts, expected, strict=True))
        assert close, f"{amounts}, not {expected}"
        assert chosen.shape(given) == amounts, "shaped differently the second time"
        assert given == before, "the filter changed the group itself: it says what is to be added"


def check_reason(decision: Decision) -> None:
    """Assert that a decision's reason can be a metric's name."""
    metric = decision.keep or REASON.fullmatch(decision.reason)
    assert metric, f"reason '{decision.reason}' becomes a metric's name: use a-z, 0-9 and _"


def check_tracker(name: str, folder: Path, options: Options | None = None) -> None:
    """Assert that tracker `name` is well installed, and takes a run that stops and continues after its first step.

    The steps are ("rl", 0), 1 and 2 with the metrics of `TRACKED`, of which one is not finite, then 2 again; a tracker
    that shows samples gets those of `SHOWN`. What came
    of them is for the caller to see, in `folder` or wherever the tracker shows it.

    Args:
        folder: the run directory.
        options: `observe.trackers.<name>` of the run; the plugin's schema must know and type them.

    Raises:
        AssertionError: a part of the contract is broken; says which.
        Exception: whatever the tracker raises.
    """
    registry = plugins.load().trackers
    contribution = registry.get(name)
    check_light(contribution)
    given = typed_options(f"tracker/{name}", options or {})
    check_refuses_unknown(registry, name, given)
    for resumed, steps in ((None, (0, 1, 2)), (("rl", 1), (2,))):
        tracker = registry.create(name, **given)
        assert isinstance(tracker, Tracker), f"tracker '{name}' has not the methods of slime.contracts.Tracker"
        tracker.start(TrackedRun("tracked", folder, {"run": {"name": "tracked", "seed": len(steps)}, "sft": {}}))
        if resumed:
            tracker.resume(*resumed)
        for step in steps:
            values = dict(TRACKED)
            tracker.log("rl", step, 1.8e9 + step, values)
            assert repr(values) == repr(TRACKED), "the tracker changed the metrics, which others get after it"
            if isinstance(tracker, SampleTracker):
                tables = {"rollout/samples": [dict(row) for row in SHOWN]}
                tracker.log_samples("rl", step, 1.8e9 + step, tables)
                assert tables == {"rollout/samples": SHOWN}, "the tracker changed the samples"
        tracker.finish("finished" if resumed else "interrupted")


def check_subscriber(name: str, folder: Path) -> None:
    """Assert that subscriber `name` is well installed, and takes the events of a run that finishes, then of one that
    continues it and fails. Events that it does not know must do nothing: later versions of slime have more.

    Args:
        folder: the run directory. What the subscriber leaves there is for the caller to see.

    Raises:
        AssertionError: a part of the contract is broken; says which.
        Exception: whatever the subscriber raises.
    """
    registry = plugins.load().subscribers
    check_light(registry.get(name))
    run = TrackedRun("told", folder, {"run": {"name": "told"}, "sft": {}})
    error = SlimeError("boom", where="here", todo="Mend it.")
    scored = group([0.0, 1.0])
    step = [events.Phase("generate", 1, 1), events.Samples(1, [scored], [(scored, Decision(keep=True))])]
    step += [events.Phase("train"), events.Evaluation(1, [scored], {"eval/reward_mean": 0.5})]
    stage = [events.StageBegan("rl", 1), *step, events.Step("rl", 1, dict(TRACKED)), events.StageEnded()]
    for ended in ([events.Complete(), events.Ended("finished")], [events.Ended("failed", error)]):
        bus = {"events": events.Events()} if getattr(registry.get(name).factory, "every_session", False) else {}
        told = registry.create(name, run=run, **bus)
        assert callable(told), f"the factory of subscriber '{name}' returned {told!r}, not a function of an event"
        restored = events.Restored(None if len(ended) > 1 else ("sft", 3))
        waited = [events.Starting("loading"), events.Waiting("loading", ["trainer-0"]), restored, events.Ready("ready")]
        for event in (*waited, *stage, _Unknown(), *ended):
            before = repr(event)
            told(event)
            assert repr(event) == before, f"subscriber '{name}' changed an event, which others get after it"


class _Unknown:
    """An event of a later slime."""


def check_contribution(registry: Registry[Any], name: str, options: Options) -> None:
    """Assert what holds for everything chosen by name: found, light to import, selectable, with options that are typed.

    Raises:
        AssertionError, or SlimeError if nothing of that name is installed.
    """
    check_light(registry.get(name))
    check_choice(registry, name)
    check_refuses_unknown(registry, name, typed_options(f"{registry.kind}/{name}", options))


def check_choice(registry: Registry[Any], name: str) -> None:
    """Assert that it can be chosen in its config group.

    Raises:
        AssertionError, or SlimeError if nothing of that name is installed.
    """
    contribution = registry.get(name)
    shipped = config_groups.scan(plugins.load()).of(contribution.distribution).get(registry.kind, [])
    where = f"conf/{registry.kind}/{name}.yaml"
    assert name in shipped, f"{registry.kind}={name} cannot be chosen: {contribution.distribution} ships no {where}"


def check_light(contribution: Contribution, more: str = "") -> None:
    """Assert that importing its plugin imports none of `HEAVY`.

    Args:
        more: code that runs after the import, and is to be light too.

    Raises:
        AssertionError.
    """
    modules = [
        entry.module
        for entry in entry_points(group=plugins.ENTRY_POINT_GROUP)
        if entry.dist is not None and entry.dist.name == contribution.distribution
    ] or [builtins.__name__]
    code = f"import sys; sys.path[:] = {sys.path!r}\nimport {', '.join(modules)}\n{more}\nprint(*sys.modules)"
    imported = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    heavy = [module for module in HEAVY if module in imported]
    assert not heavy, f"importing {', '.join(modules)} imports {', '.join(heavy)}; import them where they are used"


def check_refuses_unknown(registry: Registry[Any], name: str, options: Options) -> None:
    """Assert that its factory raises TypeError at an option that it does not know.

    Raises:
        AssertionError.
    """
    try:
        registry.create(name, **options, **{UNKNOWN_OPTION: None})
    except TypeError:
        return
    raise AssertionError(f"{registry.kind} '{name}' takes options it does not know; give its factory no **keywords")


def typed_options(key: str, options: Options) -> dict[str, Any]:
    """The schema's defaults with `options` over them; the schema must have each of them, with that type."""
    from slime.compose.options import check_options, defaults_of

    installed = plugins.load()
    schema = installed.schemas.get(key)
    if schema is None:
        assert not options, f"slime_config_schemas has no '{key}', so options {sorted(options)} are not checked"
        return {}
    kind, _, name = key.partition("/")
    chosen = defaults_of(schema) | dict(options)
    for fault in check_options(installed.registries[kind].get(name), chosen, schema, f"{kind}.options"):
        raise fault
    return chosen


async def _verdicts(service: RewardService, cases: Sequence[RewardCase | GroupCase]) -> list[list[Verdict]]:
    async def of(case: RewardCase | GroupCase) -> list[Verdict]:
        if isinstance(case, RewardCase):
            return [await service.score(sample(case.response, case.label, case.metadata))]
        samples = [sample(text, case.label, case.metadata) for text in case.responses]
        return await service.score_group([replace(each, index=index) for index, each in enumerate(samples)])

    return list(await asyncio.gather(*map(of, cases)))


def _like(verdict: Verdict, expected: Verdict | float) -> bool:
    """Equal, with numbers up to rounding (1e-9 relative: a sum in another order, not another result)."""
    if not isinstance(expected, Verdict):
        return verdict.kind is VerdictKind.VALUE and _close(verdict.value, expected)
    same_parts = verdict.parts.keys() == expected.parts.keys() and all(
        _close(verdict.parts[part], expected.parts[part]) for part in expected.parts
    )
    same_text = (verdict.kind, verdict.reason) == (expected.kind, expected.reason)
    return same_text and same_parts and _close(verdict.value, expected.value)


def _close(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-12)
