"""Rules between keys: everything about a run that can be known to be wrong before a process is started."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from slime.aside import problems_found_aside
from slime.compose.chosen import choice_problems, choices_of
from slime.compose.data_files import data_problems
from slime.compose.derive import has_experts
from slime.compose.engine_rules import (
    context_problems,
    frozen_problems,
    frozen_warnings,
    outside_problems,
    recording_problems,
    staleness_problems,
    unchecked,
)
from slime.compose.learning import learning_problems, learning_warnings
from slime.compose.names import address_problems, environment_problems, launcher_problems, name_problems, set_problems
from slime.compose.needs import absent_model, is_awaited
from slime.compose.objective import estimator_problems, objective_problems
from slime.compose.rules import batch_problems, family_problems, host_problems, layout_problems
from slime.config import passthrough
from slime.config.declare import DEVICES, RATE, TOKENS, Bound
from slime.config.gpus import gpu_problems
from slime.config.hf import NUM_LAYERS, config_folder
from slime.config.keys import ANY_NAME, FOREIGN, own_keys, value_of
from slime.config.megatron_fields import ACCEPTED
from slime.config.paths import resolve
from slime.config.schema import EvalConfig, Init, ModelConfig, RolloutConfig, SlimeConfig, TrainConfig
from slime.ending import stop_problems
from slime.engines.software import backend_problems
from slime.errors import SlimeError
from slime.models.bridge import EngineBridge, HfConfig, ModelBridge, completed, traits_of
from slime.models.mapping import WeightMapping
from slime.models.traits import obstacle_to_sharing, sharing_problem
from slime.plugins import Plugins
from slime.sizes.estimate import MemoryEstimate, estimate_memory
from slime.topology.adapters import adapters_of
from slime.topology.engines import generates, role_problems
from slime.topology.placement import idle_devices, placement_problems, size_problems, span_problems, turn_problems
from slime.topology.topology import Topology, read_topology
from slime.weights.causes import trainable_config
from slime.weights.elsewhere import has_weights
from slime.weights.other_forms import MEGATRONS, lacking
from slime.weights.transports import transport_problems

Rules = Callable[[SlimeConfig], Sequence[SlimeError]]
"""What is wrong with a config whose values are not derived yet."""
_SIZES = ("tp_size", "pp_size", "dp_size", "ep_size", "page_size", "moe_dense_tp_size")
SGLANG_BOUNDS: Mapping[str, Bound] = {
    **dict.fromkeys(_SIZES, DEVICES),
    **dict.fromkeys(("context_length", "max_total_tokens", "max_prefill_tokens"), TOKENS),
    **dict.fromkeys(("mem_fraction_static", "swa_full_tokens_ratio"), RATE),
}
MAX_SIZE = 10**9
"""The most of any number of a model's architecture, so that nothing is counted up to a mistyped one."""
MAX_EXPERTS = 10**6
"""The most of all layers together."""


@dataclass(kw_only=True)
class Checked:
    """A config's problems, and what was computed to find them.

    Attributes:
        problems: every rule that the run breaks, the most basic first.
        topology: None where the sizes of its engines contradict each other.
        memory: None where it is not known, and of a layout that cannot be.
        warnings: what a run without problems may still not be meant to do.
    """

    problems: list[SlimeError]
    topology: Topology | None = None
    memory: MemoryEstimate | None = None
    warnings: list[SlimeError] = field(default_factory=list)


def check(cfg: SlimeConfig, plugins: Plugins, *, reads_data: bool = True) -> Checked:
    """Hold a config against every rule that can be known before a process is started.

    Args:
        reads_data: whether the first rows of its files are, too.
    """
    if problems := value_problems(cfg, plugins):  # the other rules compute with these values
        return Checked(problems=problems)
    chosen = (choice for choice in choices_of(cfg) if choice.kind != "reward" or generates(cfg.algo, cfg.eval))
    problems += [*choice_problems(chosen, plugins), *backend_problems(cfg.rollout.backend)]
    problems += problems_found_aside(partial(data_problems, cfg)) if reads_data else ()
    problems += [
        *launcher_problems(cfg.cluster, plugins),
        *learning_problems(cfg),
        *set_problems(cfg.data, cfg.eval),
        *_sequences(cfg.rollout, cfg.eval),
    ]
    problems += turn_problems(cfg.cluster, cfg.rollout)
    try:
        topology = read_topology(cfg)
    except SlimeError as problem:
        return Checked(problems=[*problems, problem])
    every = (*topology.groups, *topology.frozen)
    groups = list(role_problems(topology.groups)) or list(span_problems(cfg.cluster, every))
    if groups:  # whatever asks for engines needs them right; on a larger cluster they may be
        problems += list(size_problems(cfg.cluster, topology.groups, topology.frozen)) or groups
        return Checked(problems=problems)
    problems += [*outside_problems(topology), *staleness_problems(topology), *transport_problems(topology)]
    if topology.transport not in plugins.transports:
        return Checked(problems=problems, topology=topology)
    places = list(placement_problems(cfg.cluster, topology.groups, topology.frozen))
    checked = Checked(problems=[*problems, *places, *frozen_problems(topology)], topology=topology)
    _model(topology, plugins, checked, is_placed=not places)
    checked.problems += plugins.check(cfg)
    if not checked.problems:
        tight = checked.memory.warnings() if checked.memory else ()
        unknown = (*frozen_warnings(topology), *unchecked(topology), *_bounded(cfg.rollout, cfg.eval))
        learns = learning_warnings(topology, has_experts=has_experts(cfg.model, plugins))
        checked.warnings += [*idle_devices(cfg.cluster, topology.places), *tight, *unknown, *learns]
    return checked


def value_problems(cfg: SlimeConfig, plugins: Plugins) -> list[SlimeError]:
    """Values that are wrong whatever the others are: numbers out of bounds, other types, no names, no objective."""
    numbers = []
    for key in own_keys().values():
        home, place, rest = key.name.partition(f".{ANY_NAME}.")
        for name in [f"{home}.{name}.{rest}" for name in value_of(cfg, home)] if place else [key.name]:
            value = value_of(cfg, name) if key.bound else None
            if not key.bound or value is None or key.bound.holds(value):
                continue
            if not (followed := _followed(name)) or value != value_of(cfg, followed):  # else that one is the mistake
                what = f"must be {key.bound}, got {value:.6g}"
                numbers.append(SlimeError(what, where=name, todo=f"It is: {key.gist}"))
    sections = [(section, section, value_of(cfg, section)) for section in FOREIGN]
    groups = cfg.rollout.engines.items()
    sections += [("rollout.sglang", f"rollout.engines.{name}.sglang", group.sglang) for name, group in groups]
    foreign = [problem for section in sections for problem in _foreign(*section)]
    named = {"run.name": cfg.run.name, "model.name": cfg.model.name, "cluster.name": cfg.cluster.name}
    names = [*name_problems(named), *address_problems(cfg.cluster), *gpu_problems(cfg.cluster)]
    names += [*environment_problems(cfg.cluster, cfg.rollout.engines), *stop_problems(cfg.run.stop_at)]
    return [*numbers, *foreign, *names, *objective_problems(cfg.algo, plugins), *estimator_problems(cfg.algo, plugins)]


def _followed(key: str) -> str | None:
    """The key whose value `key` may have without being set."""
    if key.startswith("rollout.engines.") and key.endswith((".devices", ".devices_per_engine")):
        return "rollout.sglang.tp_size"
    if key.startswith("eval.sets."):
        return f"eval.{key.split('.', 3)[3]}"
    return f"rollout.{key.removeprefix('eval.')}" if key.startswith("eval.sampling.") else None


def _foreign(section: str, home: str, fields: Mapping[str, Any]) -> Iterator[SlimeError]:
    """What is wrong with the fields of a pass-through section, which stand under `home`."""
    yield from passthrough.check_section(section, fields, home)
    for key in SGLANG_BOUNDS.keys() & fields.keys() if section == "rollout.sglang" else ():
        bound, value = SGLANG_BOUNDS[key], fields[key]
        if isinstance(value, int | float) and not bound.holds(value):
            yield SlimeError(f"must be {bound}, got {value:.6g}", where=f"{home}.{key}", todo="Correct it.")


def _model(topology: Topology, plugins: Plugins, checked: Checked, *, is_placed: bool) -> None:
    """The model's own facts, and the rules that need them; nothing more is said about a model that cannot be read.

    Args:
        is_placed: trainers and engines fit the devices, so that the memory of each can be computed.
    """
    cfg, problems = topology.config, checked.problems
    if missing := list(_folders(cfg.model)):
        problems += missing
        return
    try:
        hf: HfConfig = trainable_config(config_folder(cfg.model), cfg.model.num_layers)
        bridge = plugins.models.create(_family(cfg.model.family, hf, plugins))
        where = str(resolve(config_folder(cfg.model)) / "config.json")
        hf, architecture, mapping = _architecture(bridge, hf, where, for_engines=topology.generates)
        if adapters := adapters_of(cfg.train):
            adapters.mapping(mapping)  # raises where they name no layer
    except SlimeError as problem:
        problems.append(problem)
        return

    try:
        grid = topology.grid
    except SlimeError as problem:
        if problem.where == "cluster.num_trainers":  # engines that share these devices change with it
            problems[:] = [other for other in problems if other.where != "rollout.engines"]
        problems.append(problem)
        return
    layout = [*layout_problems(topology, architecture, mapping)]
    problems += [*_weights(cfg.model), *_owned_by_model(cfg.train.megatron, architecture, cfg.model.path)]
    problems += [*recording_problems(topology), *_sharing(cfg.train, bridge, hf, grid.cp)]
    problems += [*layout, *batch_problems(topology), *host_problems(topology)]
    if topology.generates:
        problems += context_problems(topology, hf)
    if isinstance(bridge, EngineBridge):
        for group in topology.groups:
            where, todo = f"engine group {group.name}", "Change its SGLang fields."
            sentences = bridge.engine_problems(hf, group.sglang)
            problems += [SlimeError(sentence.rstrip("."), where=where, todo=todo) for sentence in sentences]
    if layout or not is_placed:  # the others compute with the sizes
        return
    checked.memory = estimate_memory(topology, bridge, hf, plugins)
    problems += checked.memory.problems() if checked.memory else ()
    problems += family_problems(bridge, hf, cfg.train.megatron)


def _folders(model: ModelConfig) -> Iterator[SlimeError]:
    """Whether the folders of config.json and tokenizer are there, named by their keys."""
    for key, folder in (("model.path", config_folder(model)), ("model.tokenizer", model.tokenizer)):
        try:
            if folder is not None:
                resolve(folder)
        except SlimeError as problem:
            yield absent_model(model) if folder == model.path and key == "model.path" else problem.under(key)


def _architecture(
    bridge: ModelBridge, hf: HfConfig, where: str, *, for_engines: bool
) -> tuple[HfConfig, dict[str, Any], WeightMapping]:
    todo = f"Use one that a model of family {bridge.family} comes with."
    try:
        architecture, mapping = bridge.transformer_config(hf), bridge.weight_mapping(hf)
        hf = completed(bridge, hf, for_engines=for_engines)
    except KeyError as missing:
        raise SlimeError(f"{missing} is missing", where=where, todo=todo) from missing
    except SlimeError as problem:  # of a bridge, which has the content alone
        raise SlimeError(problem.what, where=where, todo=problem.todo) from problem
    except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError) as fault:
        raise SlimeError(f"its values are not those of a model: {fault}", where=where, todo=todo) from fault
    sizes = {key: value for key, value in architecture.items() if isinstance(value, int)}
    for key, size in {**sizes, "experts": hf[NUM_LAYERS] * (sizes.get("num_moe_experts") or 0)}.items():
        if abs(size) > (MAX_EXPERTS if key == "experts" else MAX_SIZE):
            raise SlimeError(f"gives {size:.6g} as {key}", where=where, todo=todo)
    return hf, architecture, mapping


def _family(family: str, hf: Mapping[str, Any], plugins: Plugins) -> str:
    plugins.models.get(family)
    if hf["model_type"] != family:
        what = f"is '{family}', but config.json says model_type '{hf['model_type']}'"
        todo = f"Set model.family={hf['model_type']}, or another model.path."
        if hf["model_type"] not in plugins.models:
            todo = "No installed plugin has that one: set another model.path."
        raise SlimeError(what, where="model.family", todo=todo)
    return family


def _weights(model: ModelConfig) -> Iterator[SlimeError]:
    if is_awaited(model.path, model.source):
        return
    if model.weights is None:
        if model.init is Init.checkpoint and not has_weights(folder := resolve(model.path)):
            yield lacking(folder)
    elif model.init is Init.random:
        yield SlimeError("contradicts model.init=random", where="model.weights", todo="Leave one of them out.")
    else:
        try:
            folder = resolve(model.weights)
        except SlimeError as problem:
            yield problem
            return
        if not (folder / MEGATRONS).is_file():
            todo = "Name a folder that 'slime convert hf-to-dist' wrote, or 'checkpoints/step-...' of a run."
            yield SlimeError(f"there is no {MEGATRONS} of Megatron-core", where=str(folder), todo=todo)


def _owned_by_model(megatron: Mapping[str, Any], architecture: Mapping[str, Any], path: str) -> Iterator[SlimeError]:
    """Fields that say what the model is: config.json's, and nobody else's."""
    for key, value in megatron.items():
        where = f"train.megatron.{key}"
        if key in ACCEPTED["train.megatron"]:
            continue
        if key not in architecture:
            yield passthrough.not_accepted("train.megatron", key, where)
        elif value != architecture[key]:
            todo = f"Remove it: config.json of {path} says {architecture[key]}."
            yield SlimeError("is not yours to set", where=where, todo=todo)


def _sharing(train: TrainConfig, bridge: ModelBridge, hf: Mapping[str, Any], cp: int) -> Iterator[SlimeError]:
    if train.share_prompts and (obstacle := obstacle_to_sharing(train, traits_of(bridge, hf), cp)):
        yield sharing_problem(obstacle)


def _sequences(rollout: RolloutConfig, evaluation: EvalConfig) -> Iterator[SlimeError]:
    named = {home: own.sampling for home, own in evaluation.named().items()}
    for section, sampling in {"rollout": rollout.sampling, "eval": evaluation.sampling, **named}.items():
        if sampling.max_sequence_tokens is not None and sampling.max_sequence_tokens <= rollout.max_prompt_tokens:
            what = f"is {sampling.max_sequence_tokens}, but a prompt alone may have {rollout.max_prompt_tokens}"
            where, todo = f"{section}.sampling.max_sequence_tokens", "Raise it, or lower rollout.max_prompt_tokens."
            yield SlimeError(what, where=where, todo=todo)


def _bounded(rollout: RolloutConfig, evaluation: EvalConfig) -> Iterator[SlimeError]:
    """Limits of a response that no response reaches: a recipe may set the one of a sequence."""
    evaluated = {home: own.sampling for home, own in evaluation.all().items()}
    for section, sampling in {"rollout": rollout.sampling, **evaluated}.items():
        most, where = sampling.max_sequence_tokens, f"{section}.sampling.max_response_tokens"
        if most is not None and sampling.max_response_tokens > most:
            bound = f"{section}.sampling.max_sequence_tokens"
            what = f"is {sampling.max_response_tokens}, but {bound}={most} bounds prompt and response together"
            yield SlimeError(what, where=where, todo=f"For longer responses raise {bound}, too.")
