"""Functions of the user's own, by `FILE.py:FUNCTION` or `module:function`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from slime.by_path.called import module_of
from slime.errors import SlimeError, did_you_mean

HOW_TO_NAME_ONE = "Write FILE.py:FUNCTION, or module:function of an installed module."


def named(path: str) -> Callable[..., Any]:
    """The function of that name. Raises SlimeError: there is none, or its file cannot be imported."""
    where, colon, name = path.rpartition(":")
    if not colon or not where or not name:
        raise SlimeError(f"'{path}' does not name a function", todo=HOW_TO_NAME_ONE)
    module = module_of(where, where)
    found = getattr(module, name, None)
    if not callable(found):
        known = [each for each in vars(module) if callable(getattr(module, each)) and not each.startswith("_")]
        raise SlimeError(f"there is no function '{name}'", where=where, todo=did_you_mean(name, known))
    function: Callable[..., Any] = found
    return function


def coroutine_function(path: str, *arguments: str) -> Callable[..., Any]:
    """The `async def` of that name, which takes these arguments.

    Raises:
        SlimeError: it does not, or is another kind of function; otherwise as `named`.
    """
    function = named(path)
    todo = f"Write `async def {path.rpartition(':')[2]}({', '.join(arguments)})`."
    if inspect.isfunction(function) and not inspect.iscoroutinefunction(inspect.unwrap(function)):
        raise SlimeError("nothing can await what this function returns", where=path, todo=todo)
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError as error:
        raise SlimeError(f"it cannot be called with {', '.join(arguments)}: {error}", where=path, todo=todo) from None
    return function
