"""What a drill of a config does: its two runs, and which kills it is promised to survive."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slime.algo.stages import run_stages
from slime.compose.compose import Composed, examine
from slime.errors import SlimeError
from slime.topology.placement import SAVER
from slime.topology.transport import BROADCAST
from slime.types import SFT
from slime_tools.drill.processes import GUARD, WORKER

UNHURT, KILLED = "unhurt", "killed"
"""Names of the two runs, in `<run.dir>/drills/<run.name>`."""
SUPERVISED, CHECKPOINT, HELD_OUT = 2, 2, 32
"""Steps, steps between checkpoints and held-out rows of a drill, at most."""
ENGINE = ("engine's server", "engine's scheduler", "engine's detokenizer", "engine's keeper")


@dataclass(frozen=True)
class Kind:
    """What may be killed.

    Attributes:
        roles: of its processes, as `processes.ROLES`.
        budget: kills that a run survives by its keys.
        keys: that the budget follows from.
        not_in: a phase in which it may not die.
    """

    roles: Sequence[str]
    budget: int
    keys: str
    not_in: str = ""


@dataclass(frozen=True)
class Kill:
    """After which step, and how far into the next one, as a share of its usual time."""

    kind: str
    step: int
    share: float


@dataclass(frozen=True)
class Plan:
    """Of one drill.

    Attributes:
        stage: whose steps are hurt.
        same: whether the keys promise samples and weights of the unhurt run, to the bit.
        words: of both runs, behind `slime`, but for their name.
        folder: where they lie.
    """

    stage: str
    num_steps: int
    kinds: Mapping[str, Kind]
    kills: Sequence[Kill]
    same: bool
    words: Sequence[str]
    folder: Path

    def words_of(self, name: str) -> list[str]:
        return [*self.words, f"run.dir={self.folder}", f"run.name={name}"]


def plan(words: Sequence[str], num_kills: int, num_steps: int | None = None, seed: int = 0) -> Plan:
    """The drill of a run with these words.

    Args:
        num_steps: of each run; None: one more than three for each kill.

    Raises:
        SlimeError: the run has a problem, or does not survive so many kills by its keys.
    """
    composed = examine(words)
    for problem in (*composed.problems, *composed.needs):
        raise problem
    cfg, kinds = composed.cfg, kinds_of(composed)
    lasting = {name: kind for name, kind in kinds.items() if kind.budget > 0}
    if not lasting:
        what = "this run survives no kill: " + ", ".join(kind.keys for kind in kinds.values())
        raise SlimeError(what, where="slime drill", todo="Raise train.restarts or rollout.restarts.")
    most = sum(kind.budget for kind in lasting.values())
    if not 0 < num_kills <= most:
        budgets = ", ".join(f"{kind.budget} of {name}s ({kind.keys})" for name, kind in lasting.items())
        what = f"{num_kills} kills are not from 1 to {most}, which this run survives: {budgets}"
        raise SlimeError(what, where="--kills", todo="Choose another number.")
    num_steps = 3 * num_kills + 1 if num_steps is None else num_steps
    if num_steps <= num_kills:
        what = f"{num_steps} steps are too few for {num_kills} kills, each of which takes one"
        raise SlimeError(what, where="--steps", todo=f"Give at least {num_kills + 1}.")
    kills = [*_kills(lasting, num_kills, num_steps, random.Random(seed))]
    stage = run_stages(cfg).all[-1].name
    same = not cfg.cluster.on_gpus and not cfg.rollout.max_staleness
    folder = Path(cfg.run.dir).absolute() / "drills" / cfg.run.name
    return Plan(stage, num_steps, kinds, kills, same, [*words, *_shortened(composed, stage, num_steps)], folder)


def kinds_of(composed: Composed) -> dict[str, Kind]:
    """What runs on this host and may be killed, by its name."""
    cfg, topology = composed.cfg, composed.topology
    assert topology, "its config has no problems"
    by_nccl = cfg.cluster.on_gpus and topology.transport == BROADCAST
    publish = "publish" if by_nccl else ""
    found = {"trainer": Kind(("trainer",), cfg.train.restarts, f"train.restarts={cfg.train.restarts}", publish)}
    if topology.groups:
        stays = cfg.cluster.colocated and cfg.rollout.sglang.get(SAVER) is False
        budget = 0 if stays else cfg.rollout.restarts
        found["engine"] = Kind(ENGINE, budget, f"rollout.restarts={cfg.rollout.restarts}", publish)
        found["worker"] = Kind((GUARD, WORKER), 1000, "reward and program workers always come back")
    if cfg.cluster.hostfile:
        budget = min(cfg.cluster.spares, cfg.train.restarts)
        found["host"] = Kind(("session of a host",), budget, f"cluster.spares={cfg.cluster.spares}")
    return found


def _kills(kinds: Mapping[str, Kind], count: int, num_steps: int, dice: random.Random) -> Sequence[Kill]:
    """Each kind in turn, as long as its budget lasts, at steps that are spread over the run."""
    left, names = {name: kind.budget for name, kind in kinds.items()}, list[str]()
    while len(names) < count:
        for name in [name for name in kinds if left[name]][: count - len(names)]:
            names.append(name)
            left[name] -= 1
    steps = [1 + at * (num_steps - 1) // count for at in range(count)]
    return [Kill(name, step, round(dice.uniform(0, 1), 2)) for name, step in zip(names, steps, strict=True)]


def _shortened(composed: Composed, stage: str, num_steps: int) -> list[str]:
    """Keys over those of the run."""
    cfg = composed.cfg
    keys: dict[str, Any] = {"run.resume": "restart", "run.stop_at": "null", "observe.zero_variance_steps": 0}
    supervised = stage == SFT
    keys["sft.num_steps"] = num_steps if supervised else min(cfg.sft.num_steps, SUPERVISED)
    keys |= {} if supervised else {"run.num_steps": num_steps}
    if cfg.sft.lr_warmup_steps:
        keys["sft.lr_warmup_steps"] = min(cfg.sft.lr_warmup_steps, 1)
    if cfg.train.checkpoint.interval:
        keys["train.checkpoint.interval"] = min(cfg.train.checkpoint.interval, CHECKPOINT)
    if cfg.eval.path:
        keys["eval.limit"] = min(cfg.eval.limit or HELD_OUT, HELD_OUT)
    keys |= {f"observe.trackers.{name}": "false" for name, on in cfg.observe.trackers.items() if on}
    return [f"{key}={value}" for key, value in keys.items()]
