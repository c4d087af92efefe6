"""The config of an evaluation: that of a run directory, or of an HF folder, under what the command line changes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore

from slime import plugins as slime_plugins
from slime.compose import groups as config_groups
from slime.compose.compose import Composed, checked, merge, ready
from slime.compose.groups import DECLARED, NO_RECIPE, UNSET, Groups
from slime.compose.overrides import CommandLine, add_choices_of_model, choose, read_command_line
from slime.config.hf import read_hf_config
from slime.config.schema import (
    AlgoConfig,
    BufferConfig,
    CheckpointConfig,
    FilterConfig,
    SftConfig,
    SlimeConfig,
)
from slime.errors import SlimeError
from slime.plugins import Plugins
from slime.run_config import read_config

FROM_RUN = ("run", "model", "cluster", "train", "rollout", "data", "eval", "reward", "weights", "observe")
"""Sections that an evaluation takes from the run."""
OF_CLUSTER = ("cluster", "train", "weights")
"""Sections that follow from model and cluster: the run's are of no use on another cluster."""
OF_ROLLOUT = ("sampling", "max_prompt_tokens", "request_timeout_s")
"""Keys of `rollout` that do not, as those of quantizations and the models of frozen groups, which rewards ask."""
CHOOSING = ("task", "recipe")
"""Groups whose options may choose of the others; they come last."""

Saved = dict[str, Any]


def of_run(config: Path, argv: Sequence[str], home: Path, weights: Path) -> Composed:
    """What evaluates a run, from its `config.yaml`.

    Args:
        argv: `key=value` and `[+]group=option` items: another cluster, task, reward or key.
        home: directory of the evaluation; `run.dir` and `run.name` in `argv` win over it.
        weights: the checkpoint.

    Raises:
        SlimeError: the file is damaged or of another slime, or the evaluation cannot run so.
    """
    saved = {name: keys for name, keys in _read(config).items() if name in FROM_RUN}
    plugins, groups = _installed()
    line = read_command_line(argv, groups)
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
    plugins, groups = _installed()
    line = read_command_line(argv, groups)
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


def _as_name(text: str) -> str:
    """A name like the text that `slime.compose.names` takes: other characters become `-`."""
    return re.sub(r"[^\w.-]+", "-", text).strip("-.")[:100] or "model"


def _installed() -> tuple[Plugins, Groups]:
    plugins = slime_plugins.load()
    plugins.require_sound()
    return plugins, config_groups.scan(plugins)


def _read(config: Path) -> Saved:
    saved = read_config(config)
    if not all(isinstance(saved.get(name), dict) for name in FROM_RUN):
        todo = "Bring the file back, or evaluate the run's export by its folder."
        raise SlimeError("this is not the config of a run", where=str(config), todo=todo)
    return saved


def _evaluation(saved: Saved, home: Path, line: CommandLine, plugins: Plugins, groups: Groups) -> Composed:
    """The groups as in training, over the saved values, under the command line."""
    saved["run"] |= {"name": _as_name(home.name), "dir": str(home.parent), "num_steps": 1, "resume": "auto"}
    unset = {"reward": UNSET, "cluster": UNSET, "model": UNSET, "algo": "grpo", "buffer": "fifo"}
    ordered = [*(group for group in DECLARED if group not in CHOOSING), *CHOOSING]
    chosen = [{group: unset.get(group, "none")} for group in ordered]
    store = ConfigStore.instance()
    store.store(name="saved", node=saved)
    store.store(name="evaluation", node={"defaults": ["schema", "saved", *chosen, "_self_"]})
    line.choices = {"cluster": UNSET, "recipe": NO_RECIPE, **line.choices}
    _, cfg = merge(line, groups, "evaluation")
    if cfg.eval.path is None:
        raise SlimeError("there is no held-out prompt set", where="eval.path", todo="Set eval.path=<jsonl or parquet>.")
    _leave_training_out(cfg, plugins)
    return ready(checked(cfg, line, plugins))


def _leave_training_out(cfg: SlimeConfig, plugins: Plugins) -> None:
    """In place: no step is taken, no checkpoint is saved, no prompt is read but the held-out ones."""
    cfg.data.path, cfg.data.source, cfg.data.sets = str(cfg.eval.path), cfg.eval.source, {}
    cfg.run.num_steps, cfg.algo, cfg.sft = 1, AlgoConfig(), SftConfig()
    cfg.filter, cfg.buffer = FilterConfig(), BufferConfig()
    cfg.train.steps_per_rollout = 1
    cfg.observe.trackers = dict.fromkeys(plugins.trackers.names(), False)
    cfg.train.checkpoint = CheckpointConfig(interval=None)
