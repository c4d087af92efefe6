"""The nearest sizes of trainers and engines that the plan takes, as the way out of those that it does not; and adapters
where the model itself has no room to learn."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from slime.compose.check import Rules
from slime.config.changes import Changes, changed, in_words
from slime.config.hf import NUM_LAYERS, config_folder, read_hf_config
from slime.config.schema import ModelConfig, RolloutConfig, SlimeConfig, TrainConfig
from slime.errors import SlimeError
from slime.layout import FIRST, LAST, SIZE_KEYS, divisors, read_grid, split_layers
from slime.topology.engines import DEFAULT, sampling_groups

MEGATRON, ENGINES = "train.megatron", "rollout.engines."
DEVICE = "memory a device"
RANK = {"train.lora.rank": 32}
FEW_TOKENS = 2048
RECOMPUTED = {
    "train.megatron.recompute_granularity": "full",
    "train.megatron.recompute_method": "uniform",
    "train.megatron.recompute_num_layers": 1,
}
FARTHEST = 8
"""Layers that a first or last stage may have more or fewer than the mean."""


def with_ways_out(problems: Sequence[SlimeError], given: SlimeConfig, rules: Rules) -> list[SlimeError]:
    """The problems, of which those about a size have the nearest one that the plan takes as their way out, if there is
    one (hook `slime_advisers`)."""
    before = {problem.where for problem in problems}
    sized = given.model, given.rollout, given.train.megatron, given.cluster.num_trainers

    def is_way_out(where: str, changes: Changes) -> bool:
        after = {problem.where for problem in rules(changed(given, changes))}
        return where not in after and after <= before

    found = []
    for problem in problems:
        is_full = problem.where == DEVICE and not problem.todo.startswith("Set ")  # no settings make room
        tried = _adapters(given.train) if is_full else _nearest(problem.where, *sized)
        way = next((changes for changes in tried if is_way_out(problem.where, changes)), None)
        todo = f"Set {' '.join(in_words(way))}." if way else problem.todo
        if way and is_full:
            otherwise = problem.todo[:1].lower() + problem.todo[1:]
            todo = f"{todo.removesuffix('.')}: adapters alone learn then (docs/lora.md). Or {otherwise}"
        found.append(SlimeError(problem.what, where=problem.where, todo=todo))
    return found


def _nearest(
    where: str, model: ModelConfig, rollout: RolloutConfig, megatron: Mapping[str, Any], num_trainers: int
) -> Iterator[Changes]:
    """Changes to try, the nearest first."""
    home, _, key = where.rpartition(".")
    group = home.removeprefix(ENGINES).removesuffix(".sglang")
    if where == "cluster.num_trainers":
        yield from _trainer_sizes(("tp", "cp", "ep", "etp"), megatron, num_trainers)
    elif where == f"{MEGATRON}.{SIZE_KEYS['pp']}" or where.startswith("model family"):
        layers = read_hf_config(config_folder(model), model.num_layers)[NUM_LAYERS]
        yield from (
            {f"{MEGATRON}.{key}": size for key, size in split.items()}
            for split in _splits(megatron, layers)
            if _divides({**megatron, **split}, layers, num_trainers)
        )
    elif home == MEGATRON:
        yield from _trainer_sizes(
            (name for name in ("tp", "ep", "etp") if SIZE_KEYS[name] == key), megatron, num_trainers
        )
    elif key == "dp_size":
        yield from _attention_ranks(where, group, rollout)
    elif key in ("devices", "devices_per_engine", "tp_size"):
        name = group if home.startswith(ENGINES) else next(iter(sampling_groups(rollout)), DEFAULT)
        yield from _engine_sizes(name, rollout, num_trainers)


def _adapters(train: TrainConfig) -> Iterator[Changes]:
    """Adapters in the place of the model, alone and with what takes less memory while they learn; none where they are
    chosen already, or `slime-megatron` is not installed."""
    lora = getattr(train, "lora", None)
    if lora is None or lora.rank is not None:
        return
    yield RANK
    fewer: Changes = {"train.max_tokens_per_micro_batch": min(FEW_TOKENS, train.max_tokens_per_micro_batch)}
    yield {**RANK, **fewer}
    yield {**RANK, **fewer, **RECOMPUTED}


def _trainer_sizes(names: Iterable[str], megatron: Mapping[str, Any], num_trainers: int) -> Iterator[Changes]:
    """Other sizes of those that are above 1."""
    given = {name: size for name in names if (size := megatron.get(SIZE_KEYS[name]) or 1) > 1}
    tried = [(name, other) for name, size in given.items() for other in _around(size, num_trainers)]
    for name, other in sorted(tried, key=lambda each: (_distance(each[1], given[each[0]]), -each[1])):
        yield {f"{MEGATRON}.{SIZE_KEYS[name]}": other}


def _splits(megatron: Mapping[str, Any], layers: int) -> Iterator[Mapping[str, int]]:
    """Layers of the last stage, and of the first and the last, the most even first."""
    stages = megatron.get(SIZE_KEYS["pp"]) or 1
    if stages < 2 or megatron.get("pipeline_model_parallel_layout"):
        return
    mean = layers / stages
    around = sorted(range(max(1, int(mean) - FARTHEST), int(mean) + FARTHEST + 1), key=lambda size: abs(size - mean))
    if megatron.get(FIRST) is None:
        yield from ({LAST: size} for size in around)
    pairs = [{FIRST: one, LAST: other} for one in around for other in around]
    yield from sorted(pairs, key=lambda pair: max(abs(size - mean) for size in pair.values()))


def _divides(megatron: Mapping[str, Any], layers: int, num_trainers: int) -> bool:
    """Whether the other stages can share the layers: most splits are ruled out so, and the plan takes 30 ms each."""
    try:
        stages = split_layers(layers, read_grid(num_trainers, megatron), megatron)
    except SlimeError:
        return False
    return all(any(chunks) for chunks in stages)


def _attention_ranks(where: str, name: str, rollout: RolloutConfig) -> Iterator[Changes]:
    own = rollout.engines.get(name)
    sglang = {**rollout.sglang, **(own.sglang if own else {})}
    groups = [own] if own else [*sampling_groups(rollout).values()]
    ranks = [group.devices_per_engine for group in groups if group.devices_per_engine] or [sglang.get("tp_size", 1)]
    yield from ({where: size} for size in _around(sglang.get("dp_size", 1), math.gcd(*ranks)) if size > 1)


def _engine_sizes(name: str, rollout: RolloutConfig, num_trainers: int) -> Iterator[Changes]:
    own, home = rollout.engines.get(name), f"{ENGINES}{name}"
    size = (own and own.devices_per_engine) or rollout.sglang.get("tp_size", 1)
    devices = (own and own.devices) or num_trainers
    below, above = devices // size * size, -(-devices // size) * size
    totals = [total for total in (above, below) if total and total != devices]
    if not (own and own.devices):
        yield from ({"cluster.num_trainers": total} for total in totals)
    key = f"{home}.devices_per_engine" if own and own.devices_per_engine else "rollout.sglang.tp_size"
    yield from ({key: other} for other in _around(size, devices))
    if own or name != DEFAULT:
        yield from ({f"{home}.devices": total} for total in totals)
    if own and own.devices:
        others = sum(group.devices or 0 for group in sampling_groups(rollout).values()) - own.devices
        rest = num_trainers - others
        yield from ({f"{home}.devices": rest, key: other} for other in _around(size, rest) if rest > 0)


def _around(size: int, whole: int) -> list[int]:
    """The other divisors of `whole`, the nearest to `size` first, of two the larger one."""
    return sorted((n for n in divisors(whole) if n != size), key=lambda n: (_distance(n, size), -n))


def _distance(size: int, other: int) -> float:
    return abs(math.log(size / other))
