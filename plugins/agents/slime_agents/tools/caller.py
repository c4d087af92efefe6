"""Calls of functions in the workers of tools."""

from __future__ import annotations

import asyncio
import inspect
import json
import traceback
from collections.abc import Mapping
from typing import Any

from guarded_workers.worker import Line
from slime.time_limit import FAILURES, failure
from slime_agents.tools.named import named


class Caller:
    """A `guarded_workers.worker.Servant`, whose answers are texts for the model; of options, it takes `functions`."""

    def __init__(self, _: str, options: Mapping[str, Any]) -> None:
        self._functions = {function.__name__: function for function in map(named, options["functions"])}

    def answer(self, message: tuple[str, Mapping[str, Any]], _: Line) -> str:
        name, arguments = message
        function = self._functions[name]
        try:
            result = function(**arguments)
            if inspect.isawaitable(result):
                result = asyncio.run(_awaited(result))
            return result if isinstance(result, str) else json.dumps(result, default=str, ensure_ascii=False)
        except MemoryError:
            raise
        except FAILURES as error:
            traceback.print_exc()
            return f"error: {failure(error)}"


async def _awaited(result: Any) -> Any:
    return await result
