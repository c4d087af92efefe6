"""Stop strings of a request, which end an answer behind its thinking."""

from __future__ import annotations

from dataclasses import dataclass

from slime_agents.endpoint.said import END_THINK, THINK


@dataclass(frozen=True)
class Stops:
    """The strings; `opens_thinking`: the prompt opens the thinking, so that every answer begins within."""

    strings: tuple[str, ...]
    opens_thinking: bool

    def __call__(self, text: str) -> bool:
        return self.first(text) is not None

    def first(self, text: str) -> tuple[int, str] | None:
        """Place and text of the first stop string. The white space behind thinking belongs to no answer."""
        begin = 0
        opened = text.lstrip()
        if self.opens_thinking or opened.startswith(THINK) or THINK.startswith(opened):
            end = text.find(END_THINK)
            if end < 0:
                return None
            behind = end + len(END_THINK)
            begin = len(text) - len(text[behind:].lstrip())
        found = [(place, each) for each in self.strings if (place := text.find(each, begin)) >= 0]
        return min(found, default=None)
