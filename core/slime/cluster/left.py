"""Actors that another driver of the run has left, which was killed (`cluster.driver_grace_s`). They have names in the
run's own namespace of Ray."""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

from slime.cluster.actors import EngineActor, TrainerActor
from slime.events import Starting, Subscriber

REST_S = 30.0
"""Seconds that a trainer rank may take to end what the killed driver had asked for. Another one starts sooner."""
PING_S = 5.0
"""Seconds that an engine has to say how it is; one that is still starting does not answer."""


def new_name(member: str) -> str:
    """For one more actor: a dead one keeps its name until Ray knows of its end."""
    return f"{member}.{secrets.token_hex(4)}"


def left_actors(trainers: Sequence[str], engines: Sequence[str], tell: Subscriber) -> dict[str, Any]:
    """Those of these members that the run goes on with, by name. All trainer ranks, or none, who are killed: one may
    wait for another without end, if the driver was killed between its calls of the two.

    Args:
        tell: told what starts again.
    """
    import ray

    every: dict[str, list[Any]] = defaultdict(list)
    for name in ray.util.list_named_actors():
        every[name.partition(".")[0]].append(ray.get_actor(name))
    for actor in chain(*(actors for actors in every.values() if len(actors) > 1)):  # one was about to take a place
        ray.kill(actor)
    found = {name: actors[0] for name, actors in every.items() if len(actors) == 1}
    resting = _answers(found, trainers, TrainerActor.is_at_rest, REST_S)
    if missing := [name for name in trainers if not resting.get(name)]:
        tell(Starting(f"{', '.join(missing)}: ended, or not at rest within {REST_S:g} s; trainers start again"))
        for name in trainers:
            if actor := found.pop(name, None):
                ray.kill(actor)
    for name, end in _answers(found, engines, EngineActor.ping, PING_S).items():
        if end:
            ray.kill(found.pop(name))
    if gone := [name for name in engines if name not in found]:
        tell(Starting(f"{', '.join(gone)}: ended meanwhile; starts again"))
    return found


def _answers(found: dict[str, Any], names: Sequence[str], method: Callable[..., Any], limit_s: float) -> dict[str, Any]:
    """What `method` returns on each that answers by then; those that have died are `found` no more."""
    import ray

    asked = {getattr(found[name], method.__name__).remote(): name for name in names if name in found}
    answered, _ = ray.wait(list(asked), num_returns=len(asked), timeout=limit_s) if asked else ([], [])
    answers = {}
    for answer in answered:
        try:
            answers[asked[answer]] = ray.get(answer)
        except ray.exceptions.RayError:
            del found[asked[answer]]
    return answers
