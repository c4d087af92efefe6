"""`slime replay RUN STEP`: trains again on what a step of a run trained on, or generates that again, and compares.

It works in a folder of its own, `<run.dir>/replays/<run>-<step>`, and writes nothing into the run.
"""

from __future__ import annotations

import dataclasses
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import groupby
from pathlib import Path

from slime.algo.stages import made_by, objective_of
from slime.arguments import ArgumentParser
from slime.checkpoints import Checkpoint, published
from slime.compose.compose import Composed, checked, ready
from slime.config.changes import FOLLOWING
from slime.errors import SlimeError
from slime.observe.metrics import read_rows
from slime.printable import printable
from slime.run_dir import step_of
from slime.types import RL
from slime_observers.samples.groups import read_groups, recorded_steps
from slime_tools.replay.compare import of_groups, of_metrics, pairs
from slime_tools.saved import installed, line_of, merged, read_saved

WORDS = """\
key=value and +cluster=... change what the run's config says: +cluster=local2 for where it runs,
train.megatron.tensor_model_parallel_size=2 for another layout, algo.clip_low=0.1 for another loss.
"""
SECTIONS = ("run", "model", "cluster", "train", "weights")
Start = tuple[int, Checkpoint | None]
"""The step after which a replay begins, and its checkpoint; None: the weights that the run began with."""


def add_arguments(parser: ArgumentParser) -> None:
    parser.description = "Train again on what a step trained on, and compare its metrics with the recorded ones."
    parser.add_argument("path", type=Path, metavar="run", help="run directory")
    parser.add_argument("step", type=_step, help="number of a reinforcement-learning step")
    parser.add_keys("what is different from the run", WORDS)
    parser.add_argument(
        "--generate", action="store_true", help="generate its samples again, and compare these; the step is not trained"
    )


def _step(word: str) -> int:
    if not word.isdecimal():
        raise SlimeError(
            f"'{word}' is no number of a step", todo="Name it second: slime replay RUN STEP [key=value ...]."
        )
    return int(word)


def run(args: Namespace) -> None:
    """Raises SlimeError: the step cannot be replayed, or the replay failed."""
    path, step = args.path.absolute(), args.step
    composed = of_run(path, step, args.keys, generates=args.generate)
    start = start_of(path, step, composed.cfg.sft.num_steps)
    recorded = {row["step"]: row for row in read_rows(path / "metrics.jsonl") if row["stage"] == RL}
    for line in replay(composed, path, step, start, recorded, generates=args.generate):
        print(printable(line), flush=True)


def of_run(path: Path, step: int, words: Sequence[str], *, generates: bool) -> Composed:
    """What replays a step: the run's config under these words, in a folder of its own, with trackers and checkpoints
    left out. Raises SlimeError if it cannot run so."""
    if not (path / "config.yaml").is_file():
        todo = "Name a folder with the config.yaml of a run."
        raise SlimeError("this is no run directory", where=str(path), todo=todo)
    saved, (plugins, groups) = read_saved(path / "config.yaml", SECTIONS), installed()
    line = line_of(words, groups)
    if others := [f"{group}={option}" for group, option in line.choices.items() if group != "cluster"]:
        raise SlimeError("a replay takes keys and a cluster", where=others[0], todo="Leave it out.")
    for section in ("cluster", "weights") if line.choices else ():
        del saved[section]
    saved["run"] |= {"dir": str(path.parent / "replays"), "name": f"{path.name}-{step}", "resume": "auto"}
    saved["train"]["megatron"] = {
        key: value for key, value in saved["train"]["megatron"].items() if key not in FOLLOWING
    }
    cfg = merged(saved, line, groups)
    cfg.observe.trackers = dict.fromkeys(plugins.trackers.names(), False)
    cfg.train.checkpoint.interval, cfg.train.checkpoint.export_hf = None, False
    if generates and cfg.rollout.max_staleness:  # nothing is begun ahead
        cfg.rollout.max_staleness, cfg.rollout.max_weight_lag = 0, cfg.rollout.oldest_trained
    composed = ready(checked(cfg, line, plugins))
    assert composed.topology, "its config has no problems"
    if not generates and composed.topology.frozen and made_by(objective_of(cfg.algo)):
        todo = "Generate it again: --generate."
        raise SlimeError("its objective asks engines, which a replay does not start", where="algo.name", todo=todo)
    if not generates:
        composed.topology = dataclasses.replace(composed.topology, groups=(), frozen=())
    return composed


def start_of(path: Path, step: int, num_sft_steps: int) -> Start:
    """The newest point before `step` from which every step up to it can be replayed. Raises SlimeError where there is
    none, which names the steps that can be."""
    there = [each for each in published(path / "checkpoints") if each.step >= num_sft_steps]
    starts: list[Start] = [(each.step - num_sft_steps, each) for each in reversed(there)]
    starts += [(0, None)] if not num_sft_steps else []
    recorded = {*recorded_steps(path)}

    def leads_to(wanted: int) -> Iterator[Start]:
        return (each for each in starts if each[0] < wanted and recorded.issuperset(range(each[0] + 1, wanted + 1)))

    if (found := next(leads_to(step), None)) is None:
        can = [each for each in sorted(recorded) if any(leads_to(each))]
        lacks = "no checkpoint before it leads to it" if step in recorded else "its samples are not recorded"
        more = " Raise observe.replay_mb, or save more often (train.checkpoint.interval, train.checkpoint.keep)."
        todo = f"Steps that can: {in_ranges(can)}." if can else f"No step can.{more}"
        raise SlimeError(f"step {step} cannot be replayed: {lacks}", where=str(path), todo=todo)
    if found[1] and (problem := found[1].problem()):
        raise SlimeError(f"this checkpoint cannot be used: {problem}", where=str(found[1].path), todo="Replay another.")
    return found


def in_ranges(steps: Sequence[int]) -> str:
    """`1 to 4, 7` for 1, 2, 3, 4 and 7."""
    runs = [[step for _, step in run] for _, run in groupby(enumerate(steps), lambda pair: pair[1] - pair[0])]
    return ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def replay(
    composed: Composed,
    path: Path,
    step: int,
    start: Start,
    recorded: Mapping[int, Mapping[str, float]],
    *,
    generates: bool,
) -> Iterator[str]:
    """Lines of what came out, as it does.

    Args:
        path: of the run.
        recorded: metrics of its steps, by number.

    Raises:
        SlimeError: whatever stopped the replay.
    """
    from slime.observe.stopwatch import Stopwatch
    from slime.opening import open_run
    from slime.run import learn

    groups = {each: read_groups(path, each) for each in range(start[0] + 1, step + 1)}
    with ExitStack() as stack:
        run = open_run(composed, stack, log_metrics=False, checkpoint=start[1])
        stage = run.stages[RL]
        run.learner.prepare(stage)
        after = step_of(start[1].step, composed.cfg.sft.num_steps) if start[1] else "the start"
        yield f"from {start[1].path if start[1] else 'the weights that the run began with'}, {after}"
        for each in range(start[0] + 1, step if generates else step + 1):
            values = learn(run, stage, each, groups[each], Stopwatch())
            run.learner.position.rl_step = each
            yield from of_metrics(each, pairs(recorded.get(each, {}), values), whole=each == step)
        if generates:
            run.generation.publish(step - 1)
            yield from of_groups(step, groups[step], run.generation.again(groups[step], step - 1))
