"""`slime check-reward REWARD DATA [reward.* and data.* keys]`: whether a reward is fit to be learned from."""

from __future__ import annotations

import json
import re
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, cast

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from slime import plugins
from slime.arguments import ArgumentParser
from slime.errors import SlimeError, did_you_mean
from slime.printable import printable

if TYPE_CHECKING:
    from slime.config.schema import DataConfig, RewardConfig
    from slime.types import Prompt
    from slime_tools.check_reward.trial import Outcome, Trial

_SECTIONS = ("reward", "data")
_KEYS = "\n  reward.*=..., data.prompt_key=..., data.label_key=...   as for a run\n"
UNFIT = 1
"""Exit code."""


def add_arguments(parser: ArgumentParser) -> None:
    parser.description = "Tries a reward on right, wrong and hostile responses; exits with 1 if it is unfit."
    parser.add_argument("reward", help="name of a reward, or FILE.py:FUNCTION")
    parser.add_argument("data", help="prompt set, as data.path")
    parser.add_keys("options of the reward and columns of the data", _KEYS)
    parser.add_argument("--rows", type=int, default=200, help="rows from the start of the set (default: 200)")
    parser.add_argument("--template", help="how a response states its answer, with {label} (default: what pays most)")
    parser.add_argument("--answers", help="column of right responses, where they cannot be made of labels")
    parser.add_argument(
        "--pays", type=float, default=0.5, help="value from which an answer counts as paid (default: 0.5)"
    )
    parser.add_argument("--least", type=float, default=0.98, help="share of right answers to be paid (default: 0.98)")
    parser.add_argument("--json", action="store_true", help="print the result for programs")


def run(args: Namespace) -> int:
    """Raises SlimeError: the reward, the data or a key is wrong."""
    from slime_tools.check_reward.trial import refused_labels, try_reward

    reward, data = read_keys(args.reward, args.keys)
    if group := reward.options.get("engines"):
        what = f"reward '{reward.name}' asks the engine group '{group}', which only a run starts"
        todo = "Start a run with run.num_steps=1, and read its scores: slime samples runs/<name>."
        raise SlimeError(what, where="reward.options.engines", todo=todo)
    prompts = prompts_of(args.data, data, args.rows)
    answers = answers_of(prompts, args.answers, args.data) if args.answers else None
    factory = plugins.load().rewards.get(reward.name).factory
    if not (answers or args.template or getattr(factory, "label_is_answer", True)):
        if refused := refused_labels(reward, prompts):
            what = f"reward '{reward.name}' refuses {len(refused)} of {len(prompts)} labels. {refused[0]}"
            raise SlimeError(what, where=args.data, todo="Name another column (data.label_key), or mend the rows.")
        what = f"reward '{reward.name}' reads all {len(prompts)} labels, but a label is no answer to be tried"
        todo = "Name a column of right responses: --answers solution."
        raise SlimeError(what, where="slime check-reward", todo=todo)
    trial = try_reward(reward, prompts, args.template, args.pays, answers)
    faults = trial.faults(args.least)
    if args.json:
        print(json.dumps({**asdict(trial), "faults": faults}, indent=1))
    else:
        known_as = getattr(plugins.load().schemas.get(f"reward/{reward.name}"), "known_as", None)
        form = known_as(reward.options) if known_as else ""
        print(printable(shown(args.reward, trial, faults, form)))
    return UNFIT if faults else 0


def read_keys(name: str, keys: Sequence[str]) -> tuple[RewardConfig, DataConfig]:
    """The sections `reward` and `data` of a run with these keys.

    Raises:
        SlimeError: a key or an option is wrong, or no such reward is installed.
    """
    from slime.compose.options import check_options, completed, defaults_of, own_problems
    from slime.config.schema import DataConfig, RewardConfig

    if wrong := [key for key in keys if key.partition(".")[0] not in _SECTIONS or "=" not in key]:
        todo = "Set keys of reward and data, such as data.label_key=answer."
        raise SlimeError(f"'{wrong[0]}' is no key of them", where="slime check-reward", todo=todo)
    base = OmegaConf.create({"reward": OmegaConf.structured(RewardConfig), "data": OmegaConf.structured(DataConfig)})
    keys = [re.sub(r"^reward\.(?=(parts|path)\b)", "reward.options.", key) for key in keys]
    by_path = [f"reward.options.path={name}"] if ":" in name or name.endswith(".py") else []
    try:
        merged = OmegaConf.merge(base, OmegaConf.from_dotlist([*keys, *by_path]), {"data": {"path": ""}})
        merged.reward.name = "function" if by_path else name
        reward = cast("RewardConfig", OmegaConf.to_object(merged.reward))
        data = cast("DataConfig", OmegaConf.to_object(merged.data))
    except OmegaConfBaseException as error:
        fault = str(error).splitlines()[0]
        raise SlimeError(fault, where="slime check-reward", todo="docs/config.md lists the keys.") from error
    installed = plugins.load()
    item, schema = installed.rewards.get(reward.name), installed.schemas.get(f"reward/{reward.name}")
    reward.options = completed(schema, defaults_of(schema) | reward.options)
    for problem in check_options(item, reward.options, schema, "reward.options"):
        raise problem
    for problem in own_problems(schema, reward.options, "reward.options"):
        raise problem
    return reward, data


def prompts_of(path: str, data: DataConfig, count: int) -> list[Prompt]:
    """The first rows as prompts without tokens: a reward sees none.

    Raises:
        SlimeError: there is no such file, a row is damaged, or has no such column.
    """
    from slime.config.paths import resolve_rows
    from slime.data.prompt_rows import asked, check_prompts, is_text
    from slime.data.rows import first_rows
    from slime.types import Prompt

    if data.label_key is None:
        raise SlimeError("right answers are made of labels", where="data.label_key", todo="Name the column.")
    rows = first_rows(resolve_rows(path), count)
    if not rows:
        raise SlimeError("there are no rows", where=path, todo="Give a prompt set.")
    check_prompts(rows, data)
    own = {data.prompt_key, data.label_key}
    return [
        Prompt(
            f"0/{row.number}",
            asked(row, data),
            (),
            row[data.label_key],
            {name: value for name, value in row.values.items() if name not in own},
            is_text=is_text(row, data.prompt_key),
        )
        for row in rows
    ]


def answers_of(prompts: Sequence[Prompt], column: str, path: str) -> list[str]:
    """The right responses that the rows give.

    Raises:
        SlimeError: a row has no such column, or no text in it.
    """
    found = [prompt.metadata.get(column) for prompt in prompts]
    for prompt, answer in zip(prompts, found, strict=True):
        if not isinstance(answer, str) or not answer.strip():
            what = f"row {prompt.id.rpartition('/')[2]} has no text in the column '{column}'"
            raise SlimeError(what, where=path, todo=did_you_mean(column, prompt.metadata))
    return [str(answer) for answer in found]


def shown(name: str, trial: Trial, faults: Sequence[str], form: str = "") -> str:
    """The table; `form` is the other program that a function was written for."""
    answers, seconds = trial.right.num + trial.wrong.num, trial.right.seconds + trial.wrong.seconds
    stated = f"answers stated as {trial.template!r}" if trial.template else "answers as the rows give them"
    lines = [f"{name}, {stated}", *([f"read as a function for {form}"] if form else []), ""]
    lines += [
        _row("right answers", trial.right, "paid"),
        _row("wrong answers", trial.wrong, "paid, should be 0"),
        _row("hostile responses", trial.hostile, "paid, should be 0"),
        f"{'speed':<20}{answers / max(seconds, 1e-9):>8,.0f} answers/s",
        "",
    ]
    return "\n".join([*lines, *([f"unfit: {fault}" for fault in faults] or ["fit"])])


def _row(what: str, outcome: Outcome, paid: str) -> str:
    if not outcome.num:
        return f"{what:<20}  not tried: no right answer got a value"
    without = "".join(f", {count} {kind}" for kind, count in sorted(outcome.without.items()))
    head = f"{what:<20}{outcome.num:>8,}: {outcome.paid:,} {paid}{without}"
    parts = ", ".join(f"{name} {mean:.3f}" for name, mean in outcome.parts.items())
    return "\n".join([head, *([f"    parts: {parts}"] if parts else ()), *(f"    {each}" for each in outcome.examples)])
