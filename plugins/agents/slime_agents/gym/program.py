"""The program `gym`: the model acts in an environment, turn by turn, until that is done. Whatever its methods return
becomes text, or a failure that names it."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from guarded_workers.wire import FaultError
from slime.as_json import to_json
from slime.contracts import Responder
from slime.errors import SlimeError
from slime.time_limit import FAILURES, failure
from slime.types import Message, Task, Verdict
from slime_agents.gym.options import GymOptions
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


def messages(said: Any, method: str) -> list[Message]:
    """Messages for the model, of which any value that is no message becomes the text of one.

    Raises:
        FaultError: it is None, empty, no whole message, or has no text.
    """
    found = list(said) if isinstance(said, list | tuple) else [said]
    if said is None or not found:
        raise FaultError(f"{method} said {said!r}, neither text nor messages")
    if not any(map(_is_message, found)):
        return [{"role": "user", "content": _text(said, method)}]
    return [_message(each, method) for each in found]


def taken(given: Any) -> tuple[Any, float, bool]:
    """The three values that `step` returned. Raises FaultError: they are others."""
    if not isinstance(given, tuple) or len(given) != 3:
        raise FaultError(f"step returned {_shown(given)}, not (what the model is told, reward, done)")
    told, reward, done = given
    try:
        number = math.nan if isinstance(reward, str | bytes) else float(reward)
        is_done = None if done is None or isinstance(done, str | bytes) else bool(done)
    except FAILURES as error:
        what = f"the reward {_shown(reward)} and done={_shown(done)}"
        raise FaultError(f"step returned {what}, which are no number and no truth: {_why(error)}") from None
    if not math.isfinite(number):
        raise FaultError(f"step returned the reward {_shown(reward)}; rewards are finite numbers")
    if is_done is None:
        raise FaultError(f"step returned done={_shown(done)}, which is neither true nor false")
    return told, number, is_done


def _is_message(value: Any) -> bool:
    return isinstance(value, Mapping) and ("role" in value or "content" in value)


def _message(value: Any, method: str) -> Message:
    if not _is_message(value) or not isinstance(value.get("role"), str):
        raise FaultError(f"{method} said {_shown(value)} among its messages, which has no role")
    content = value.get("content")
    if content is None and not value.get("tool_calls"):
        raise FaultError(f"{method} said {_shown(value)}, a message that has no content")
    text = "" if content is None else _text(_joined(content), method)
    try:
        message: Message = json.loads(to_json({**value, "content": text}))
    except FAILURES as error:
        raise FaultError(f"{method} said a message that cannot be written as JSON: {_why(error)}") from None
    return message


def _joined(content: Any) -> Any:
    """Texts that are parts of a content as one."""
    parts = content if isinstance(content, list) else []
    if not parts or not all(isinstance(each, Mapping) and isinstance(each.get("text"), str) for each in parts):
        return content
    return "".join(each["text"] for each in parts)


def _text(value: Any, method: str) -> str:
    try:
        if isinstance(value, str):
            return str(value)
        if isinstance(value, bytes | bytearray):
            return value.decode(errors="replace")
        if isinstance(value, Mapping | list | tuple) or hasattr(value, "tolist"):
            return to_json(dict(value) if isinstance(value, Mapping) else value, ensure_ascii=False)
        return str(value)
    except FAILURES as error:
        name = type(value).__name__
        raise FaultError(f"{method} said a value of type {name} that has no text: {_why(error)}") from None


def _shown(value: Any) -> str:
    try:
        return f"{value!r:.80}"
    except FAILURES:
        return f"a value of type {type(value).__name__}"


def _why(error: BaseException) -> str:
    try:
        return failure(error)
    except FAILURES:
        return type(error).__name__
