"""`slime eval PATH`: the model of a run directory, or of an HF folder, on held-out prompts.

The evaluation has a run directory of its own, `<run>/eval/<checkpoint>`, so that it can run beside the training.
"""

from __future__ import annotations

import json
import re
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import slime
from slime import files
from slime.arguments import ArgumentParser
from slime.checkpoints import Checkpoint, published
from slime.compose.compose import Composed, checked, ready
from slime.compose.groups import Groups
from slime.compose.overrides import CommandLine, add_choices_of_model, choose
from slime.config.hf import read_hf_config
from slime.config.schema import (
    AlgoConfig,
    BufferConfig,
    CheckpointConfig,
    EvalConfig,
    EvalSetConfig,
    FilterConfig,
    SftConfig,
)
from slime.errors import SlimeError
from slime.plugins import Plugins
from slime.printable import printable
from slime_tools.saved import Saved, installed, line_of, merged, read_saved

RESULT = "result.json"
EVAL, REWARD, PASS = "eval/", "reward_mean", "pass_at_"
WORDS = """\
key=value, +group=option and run files change what the run's config says: +cluster=... for where the evaluation runs
(the run's own devices unless given), eval.samples_per_prompt=8 for pass@k, task=... or eval.path=... for other prompts,
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
    start = time.time()
    values = evaluate(composed, checkpoint)
    cfg = composed.cfg
    folder = Path(cfg.run.dir) / cfg.run.name
    result = {
        "slime": slime.__version__,
        "model": cfg.model.name,
        "weights": str(checkpoint.path if checkpoint else cfg.model.path),
        "position": checkpoint.driver_state()["position"] if checkpoint else None,
        **_asked(cfg.eval, cfg.reward.name),
        "seed": cfg.run.seed,
        "sets": {name: _asked(own, own.reward or cfg.reward.name) for name, own in cfg.eval.sets.items()},
        "started": round(start, 3),
        "metrics": values,
    }
    with files.disk_errors(folder):
        files.write_atomic(folder / RESULT, json.dumps(result, indent=1).encode() + b"\n")
    print(printable("\n".join(shown(result, folder))))


def evaluate(composed: Composed, checkpoint: Checkpoint | None = None) -> dict[str, float]:
    """The held-out metrics of the model that a run starts from, which takes no step.

    Args:
        checkpoint: whose weights `model.weights` names.

    Raises:
        SlimeError: the checkpoint is damaged, or whatever stopped the evaluation.
    """
    from slime.learner import Position
    from slime.opening import open_run

    with ExitStack() as stack:
        run = open_run(composed, stack, log_metrics=False)
        position = Position(**checkpoint.driver_state()["position"]) if checkpoint else run.learner.position
        version = position.rl_step
        run.generation.publish(version)
        with run.events.stage("eval", sum(len(each.prompts) for each in run.data.held_out)):
            return run.generation.evaluate(version)


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


def _asked(held_out: EvalConfig | EvalSetConfig, reward: str) -> dict[str, Any]:
    return {
        "prompts": held_out.path,
        "reward": reward,
        "samples_per_prompt": held_out.samples_per_prompt,
        "sampling": vars(held_out.sampling),
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


FROM_RUN = ("run", "model", "cluster", "train", "rollout", "data", "eval", "reward", "weights", "observe")
"""Sections that an evaluation takes from the run."""
OF_CLUSTER = ("cluster", "train", "weights")
"""Sections that follow from model and cluster: the run's are of no use on another cluster."""
OF_ROLLOUT = ("sampling", "max_prompt_tokens", "request_timeout_s")
"""Keys of `rollout` that do not, as those of quantizations and the models of frozen groups, which rewards ask."""


def of_run(config: Path, argv: Sequence[str], home: Path, weights: Path) -> Composed:
    """What evaluates a run, from its `config.yaml`.

    Args:
        argv: `key=value` and `[+]group=option` items: another cluster, task, reward or key.
        home: directory of the evaluation; `run.dir` and `run.name` in `argv` win over it.
        weights: the checkpoint.

    Raises:
        SlimeError: the file is damaged or of another slime, or the evaluation cannot run so.
    """
    saved = {name: keys for name, keys in read_saved(config, FROM_RUN).items() if name in FROM_RUN}
    plugins, groups = installed()
    line = line_of(argv, groups)
    if "model" in line.choices:
        raise SlimeError("the model is that of the run", where=f"model={line.choices['model']}", todo="Leave it out.")
    if {"task", "reward"} & line.choices.keys():
        saved["reward"]["options"] = {}
    name = line.choices["model"] = saved["model"]["name"]
    if "cluster" in line.choices:
        saved = {section: keys for section, keys in saved.items() if section not in OF_CLUSTER}
        kept = (*OF_ROLLOUT, *plugins.quantizations.names())
        frozen = {
            name: {"model": group["model"]}
            for name, group in (saved["rollout"].get("engines") or {}).items()
            if group.get("model")
        }
        saved["rollout"] = {key: saved["rollout"][key] for key in kept if key in saved["rollout"]}
        saved["rollout"] |= {"engines": frozen} if frozen else {}
        if "recipe" not in line.choices and name in groups.names("model"):
            choose(line, "recipe", groups.recipe_for(name, line.choices["cluster"]), groups)
    saved["model"] |= {"weights": str(weights), "init": "checkpoint"}
    return _evaluation(saved, home, line, plugins, groups)


def _as_name(text: str) -> str:
    """A name like the text that `slime.compose.names` takes: other characters become `-`."""
    return re.sub(r"[^\w.-]+", "-", text).strip("-.")[:100] or "model"


def of_folder(folder: Path, argv: Sequence[str], home: Path) -> Composed:
    """What evaluates the model in an HF folder.

    Args:
        argv: as of `of_run`; chooses at least the cluster, and a task, or `eval.path` and a reward. With a model its
            recipe and its usual task are taken.
        home: as of `of_run`.

    Raises:
        SlimeError: as of `of_run`.
    """
    name = _as_name(folder.name)
    model = {"name": name, "family": str(read_hf_config(str(folder))["model_type"]), "path": str(folder)}
    plugins, groups = installed()
    line = line_of(argv, groups)
    if "cluster" not in line.choices:
        raise SlimeError("no cluster is chosen", todo=groups.choose("cluster", "+"))
    if "model" in line.choices:
        add_choices_of_model(line, groups)
        line.values += [("model.path", str(folder)), ("model.weights", None), ("model.init", "checkpoint")]
    elif not {"task", "reward"} & line.choices.keys():
        todo = f"{groups.choose('task', '+')} Or set eval.path=<jsonl or parquet> and choose a reward."
        raise SlimeError("what to score the model on is not chosen", todo=todo)
    line.choices.setdefault("model", name)
    return _evaluation({"run": {}, "model": model, "data": {"path": ""}}, home, line, plugins, groups)


def _evaluation(saved: Saved, home: Path, line: CommandLine, plugins: Plugins, groups: Groups) -> Composed:
    """The groups as in training, over the saved values, under the command line."""
    saved["run"] |= {"name": _as_name(home.name), "dir": str(home.parent), "num_steps": 1, "resume": "auto"}
    cfg = merged(saved, line, groups)
    if cfg.eval.path is None:
        raise SlimeError("there is no held-out prompt set", where="eval.path", todo="Set eval.path=<jsonl or parquet>.")
    # No step is taken, no checkpoint is saved, no prompt is read but the held-out ones.
    cfg.data.path, cfg.data.source, cfg.data.sets = str(cfg.eval.path), cfg.eval.source, {}
    cfg.run.num_steps, cfg.algo, cfg.sft = 1, AlgoConfig(), SftConfig()
    cfg.filter, cfg.buffer = FilterConfig(), BufferConfig()
    cfg.train.steps_per_rollout = 1
    cfg.observe.trackers = dict.fromkeys(plugins.trackers.names(), False)
    cfg.train.checkpoint = CheckpointConfig(interval=None)
    return ready(checked(cfg, line, plugins))
