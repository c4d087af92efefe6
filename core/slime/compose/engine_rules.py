"""Rules of engines: weights that come while they generate, models of their own, and what they tell of tokens; and those
of their software, asked of whatever is installed that knows them (hook `slime_engine_checks`)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from slime import plugins
from slime.config.choices import Publish
from slime.config.hf import num_labels, read_hf_config, scores
from slime.config.paths import resolve
from slime.config.schema import RolloutConfig
from slime.engines.limits import longest_sequence, num_drafted, room
from slime.engines.outside import addresses_of
from slime.errors import SlimeError
from slime.extras import how_to_get
from slime.models.blocks import BuildingBlock
from slime.sizes.model import frozen_sizes
from slime.topology.adapters import adapters_beside
from slime.topology.engines import sampling_groups
from slime.topology.placement import SAVER
from slime.topology.quantization import choices
from slime.topology.recordings import kept_tokens, numbers_told, recordings_of
from slime.topology.server_fields import drafts_with_own_layer
from slime.topology.topology import Topology
from slime.topology.transport import DISK

CHECK = "engine_check"


def engine_check_problems(
    topology: Topology, model: Mapping[str, Any], blocks: Collection[BuildingBlock]
) -> Iterator[SlimeError]:
    """What every installed check says. `model`: keywords of Megatron's TransformerConfig; `blocks`: it is built of
    them."""
    for check in plugins.load().registries[CHECK]:
        yield from check.factory(topology, model, blocks)


def unchecked(topology: Topology) -> Iterator[SlimeError]:
    """Says that nobody was asked, of a run that has engines."""
    if topology.generates and not [*plugins.load().registries[CHECK]]:
        todo = how_to_get(f"{CHECK}/sglang")
        yield SlimeError("was held against no rules of SGLang", where="rollout.sglang", todo=todo)


def staleness_problems(topology: Topology) -> Iterator[SlimeError]:
    """Whether engines can generate while the trainers work, and take new weights with requests inside."""
    rollout = topology.config.rollout
    if not rollout.max_staleness:
        return
    if topology.takes_turns:
        bound = f"rollout.max_staleness={rollout.max_staleness}"
        what = f"lets trainers and engines use the devices in turns, but with {bound} both work at once"
        todo = f"Set cluster.placement=disaggregated, or rollout.sglang.{SAVER}=false if both fit together."
        yield SlimeError(what, where="cluster.placement", todo=todo)
    if rollout.publish is Publish.abort:
        return
    where, todo = "rollout.publish", "Set rollout.publish=abort."
    is_set = f"is {rollout.publish.name}, but"
    if topology.works_in_pairs:
        yield SlimeError(f"{is_set} prefill and decode engines cannot pause requests", where=where, todo=todo)
        return
    for group in topology.groups:
        sizes = f"pp_size={group.sglang.get('pp_size')}"
        if (group.sglang.get("pp_size") or 1) > 1:
            yield SlimeError(f"{is_set} engines of {sizes} cannot pause requests", where=where, todo=todo)
        elif rollout.publish is Publish.keep and group.sglang.get("speculative_algorithm"):
            todo = "Set rollout.publish=retract."
            yield SlimeError(f"{is_set} engines that draft tokens cannot keep their keys", where=where, todo=todo)


def outside_problems(topology: Topology) -> Iterator[SlimeError]:
    """What servers of others cannot be, or cannot do: they are started without a word from this run."""
    cfg, where = topology.config, "rollout.addresses"
    if not topology.outside:
        return
    try:
        if not addresses_of(topology.outside):
            yield SlimeError("names no server", where=where, todo="Write one, http://<host>:<port>.")
    except SlimeError as problem:
        yield problem
    needs = "that servers of rollout.addresses are not told of"
    refused = {f"rollout.engines.{name}": "is a second place that samples" for name in sampling_groups(cfg.rollout)}
    refused |= dict.fromkeys(choices(cfg.rollout), f"is a form of weights {needs}")
    asked = {"train.routing_replay": cfg.train.routing_replay, "observe.routing": cfg.observe.routing}
    asked |= {f"recording '{each.name}'": True for each in numbers_told()}
    refused |= {key: f"asks for notes on tokens {needs}" for key, is_set in asked.items() if is_set}
    if cfg.rollout.sglang.get("speculative_algorithm"):
        refused["rollout.sglang.speculative_algorithm"] = f"asks for drafts {needs}"
    if adapters_beside(cfg.train):
        refused["train.lora"] = f"publishes adapters beside the weights, for slots {needs}"
    if cfg.cluster.colocated:
        refused["cluster.placement"] = "is colocated, but servers of rollout.addresses are on devices of their own"
    if topology.transport != DISK:
        refused["weights.transport"] = f"is {topology.transport}, but servers of rollout.addresses take weights of disk"
    if cfg.rollout.backend != RolloutConfig.backend:
        refused["rollout.backend"] = f"is {cfg.rollout.backend}, but servers of rollout.addresses are SGLang's"
    for key, what in refused.items():
        yield SlimeError(what, where=key, todo=f"Remove one of the two, it or {where}.")


def frozen_problems(topology: Topology) -> Iterator[SlimeError]:
    """Models that are not there, or score with more than one number."""
    for group in topology.frozen:
        assert group.model, "it has one of its own"
        where = f"rollout.engines.{group.name}.model"
        try:
            hf = read_hf_config(group.model)
        except SlimeError as problem:
            yield problem.under(where)
            continue
        if not any(resolve(group.model).glob("*.safetensors")):
            todo = "Fetch the weights: nothing is published to these engines."
            yield SlimeError(f"there are no *.safetensors files in {group.model}", where=where, todo=todo)
        if scores(hf) and (count := num_labels(hf)) != 1:
            what = f"{' '.join(hf['architectures'])} has {count} labels, and a reward is one number"
            yield SlimeError(what, where=where, todo="Name a reward model with one (id2label of config.json).")


def frozen_warnings(topology: Topology) -> Iterator[SlimeError]:
    """GPUs whose memory is not counted."""
    known = frozen_sizes(topology) if topology.cluster.on_gpus else {group.name for group in topology.frozen}
    for name in (group.name for group in topology.frozen if group.name not in known):
        what = f"the memory of engine group '{name}' is not counted: no installed plugin knows its model's sizes"
        todo = "See that the model fits its devices, or give the group more of them."
        yield SlimeError(what, where=f"rollout.engines.{name}.model", todo=todo)


def recording_problems(topology: Topology) -> Iterator[SlimeError]:
    """Why engines cannot tell of tokens what a key or a plugin asks of them."""
    cfg = topology.config
    key = "train.routing_replay" if cfg.train.routing_replay else "observe.routing"
    recordings, todo = recordings_of(cfg), f"Set {key}=false, or change that."
    asked = [(key, todo, each) for each in recordings]
    asked += [(f"recording '{each.name}'", "Uninstall its plugin, or change that.", each) for each in numbers_told()]
    narrow = [("rollout.sampling.top_k", "Set it to -1, or change that.", each) for each in kept_tokens(cfg)]
    asked += narrow
    if not recordings and (cfg.train.routing_replay or cfg.observe.routing):
        yield SlimeError("does nothing: the model has no mixture of experts", where=key, todo="Remove it.")
    elif narrow and topology.works_in_pairs:
        where, way_out, _ = narrow[0]
        yield SlimeError("prefill and decode engines do not return which tokens they kept", where=where, todo=way_out)
    for group in topology.groups:
        for where, way_out, recording in asked:
            for problem in recording.problems(cfg.train.megatron, group.sglang):
                yield SlimeError(problem, where=where, todo=way_out)


def context_problems(topology: Topology, hf: Mapping[str, Any]) -> Iterator[SlimeError]:
    """Whether the longest sequence fits the model's context and the engines' token pools, as far as they are known."""
    longest, key = longest_sequence(topology.config)
    for group in topology.groups:
        limits = {
            "the model's context": (hf.get("max_position_embeddings"), 1),
            group.home_of("context_length"): (group.sglang.get("context_length"), 1),
            group.home_of("max_total_tokens"): (group.sglang.get("max_total_tokens"), group.sglang.get("page_size")),
        }
        rooms = [
            (room(limit, page_size=page_size or 1, num_drafted=num_drafted(group.sglang)), f"{name} of {limit}")
            for name, (limit, page_size) in limits.items()
            if limit is not None
        ]
        least, name = min(rooms, key=lambda each: each[0], default=(longest, ""))
        if longest > least:
            what = f"prompt and response may have {longest} tokens, {name} has room for {least}"
            where, todo = f"rollout.max_prompt_tokens, {key}", f"Lower them to {least} together."
            yield SlimeError(what, where=where, todo=todo)
            return


def renewal_problems(topology: Topology, *, drafts: bool) -> Iterator[SlimeError]:
    """Engines in which a published version would not renew all that they compute with; `drafts`: the model has a layer
    that drafts."""
    for group in topology.groups:
        draft = group.sglang.get("speculative_draft_model_path")
        if draft is not None and draft != topology.config.model.path:
            what, where = "names another model, but publishing renews the trained one only", "draft_model_path"
            yield SlimeError(what, where=group.home_of(f"speculative_{where}"), todo="Remove it.")
        elif drafts_with_own_layer(group.sglang) and not drafts:
            what, where = "needs a multi-token prediction layer, which this model does not have", "algorithm"
            yield SlimeError(what, where=group.home_of(f"speculative_{where}"), todo="Remove it.")
        # SGLang reorders experts for these kernels when it starts, not when it loads a new version.
        for key in ("moe_runner_backend", "speculative_moe_runner_backend"):
            if str(group.sglang.get(key)).startswith("flashinfer_trtllm"):
                what = "reorders experts at start-up only, so weights published later would be in the wrong order"
                yield SlimeError(what, where=group.home_of(key), todo="Use triton.")
