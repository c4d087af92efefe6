"""Rules between keys: everything about a run that can be known to be wrong before a process is started."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slime.config import passthrough
from slime.config.bounds import number_problems
from slime.config.hf import read_hf_config
from slime.config.hostfile import hostfile_problems
from slime.config.keys import FOREIGN, value_of
from slime.config.megatron_fields import ACCEPTED
from slime.config.needs import config_folder, is_awaited
from slime.config.options import check_options
from slime.config.paths import exists, resolve
from slime.config.schema import AlgoConfig, Init, KlEstimator, LrDecay, SlimeConfig
from slime.contracts import EngineBridge, ModelBridge, PlanBridge
from slime.data.prompt_rows import check_prompts, conversation
from slime.data.rows import Row, first_rows
from slime.errors import SlimeError, did_you_mean
from slime.plan.memory import MemoryPlan, memory_problems, plan_memory
from slime.plan.rules import batch_problems, layout_problems
from slime.plugins import Plugins, Registry
from slime.rollout.limits import longest_sequence, num_drafted, room
from slime.topology.engines import engine_groups, generates, group_problems, home_of
from slime.topology.layout import read_grid
from slime.topology.placement import placement_problems
from slime.topology.transport import transport_problems
from slime.weights.megatron.hf_files import MEGATRONS

ALGORITHMS = ("grpo", "sft")
HUB_NAME = re.compile(r"[\w-]+/[\w-]+")
"""What looks like a data set's name on the Hugging Face hub, and like no file of rows."""
FIRST_ROWS = 100
"""Rows of a file that are read before a run, of which an average one takes 20 microseconds."""
GREEDY_BELOW = 1e-6
"""SGLang samples greedily below this temperature."""


@dataclass
class Checked:
    """A config's problems, and what was computed to find them.

    Attributes:
        problems: every rule that the run breaks, the most basic first.
        memory: None where it is not known, and of a layout that cannot be.
    """

    problems: list[SlimeError]
    memory: MemoryPlan | None = None


def check(cfg: SlimeConfig, plugins: Plugins) -> Checked:
    """Hold a config against every rule that can be known before a process is started."""
    problems = [*(problem for problem in number_problems(cfg) if not _follows(cfg, problem.where)), *_foreign(cfg)]
    if problems:  # the other rules compute with these values
        return Checked(problems)
    problems += [*_optimizer(cfg), *_names(cfg, plugins), *_paths(cfg), *hostfile_problems(cfg.cluster)]
    problems += [*_algorithm(cfg), *_sequences(cfg)]
    groups = list(group_problems(cfg))  # whatever asks for engines needs them right
    if groups:
        return Checked(problems + groups)
    checked = Checked([*problems, *placement_problems(cfg), *transport_problems(cfg)])
    _model(cfg, plugins, checked)
    checked.problems += plugins.check(cfg)
    return checked


def _follows(cfg: SlimeConfig, key: str) -> bool:
    """Whether `key` has the value of the key that it follows unless set: then that one is the mistake."""
    followed = key.replace("eval.sampling.", "rollout.sampling.", 1)
    return followed != key and value_of(cfg, key) == value_of(cfg, followed)


def _optimizer(cfg: SlimeConfig) -> Iterator[SlimeError]:
    lr, min_lr = cfg.train.optimizer.get("lr"), cfg.train.optimizer.get("min_lr") or 0
    if lr is not None and lr < min_lr:
        where, todo = "train.optimizer.min_lr", f"Lower it to at most {lr}."
        yield SlimeError(f"is {min_lr}, above train.optimizer.lr={lr}", where=where, todo=todo)
    decay_steps = cfg.train.lr_decay_steps or cfg.run.num_steps * cfg.train.steps_per_rollout
    train = ("train", cfg.train.lr_decay, cfg.train.lr_warmup_steps, decay_steps)
    sft = ("sft", cfg.sft.lr_decay, cfg.sft.lr_warmup_steps, cfg.sft.num_steps)
    for section, decay, warmup_steps, steps in (train, sft):
        if steps and decay is not LrDecay.constant and warmup_steps >= steps:
            what = f"is {warmup_steps}, which leaves none of {steps} steps for the decay"
            todo = f"Lower it below {steps}, or set {section}.lr_decay=constant."
            yield SlimeError(what, where=f"{section}.lr_warmup_steps", todo=todo)


def _foreign(cfg: SlimeConfig) -> Iterator[SlimeError]:
    yield from passthrough.check_all({section: value_of(cfg, section) for section in FOREIGN})
    for name, group in cfg.rollout.engines.items():
        yield from passthrough.check_section("rollout.sglang", group.sglang, f"rollout.engines.{name}.sglang")


def _names(cfg: SlimeConfig, plugins: Plugins) -> Iterator[SlimeError]:
    if cfg.algo.name not in ALGORITHMS:
        yield SlimeError(
            f"no algorithm '{cfg.algo.name}'", where="algo.name", todo=did_you_mean(cfg.algo.name, ALGORITHMS)
        )
    chosen: list[tuple[Registry[Any], Any]] = [(plugins.filters, cfg.filter), (plugins.buffers, cfg.buffer)]
    if generates(cfg):
        chosen.insert(0, (plugins.rewards, cfg.reward))
    for registry, section in chosen:
        try:
            item = registry.get(section.name)
        except SlimeError as problem:
            yield problem
        else:
            schema = plugins.schemas.get(f"{registry.kind}/{section.name}")
            yield from check_options(item, section.options, schema, f"{registry.kind}.options")
    yield from _trackers(cfg, plugins)


def _trackers(cfg: SlimeConfig, plugins: Plugins) -> Iterator[SlimeError]:
    for name, options in cfg.observe.trackers.items():
        where = f"observe.trackers.{name}"
        try:
            item = plugins.trackers.get(name)
        except SlimeError as problem:
            yield SlimeError(problem.what, where=where, todo=problem.todo)
            continue
        if isinstance(options, dict):
            yield from check_options(item, options, plugins.schemas.get(f"tracker/{name}"), where)
        else:
            todo = f"Write {where}=true, or {where}.<option>=<value>."
            yield SlimeError(f"'{options}' is neither true, false nor options", where=where, todo=todo)


def _paths(cfg: SlimeConfig) -> Iterator[SlimeError]:
    """Files that are there hold rows, of which the first ones are right; a run reads them all before it starts."""
    for key in ("data.path", "eval.path", "sft.path"):
        path = value_of(cfg, key)
        if path is not None and not is_awaited(path, getattr(value_of(cfg, key.partition(".")[0]), "source", None)):
            try:
                _check_rows(cfg, key, first_rows(_file_of_rows(path), FIRST_ROWS))
            except SlimeError as problem:
                yield SlimeError(problem.what, where=", ".join(filter(None, (key, problem.where))), todo=problem.todo)


def _file_of_rows(path: str) -> Path:
    if HUB_NAME.fullmatch(path) and not exists(path):
        fetch = f"hf download --repo-type dataset {path} --local-dir {path}"
        raise SlimeError(
            f"there is no '{path}'",
            todo=f"A data set of the Hugging Face hub is fetched first: run '{fetch}', and name its file.",
        )
    file = resolve(path)
    if not file.is_file():
        raise SlimeError(f"'{path}' is a folder", todo="Name a jsonl or parquet file.")
    if file.stat().st_size == 0:
        raise SlimeError(f"'{path}' is empty", todo="Name a file with rows.")
    return file


def _check_rows(cfg: SlimeConfig, key: str, rows: Sequence[Row]) -> None:
    if key == "sft.path":
        for row in rows if cfg.sft.num_steps else ():
            conversation(row)
    elif rows and (key == "eval.path" or cfg.algo.name != "sft"):
        check_prompts(rows, cfg.data)


def _algorithm(cfg: SlimeConfig) -> Iterator[SlimeError]:
    if cfg.algo.name == "sft":
        if cfg.sft.path is None or cfg.sft.num_steps == 0:
            yield SlimeError("algo=sft has nothing to do", where="sft", todo="Set sft.path and sft.num_steps.")
        return
    if cfg.sft.num_steps > 0 and cfg.sft.path is None:
        todo = "Set sft.path, or sft.num_steps=0."
        yield SlimeError(f"{cfg.sft.num_steps} supervised steps without demonstrations", where="sft.path", todo=todo)
    if cfg.run.num_steps < 1:
        yield SlimeError(
            "there is no step to run", where="run.num_steps", todo="Set it to 1 or more, or choose algo=sft."
        )
    if cfg.rollout.samples_per_prompt < 2:
        where, todo = "rollout.samples_per_prompt", "Set it to 2 or more."
        yield SlimeError("group-relative advantages need at least 2 samples a prompt", where=where, todo=todo)
    yield from _losses(cfg.algo)
    yield from _sampled_policy(cfg)


def _losses(algo: AlgoConfig) -> Iterator[SlimeError]:
    """Settings that would teach nothing, or do nothing."""
    if algo.kl_coef and algo.kl_estimator is KlEstimator.k1:
        where, todo = "algo.kl_estimator", "Choose k2, k3 or low_var_kl, or algo.kl_coef=0 to measure only."
        yield SlimeError("k1 is no penalty: its gradient is zero in expectation, so only noise", where=where, todo=todo)
    default = AlgoConfig()
    for key in ("importance", "importance_tokens", "importance_low", "importance_high"):
        if algo.rollout_logprobs_as_old and getattr(algo, key) != getattr(default, key):
            what = "does nothing with algo.rollout_logprobs_as_old, whose ratio is the one to what sampled a token"
            yield SlimeError(what, where=f"algo.{key}", todo="Remove one of them.")


def _sampled_policy(cfg: SlimeConfig) -> Iterator[SlimeError]:
    """Whether samples are drawn from the very distribution that the trainer computes: softmax(logits / temperature).

    A truncated one gives its tokens higher probabilities than that, and forbids what the updated policy may do.
    """
    sampling = cfg.rollout.sampling
    if sampling.temperature < GREEDY_BELOW:
        where, todo = "rollout.sampling.temperature", "Set it above 0."
        yield SlimeError("greedy samples of one prompt are all the same", where=where, todo=todo)
    for key, value, whole in (("top_p", sampling.top_p, 1), ("top_k", sampling.top_k, -1)):
        if value != whole:
            what = f"is {value}: what it cuts off, the trainer's log-probs still count"
            todo = f"Set it to {whole} and narrow the samples by temperature; eval.sampling.{key} is free."
            yield SlimeError(what, where=f"rollout.sampling.{key}", todo=todo)


def _model(cfg: SlimeConfig, plugins: Plugins, checked: Checked) -> None:
    """The model's own facts, and the rules that need them; nothing more is said about a model that cannot be read."""
    problems = checked.problems
    try:
        hf = read_hf_config(config_folder(cfg.model), cfg.model.num_layers)
        bridge = plugins.models.create(_family(cfg, hf, plugins))
        architecture = _architecture(bridge, hf)
        grid = read_grid(cfg.cluster.num_trainers, cfg.train.megatron)
    except SlimeError as problem:
        problems.append(problem)
        return
    layout = list(layout_problems(cfg, grid, architecture))
    problems += [*_weights(cfg), *_owned_by_model(cfg, architecture), *layout, *batch_problems(cfg, grid)]
    if generates(cfg):
        problems += _context(cfg, hf)
    if isinstance(bridge, EngineBridge):
        for group in engine_groups(cfg):
            where, todo = f"engine group {group.name}", "Change its SGLang fields."
            sentences = bridge.engine_problems(hf, group.sglang)
            problems += [SlimeError(sentence.rstrip("."), where=where, todo=todo) for sentence in sentences]
    if layout:  # the others compute with the sizes
        return
    checked.memory = plan_memory(cfg, bridge, hf)
    problems += memory_problems(checked.memory) if checked.memory else ()
    if isinstance(bridge, PlanBridge):
        where, todo = f"model family {bridge.family}", "Change train.megatron."
        sentences = bridge.plan_problems(hf, cfg.train.megatron)
        problems += [SlimeError(sentence.rstrip("."), where=where, todo=todo) for sentence in sentences]


def _architecture(bridge: ModelBridge, hf: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return bridge.transformer_config(hf)
    except KeyError as missing:
        where, todo = "config.json", f"Use one that a model of family {bridge.family} comes with."
        raise SlimeError(f"{missing} is missing", where=where, todo=todo) from missing


def _family(cfg: SlimeConfig, hf: Mapping[str, Any], plugins: Plugins) -> str:
    plugins.models.get(cfg.model.family)
    if hf["model_type"] != cfg.model.family:
        what = f"is '{cfg.model.family}', but config.json says model_type '{hf['model_type']}'"
        raise SlimeError(
            what, where="model.family", todo=f"Set model.family={hf['model_type']}, or another model.path."
        )
    return cfg.model.family


def _weights(cfg: SlimeConfig) -> Iterator[SlimeError]:
    if is_awaited(cfg.model.path, cfg.model.source):
        return
    if cfg.model.weights is not None:
        yield from _megatron_weights(cfg, cfg.model.weights)
        return
    folder = resolve(cfg.model.path)
    if cfg.model.init is Init.checkpoint and not any(folder.glob("*.safetensors")):
        todo = "Fetch the weights, or set model.init=random."
        yield SlimeError("there are no *.safetensors files", where=str(folder), todo=todo)


def _megatron_weights(cfg: SlimeConfig, weights: str) -> Iterator[SlimeError]:
    if cfg.model.init is Init.random:
        yield SlimeError("contradicts model.init=random", where="model.weights", todo="Leave one of them out.")
        return
    try:
        folder = resolve(weights)
    except SlimeError as problem:
        yield problem
        return
    if not (folder / MEGATRONS).is_file():
        todo = "Name a folder that 'slime convert hf-to-dist' wrote, or 'checkpoints/step-...' of a run."
        yield SlimeError(f"there is no {MEGATRONS} of Megatron-core", where=str(folder), todo=todo)


def _owned_by_model(cfg: SlimeConfig, architecture: Mapping[str, Any]) -> Iterator[SlimeError]:
    """Fields that say what the model is: config.json's, and nobody else's."""
    for key, value in cfg.train.megatron.items():
        where = f"train.megatron.{key}"
        if key in ACCEPTED["train.megatron"]:
            continue
        if key not in architecture:
            yield passthrough.not_accepted("train.megatron", key, where)
        elif value != architecture[key]:
            todo = f"Remove it: config.json of {cfg.model.path} says {architecture[key]}."
            yield SlimeError("is not yours to set", where=where, todo=todo)


def _sequences(cfg: SlimeConfig) -> Iterator[SlimeError]:
    """Whether the longest prompt leaves room for a response."""
    for section, sampling in (("rollout", cfg.rollout.sampling), ("eval", cfg.eval.sampling)):
        if sampling.max_sequence_tokens is not None and sampling.max_sequence_tokens <= cfg.rollout.max_prompt_tokens:
            what = f"is {sampling.max_sequence_tokens}, which a prompt of {cfg.rollout.max_prompt_tokens} tokens fills"
            where, todo = f"{section}.sampling.max_sequence_tokens", "Raise it, or lower rollout.max_prompt_tokens."
            yield SlimeError(what, where=where, todo=todo)


def _context(cfg: SlimeConfig, hf: Mapping[str, Any]) -> Iterator[SlimeError]:
    """Whether the longest sequence fits the model's context and the engines' token pools, as far as they are known."""
    longest, key = longest_sequence(cfg)
    for group in engine_groups(cfg):
        drafted = num_drafted(group.sglang)
        limits = {
            "the model's context": (hf.get("max_position_embeddings"), 1),
            home_of(cfg, group.name, "context_length"): (group.sglang.get("context_length"), 1),
            home_of(cfg, group.name, "max_total_tokens"): (
                group.sglang.get("max_total_tokens"),
                group.sglang.get("page_size") or 1,
            ),
        }
        rooms = {
            name: room(limit, page_size=page_size, num_drafted=drafted)
            for name, (limit, page_size) in limits.items()
            if limit is not None
        }
        name = min(rooms, key=lambda name: rooms[name], default="")
        if name and longest > rooms[name]:
            what = (
                f"prompt and response may have {longest} tokens, {name} of {limits[name][0]} has room for {rooms[name]}"
            )
            where, todo = f"rollout.max_prompt_tokens, {key}", f"Lower them to {rooms[name]} together."
            yield SlimeError(what, where=where, todo=todo)
            return
