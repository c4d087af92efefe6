"""`slime eval PATH`: the model of a run directory, or of an HF folder, on held-out prompts.

The evaluation has a run directory of its own, `<run>/eval/<checkpoint>`, so that it can run beside the training.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import slime
from slime import files
from slime.checkpoints import Checkpoint, published
from slime.config.groups import DECLARED
from slime.config.saved import of_folder, of_run
from slime.config.schema import SlimeConfig
from slime.errors import SlimeError
from slime.tools.arguments import ArgumentParser
from slime.usage import refuse_strangers

RESULT = "result.json"
REWARD, PASS = "eval/reward_mean", "eval/pass_at_"
WORDS = """\
key=value and +group=option change what the run's config says: +cluster=... for where the evaluation runs (the run's
own devices unless given), eval.samples_per_prompt=8 for pass@k, task=... or eval.path=... for other prompts,
run.name=... for another folder than eval/<checkpoint>. An HF folder needs +cluster=... and a task, or the +model=...
that brings one.
"""


def main(argv: Sequence[str]) -> None:
    """Run `slime eval <argv>`.

    Raises:
        SlimeError: there is nothing to evaluate at that path, or the evaluation failed.
    """
    parser = ArgumentParser(
        prog="slime eval", description="Score a model on held-out prompts.", epilog=WORDS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("path", help="run directory, or HF folder")
    parser.add_argument("words", nargs="*", default=[], metavar="key=value", help="what is different from the run")
    parser.add_argument("--checkpoint", type=int, metavar="N", help="number of the checkpoint (default: the newest)")
    args = parser.parse_intermixed_args(argv)
    cfg, checkpoint = _read(args.path, args.checkpoint, args.words)
    from slime.run import evaluate

    start = time.time()
    values = evaluate(cfg, checkpoint)
    folder = Path(cfg.run.dir) / cfg.run.name
    result = _result(cfg, checkpoint, start, values)
    with files.disk_errors(folder):
        files.write_atomic(folder / RESULT, json.dumps(result, indent=1).encode() + b"\n")
    print("\n".join(shown(result, folder)))


def _read(name: str, number: int | None, words: Sequence[str]) -> tuple[SlimeConfig, Checkpoint | None]:
    if "=" in name:
        todo = "Name it first: slime eval runs/<name> [key=value ...]."
        raise SlimeError(f"'{name}' is neither a run directory nor an HF folder", todo=todo)
    refuse_strangers("eval", words, DECLARED)
    path = Path(name).absolute()
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
    there[number].require_good()
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
        "started": round(start, 3),
        "metrics": dict(values),
    }


def shown(result: Mapping[str, Any], folder: Path) -> Iterator[str]:
    """A result for people, line by line."""
    metrics, count = result["metrics"], result["samples_per_prompt"]
    yield ""
    yield f"{result['weights']}{_where(result['position'])}"
    yield f"on {result['prompts']}, {count} sample{'s' if count > 1 else ''} a prompt"
    mean = {f"mean of {count}" if count > 1 else "reward": metrics.get(REWARD)}
    passes = {f"pass@{name.removeprefix(PASS)}": value for name, value in metrics.items() if name.startswith(PASS)}
    rest = {name.removeprefix("eval/").replace("_", " "): value for name, value in metrics.items() if _is_other(name)}
    for name, value in {**mean, **passes, **rest}.items():
        yield f"  {name:<28}" + (f"{value:>12.4f}" if value is not None else f"{'none has a value':>16}")
    yield f"result   {folder / RESULT}"
    yield f"samples  slime samples {folder}"


def _where(position: Mapping[str, int] | None) -> str:
    if position is None:
        return ""
    names = {"sft_step": "supervised", "rl_step": "reinforcement-learning"}
    return " after " + " and ".join(f"{position[name]} {text} steps" for name, text in names.items() if position[name])


def _is_other(name: str) -> bool:
    return name.startswith("eval/") and name != REWARD and not name.startswith(PASS)
