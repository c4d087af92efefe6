"""The program `gym`: the model acts in an environment, turn by turn, until that is done."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from slime.contracts import Responder
from slime.errors import SlimeError
from slime.types import Message, Task, Verdict
from slime_agents.gym.options import GymOptions
from slime_agents.gym.returned import messages, taken
from slime_agents.tools.named import named

Said = str | Message | Sequence[Message]
"""An environment's words to the model: text, or any other value as text, is a message of the user."""
KEY = "rollout.program.options.path"


class Environment(Protocol):
    """An environment, one object for each attempt. Its methods may be `async def`.

    A method `close`, if it has one, is called at the end, however the attempt ended.
    """

    def reset(self, task: Task, /) -> Said | None:
        """Begin. The returned messages stand in place of the prompt; None: the model sees the prompt."""

    def step(self, response: str, /) -> tuple[Said | None, float, bool]:
        """Take the model's response, and return words for it, the reward of this turn, and whether it is done."""


class Gym:
    """A `slime.contracts.Program`. Its verdict is the sum of the rewards; it raises what the environment raises."""

    def __init__(self, options: GymOptions) -> None:
        self._options = options
        self._make = environment_class(options.path)

    async def run(self, task: Task, model: Responder) -> Verdict:
        environment = self._make(**self._options.arguments)
        try:
            return await self._play(environment, task, model)
        finally:
            if hasattr(environment, "close"):
                await _result(environment.close())

    async def _play(self, environment: Environment, task: Task, model: Responder) -> Verdict:
        said = await _result(environment.reset(task))
        conversation = model.conversation(None if said is None else messages(said, "reset"))
        total, new, num_steps, done = 0.0, list[Message](), 0, False
        while not done and num_steps < self._options.max_turns:
            turn = await conversation.turn(*new)
            if num_steps and not turn.num_sampled:
                break  # there was no room for another response, so the environment has nothing to take
            told, reward, done = taken(await _result(environment.step(turn.text)))
            total, num_steps = total + reward, num_steps + 1
            if turn.finish == "length":
                break
            new = [] if done else messages(told, "step")
        model.note("steps", num_steps)
        model.note("done", float(done))
        return Verdict.of(total)


def environment_class(path: str) -> Callable[..., Environment]:
    """The environment that a run names.

    Raises:
        SlimeError: there is none, it is no class, or it lacks a method.
    """
    if not path:
        raise SlimeError("the program 'gym' has no environment", where=KEY, todo=f"Name it: {KEY}=my_env.py:MyEnv")
    found = named(path)
    if inspect.isroutine(found):
        raise SlimeError(f"{path} is a function, not a class", where=KEY, todo="docs/environments.md shows one.")
    for method in ("reset", "step"):
        if inspect.isclass(found) and not callable(getattr(found, method, None)):
            raise SlimeError(f"{path} has no method '{method}'", where=KEY, todo="docs/environments.md shows one.")
    return found


def check_arguments(path: str, arguments: Mapping[str, Any]) -> None:
    """Raises SlimeError: there is no such environment, or it cannot be made with these keywords."""
    made = environment_class(path)
    try:
        inspect.signature(made).bind(**arguments)
    except TypeError as error:
        todo = f"Give '{path}' its keywords there, or a default."
        raise SlimeError(str(error), where="rollout.program.options.arguments", todo=todo) from None
    except ValueError:  # of a class that is not Python's nobody can tell
        return


async def _result(given: Any) -> Any:
    return await given if inspect.isawaitable(given) else given
