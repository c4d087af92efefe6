"""The plugin that `chaos.py` installs for its runs: a reward that always has a gradient, and a line at every verb."""

import functools
import os
import zlib
from collections.abc import Callable
from typing import Any

from slime.hookspecs import hookimpl
from slime.types import Sample, Verdict

MARKS = "CHAOS_MARKS"
"""Environment variable: the file that gets the lines `<verb> begin` and `<verb> end`; `train` as `train_<stage>`."""
VERBS = ("collect", "train", "publish", "checkpoint", "export")


class Unequal:
    """A value that differs from response to response: tiny models otherwise earn nothing, and learn nothing."""

    def score(self, sample: Sample) -> Verdict:
        return Verdict.of(zlib.crc32(sample.response.encode()) % 97 / 97)


def mark(line: str) -> None:
    with open(os.environ[MARKS], "a") as file:
        file.write(f"{line}\n")


def marked(verb: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(side: Any, *args: Any, **kwargs: Any) -> Any:
        told = f"train_{args[2].name}" if verb == "train" else verb
        mark(f"{told} begin")
        answer = method(side, *args, **kwargs)
        mark(f"{told} end")
        return answer

    return call


@hookimpl
def slime_rewards() -> Any:
    return {"unequal": Unequal}


@hookimpl
def slime_config_paths() -> list[str]:
    return ["pkg://slime_plugin_chaos.conf"]


@hookimpl
def slime_check(cfg: Any) -> list[str]:
    """Only the driver asks this, once, before anything starts."""
    from slime.generation import Generation
    from slime.learner import Learner

    for verb in VERBS:
        side = Generation if verb == "collect" else Learner
        setattr(side, verb, marked(verb, getattr(side, verb)))
    mark("start begin")
    return []
