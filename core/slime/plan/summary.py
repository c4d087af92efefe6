"""The first rows of a plan: what runs, where its checkpoints go, what it learns from, and how that is weighed."""

from __future__ import annotations

from collections.abc import Iterator

from slime.algo.stages import keys_read, run_stages
from slime.compose.chosen import Choice, choices_of
from slime.compose.compose import Composed
from slime.compose.options import defaults_of
from slime.config.choices import Publish, Surplus
from slime.config.schema import (
    AlgoConfig,
    CheckpointConfig,
    Importance,
    ImportanceTokens,
    Init,
    ProgramConfig,
    Role,
    RolloutConfig,
    SetConfig,
    TrainConfig,
)
from slime.plan.model import PlannedModel
from slime.plan.surplus import stale_share
from slime.plan.work import batch
from slime.plugins import Plugins
from slime.topology.adapters import adapters_of
from slime.topology.quantization import quantizes
from slime.topology.recordings import recordings_of
from slime.topology.topology import Topology

_NAMED = ("reward", "program", "filter", "buffer")
"""Kinds of plugins of which the names in use are told."""
UNTRIED = "; with Adam on the CPU no checkpoint of a large one has been written yet"


def summary(composed: Composed, model: PlannedModel, plugins: Plugins) -> dict[str, str]:
    """Label -> sentence: what runs, where its checkpoints go, what it learns from, and how that is weighed."""
    cfg, choices, keys = composed.cfg, composed.choices, model.architecture
    used = {
        label: name
        for label, name in composed.chosen.items()
        if (kind := label.partition(".")[0]) in _NAMED and name in plugins.registries[kind]
    }
    if cfg.rollout.program.name == ProgramConfig.name or not model.topology.generates:
        used.pop("program", None)
    weights = cfg.model.weights or (cfg.model.path if cfg.model.init is Init.checkpoint else cfg.model.init.name)
    sizes = f"{keys['num_layers']} layers, hidden {keys['hidden_size']}, {keys['num_attention_heads']} heads"
    provenance = plugins.provenance(used)["used"]
    files = [", ".join(composed.run_files)] if composed.run_files else []
    told = {choice.label: _options(choice, plugins) for choice in choices_of(cfg) if choice.label in used}
    return {
        "run": f"{cfg.run.name} in {cfg.run.dir}/{cfg.run.name}, resume {cfg.run.resume.name}",
        "model": f"{cfg.model.name} ({cfg.model.family}): {sizes}; weights: {weights}",
        **_adapters(cfg.train, model),
        **_replayed(model.topology),
        "recipe": ", under ".join([f"{choices['recipe']}, task {choices['task']}", *files]),
        **dict(_stages(model)),
        "checkpoints": _checkpoints(cfg.train.checkpoint),
        **{
            label: f"{item['name']} ({item['distribution']} {item['version']}){told.get(label, '')}"
            for label, item in provenance.items()
        },
        **({"teacher": cfg.algo.teacher.path} if cfg.algo.teacher.path else {}),
    }


def _options(choice: Choice, plugins: Plugins) -> str:
    """Those that are not the plugin's defaults."""
    usual = defaults_of(plugins.schemas.get(f"{choice.kind}/{choice.name}"))
    given = {key: value for key, value in choice.options.items() if value != usual.get(key)}
    return f": {', '.join(f'{key}={value}' for key, value in given.items())}" if given else ""


def _adapters(train: TrainConfig, model: PlannedModel) -> dict[str, str]:
    if not (chosen := adapters_of(train)):
        return {}
    parameters = f"{count(model.adapters)} parameters learn" if model.adapters else "the model's weights stay"
    return {"adapters": f"{chosen.in_words}; {parameters}"}


def _replayed(topology: Topology) -> dict[str, str]:
    cfg = topology.config
    found = recordings_of(cfg)
    if not found:
        return {}
    sizes = batch(topology)
    num_tokens = sizes["samples"] * sizes["optimizer_steps"] * sizes["longest"]
    size = sum(each.token_bytes for each in found)
    names = ", ".join(each.name for each in found)
    return {"replay": f"{names}: {size:,} bytes a token, at most {num_tokens * size / 1e9:.3g} GB a step"}


def _stages(model: PlannedModel) -> Iterator[tuple[str, str]]:
    cfg, has_experts = model.topology.config, bool(model.architecture.get("num_moe_experts"))
    rollout = cfg.rollout
    if cfg.sft.path and cfg.sft.num_steps:
        yield "supervised", f"{cfg.sft.num_steps} steps of {cfg.sft.batch_size} rows of {cfg.sft.path}"
    if run_stages(cfg).reinforces:
        samples = f"{rollout.prompts_per_step} prompts x {rollout.samples_per_prompt} samples"
        yield cfg.algo.name, f"{cfg.run.num_steps} steps of {samples}, prompts from {cfg.data.path}"
        if run_stages(cfg).have_critic:
            yield "critic", _critic(cfg.algo) + (UNTRIED if cfg.train.optimizer.get("optimizer_cpu_offload") else "")
        for name, train_set in cfg.data.sets.items():
            taken = f"share {train_set.share:g} to {cfg.data.share:g}, prompts from {train_set.path}"
            yield f"set {name}", f"{taken}{_own(train_set)}"
        if rollout.max_staleness:
            yield "staleness", _staleness(rollout)
        elif rollout.over_sampling > 1:
            engines = sum(group.num_engines for group in model.topology.groups if group.role is not Role.prefill)
            yield "surplus", _surplus(rollout, engines * rollout.max_requests_per_engine)
        if "importance" in keys_read(cfg.algo) and (corrected := _corrected(cfg.algo, cfg.rollout, has_experts)):
            yield "importance", f"{corrected}: {_correction(cfg.algo)}"
    if cfg.eval.path:
        when = "after the last step" if not run_stages(cfg).reinforces else f"every {cfg.eval.interval} steps"
        yield "evaluation", f"{when} on {cfg.eval.path}"
        for name, held_out in cfg.eval.sets.items():
            samples = f"{held_out.samples_per_prompt} samples a prompt of {held_out.path}"
            yield f"eval {name}", f"{samples} at temperature {held_out.sampling.temperature:g}{_own(held_out)}"


def _critic(algo: AlgoConfig) -> str:
    critic = algo.critic
    begins = f"from {critic.path}" if critic.path else "from the policy's weights"
    alone = f", alone for {critic.only_steps} steps" if critic.only_steps else ""
    where = "takes turns with the policy on the devices" if critic.offload else "stays beside the policy"
    return f"a second model {begins}, learning rate {critic.lr:g}{alone}, for {algo.advantage}; {where}"


def _own(prompts: SetConfig) -> str:
    chosen = {"reward": prompts.reward, "program": prompts.program}
    return "".join(f", {kind} {name}" for kind, name in chosen.items() if name)


def _checkpoints(checkpoint: CheckpointConfig) -> str:
    kept = f"the last {checkpoint.keep} are kept"
    if checkpoint.interval is None:
        lost = "" if checkpoint.export_hf else ", and no export: nothing that is learnt is kept"
        return f"none: a run that stops starts again from step 0{lost}"
    if checkpoint.interval == 0:
        return f"only after each stage: a run that stops earlier loses what the stage learnt; {kept}"
    return f"every {checkpoint.interval} steps and after each stage; {kept}"


def _surplus(rollout: RolloutConfig, in_flight: int) -> str:
    left = "that were begun last" if rollout.fixed_prompts else "that are not done when the step has enough"
    begun = f"over_sampling {rollout.over_sampling:g}: groups {left}"
    if not rollout.continues:
        return f"{begun} are dropped: no token is of older weights"
    went = "go on in the next" if rollout.surplus is Surplus["continue"] else "are dropped but for finished ones"
    share, lag = stale_share(rollout, in_flight), rollout.max_weight_lag
    old = f"about {share:.0%} of trained tokens are of older weights, if lengths are spread evenly"
    return f"{begun} {went}; {old}" + ("" if lag is None else f"; those over {lag} versions old are masked")


def _staleness(rollout: RolloutConfig) -> str:
    bound = rollout.max_staleness
    steps = f"the next {bound} steps" if bound > 1 else "the next step"
    ahead = f"{'up to' if bound > 1 else 'the'} {bound * rollout.prompts_per_step} groups of {steps}"
    inside = {
        Publish.retract: "go on under the new weights, with keys and values of these",
        Publish.keep: "go on under the new weights, with the keys and values that they have",
        Publish.abort: "are ended, and what is left of each is asked for",
    }[rollout.publish]
    old = f"no token that is trained on is over {bound} version{'s' * (bound > 1)} old"
    return f"{ahead} are generated while a step trains, {old}; at a publish, responses {inside}"


def _corrected(algo: AlgoConfig, rollout: RolloutConfig, has_experts: bool) -> str:
    """Which tokens of a run are corrected, and why; empty if none is."""
    if algo.importance_tokens is ImportanceTokens.all:
        causes = {
            "engines quantise": quantizes(rollout),
            "rounding sends tokens to other experts": has_experts,
            "some tokens are of older weights": rollout.continues,
        }
        why = " and ".join(cause for cause, holds in causes.items() if holds)
        return "all tokens" + (f", because {why}" if why else "")
    return "tokens of older weights" if rollout.continues else ""


def _correction(algo: AlgoConfig) -> str:
    bounds = f"[{algo.importance_low:g}, {algo.importance_high:g}]"
    outside = f"clipped to {bounds}" if algo.importance is Importance.truncate else f"masked outside {bounds}"
    weight = f"loss times pi_old / pi_engine, {outside}"
    return "the PPO ratio compares with the engine that sampled them" if algo.rollout_logprobs_as_old else weight


def count(parameters: int | None) -> str:
    """`9.40 B`."""
    if parameters is None:
        return "not known"
    size, unit = (1e9, "B") if parameters >= 1e9 else (1e6, "M")
    return f"{parameters / size:,.2f} {unit}"
