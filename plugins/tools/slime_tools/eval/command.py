"""`slime eval PATH`: the model of a run directory, or of an HF folder, on held-out prompts.

The evaluation has a run directory of its own, `<run>/eval/<checkpoint>`, so that it can run beside the training.
"""

from __future__ import annotations

import json
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import slime
from slime import files
from slime.arguments import ArgumentParser
from slime.checkpoints import Checkpoint, published
from slime.compose.compose import Composed
from slime.config.schema import SlimeConfig
from slime.errors import SlimeError
from slime.printable import printable
from slime_tools.eval.saved import of_folder, of_run

RESULT = "result.json"
EVAL, REWARD, PASS = "eval/", "reward_mean", "pass_at_"
WORDS = """\
key=value and +group=option change what the run's config says: +cluster=... for where the evaluation runs (the run's
own devices unless given), eval.samples_per_prompt=8 for pass@k, task=... or eval.path=... for other prompts,
run.name=... for another folder than eval/<checkpoint>. An HF folder needs +cluster=... and a task, or the +model=...
that brings one.
"""


def add_arguments(parser: ArgumentParser) -> None:
    parser.description = "Score a model on held-out prompts."
    parser.add_argument("path", type=_path, help="run directory, or HF folder")
    parser.add_keys("what is different from the run", WORDS)
    parser.add_argument("--checkpoint", type=int, metavar="N", help="number of the checkpoint (default: the newest)")


def run(args: Namespace) -> None:
    """Raises SlimeError: there is nothing to evaluate at that path, or the evaluation failed."""
    composed, checkpoint = _read(args.path, args.checkpoint, args.keys)
    from slime_tools.eval.score import evaluate

    start = time.time()
    values = evaluate(composed, checkpoint)
    cfg = composed.cfg
    folder = Path(cfg.run.dir) / cfg.run.name
    result = _result(cfg, checkpoint, start, values)
    with files.disk_errors(folder):
        files.write_atomic(folder / RESULT, json.dumps(result, indent=1).encode() + b"\n")
    print(printable("\n".join(shown(result, folder))))


def _path(word: str) -> Path:
    if "=" in word:
        todo = "Name it first: slime eval runs/<name> [key=value ...]."
        raise SlimeError(f"'{word}' is neither a run directory nor an HF folder", todo=todo)
    return Path(word).absolute()


def _read(path: Path, number: int | None, words: Sequence[str]) -> tuple[Composed, Checkpoint | None]:
    if (path / "config.yaml").is_file():
        checkpoint = _checkpoint(path, number)
        return of_run(path / "config.yaml", words, path / "eval" / checkpoint.path.name, checkpoint.path), checkpoint
    if not (path / "config.json").is_file():
        todo = "Name a folder with the config.yaml of a run, or the config.json of a model."
        raise SlimeError("this is neither a run directory nor an HF folder", where=str(path), todo=todo)
    if number is not None:
        raise SlimeError("an HF folder has no checkpoints", where=str(path), todo="Leave --checkpoint out.")
    return of_folder(path, words, Path("runs").absolute() / f"{path.name}-eval"), None


def _checkpoint(run: Path, number: int | None) -> Checkpoint:
    there = {checkpoint.step: checkpoint for checkpoint in published(run / "checkpoints")}
    if not there:
        todo = "Wait until it has saved one, or set train.checkpoint.interval."
        raise SlimeError("there is no checkpoint yet", where=str(run), todo=todo)
    number = max(there) if number is None else number
    if number not in there:
        todo = f"There are {', '.join(map(str, there))}."
        raise SlimeError(f"there is no checkpoint {number}", where=str(run), todo=todo)
    if problem := there[number].problem(None):
        where = there[number].path
        reason = problem if where.exists() else "it was removed to make room for newer ones"
        todo = "Choose another checkpoint of the run."
        raise SlimeError(f"this checkpoint cannot be used: {reason}", where=str(where), todo=todo)
    return there[number]


def _result(
    cfg: SlimeConfig, checkpoint: Checkpoint | None, start: float, values: Mapping[str, float]
) -> dict[str, Any]:
    return {
        "slime": slime.__version__,
        "model": cfg.model.name,
        "weights": str(checkpoint.path if checkpoint else cfg.model.path),
        "position": checkpoint.driver_state()["position"] if checkpoint else None,
        "prompts": cfg.eval.path,
        "reward": cfg.reward.name,
        "seed": cfg.run.seed,
        "samples_per_prompt": cfg.eval.samples_per_prompt,
        "sampling": vars(cfg.eval.sampling),
        "sets": {
            name: {
                "prompts": own.path,
                "reward": own.reward or cfg.reward.name,
                "samples_per_prompt": own.samples_per_prompt,
                "sampling": vars(own.sampling),
            }
            for name, own in cfg.eval.sets.items()
        },
        "started": round(start, 3),
        "metrics": dict(values),
    }


def shown(result: Mapping[str, Any], folder: Path) -> Iterator[str]:
    """A result for people, line by line: the metrics of each set below its prompts."""
    metrics, sets = result["metrics"], result["sets"]
    yield ""
    yield f"{result['weights']}{_where(result['position'])}"
    for name, asked in {"": result, **sets}.items():
        count, of = asked["samples_per_prompt"], f"{name}: " if name else ""
        yield f"{of}on {asked['prompts']}, {count} sample{'s' if count > 1 else ''} a prompt"
        yield from _of_set(metrics, f"{EVAL}{name}/" if name else EVAL, count)
    yield f"result   {folder / RESULT}"
    yield f"samples  slime samples {folder}"


def _of_set(metrics: Mapping[str, float | None], prefix: str, count: int) -> Iterator[str]:
    own = {name.removeprefix(prefix): value for name, value in metrics.items() if name.startswith(prefix)}
    own = {name: value for name, value in own.items() if "/" not in name}
    mean = {f"mean of {count}" if count > 1 else "reward": own.pop(REWARD, None)}
    passes = {f"pass@{name.removeprefix(PASS)}": value for name, value in own.items() if name.startswith(PASS)}
    rest = {name.replace("_", " "): value for name, value in own.items() if not name.startswith(PASS)}
    for name, value in {**mean, **passes, **rest}.items():
        yield f"  {name:<28}" + (f"{value:>12.4f}" if value is not None else f"{'none has a value':>16}")


def _where(position: Mapping[str, int] | None) -> str:
    if position is None:
        return ""
    names = {"sft_step": "supervised", "rl_step": "reinforcement-learning"}
    return " after " + " and ".join(f"{position[name]} {text} steps" for name, text in names.items() if position[name])
