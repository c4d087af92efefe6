"""The history tree of an attempt: every message that a client sent or was answered, and where the model's tokens are.

A request's messages are a path from a root. The conversation goes on behind the last turn of the model on this path, by
the tokens that were sampled, whatever the client made of the text; another request from the same turn is a branch.
Where a client changed an earlier message, no path fits, and a new conversation begins.
"""

from __future__ import annotations

import ast
import asyncio
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

from slime.conversation import Conversation
from slime_agents.endpoint.said import Answer, Call, Request, Said


class Thread:
    """A conversation, and how many turns of it the model said or is saying."""

    def __init__(self, conversation: Conversation) -> None:
        self.conversation, self.num_turns = conversation, 0


@dataclass(frozen=True)
class Spoken:
    """A turn of the model: the last of the first `number` of a thread."""

    thread: Thread
    number: int


@dataclass(eq=False)
class Asked:
    """A request, and all its repetitions, which get one answer.

    Attributes:
        spoken: where its turn is; None before it is whole.
        is_heard: the answer was sent to the end to a client that was there.
        num_waiting: clients that wait for it.
    """

    request: Request
    work: asyncio.Task[Answer]
    spoken: Spoken | None = None
    is_heard: bool = False
    num_waiting: int = 0


class Node:
    """A message, and what came behind it; a root has no message.

    Attributes:
        spoken: of a message that the model sampled.
        stops: stop strings of its request.
        asked: requests that end here.
    """

    def __init__(self, said: Said | None = None, spoken: Spoken | None = None, stops: Sequence[str] = ()) -> None:
        self.said, self.spoken, self.stops = said, spoken, stops
        self.children = defaultdict[bytes, list[Node]](list)
        self.asked: list[Asked] = []

    def add(self, said: Said, spoken: Spoken | None = None, stops: Sequence[str] = ()) -> Node:
        node = Node(said, spoken, stops)
        self.children[said.key].append(node)
        return node

    def like(self, said: Said) -> Iterator[Node]:
        """Children that are this message, as the model said it or as a client rewrote it."""
        yield from self.children.get(said.key, ())
        if said.role != "assistant":
            return
        stops = {stop for of_key in self.children.values() for child in of_key for stop in child.stops}
        for origin in origins(said, stops):
            yield from (child for child in self.children.get(origin.key, ()) if child.spoken)

    def walk(self) -> Iterator[Node]:
        waiting = [self]
        for node in waiting:
            yield node
            waiting += [child for of_key in node.children.values() for child in of_key]


@dataclass(frozen=True)
class Place:
    """The place of a request.

    Attributes:
        node: of its last message.
        spoken: the last turn of the model on the way to it; None: there is none, or a client changed one.
        new: the messages behind that turn, or all.
        num_known: messages from the start that were known before.
        noted: where the others were noted, and the first of them, if there is one.
    """

    node: Node
    spoken: Spoken | None
    new: Sequence[Said]
    num_known: int
    noted: tuple[Node, Node | None]


@dataclass
class _Path:
    node: Node
    likeness: int = 0
    spoken: Spoken | None = None
    behind: int = 0
    """Messages up to and with the last turn of the model."""


@dataclass
class Tree:
    """A root for each list of tools that the model is shown."""

    roots: dict[bytes, Node] = field(default_factory=dict)

    def place(self, request: Request) -> Place:
        """Find the place of a request, and note its messages there."""
        said = request.said
        paths = [_Path(self.roots.setdefault(request.tools_key, Node()))]
        known = 0
        for number, one in enumerate(said):
            further = [_onto(path, child, one, number + 1) for path in paths for child in path.node.like(one)]
            if not further:
                break
            paths, known = further, number + 1
        path = max(reversed(paths), key=lambda each: each.likeness)  # of equals the newest
        node, spoken, new = path.node, path.spoken, said[path.behind :]
        first = None
        for one in said[known:]:
            node = node.add(one)
            first = first or node
        if any(one.role == "assistant" for one in new):  # something between was said by nobody here
            spoken, new = None, said
        return Place(node, spoken, new, known, (path.node, first))

    def forget(self, place: Place) -> None:
        """Forget the messages of a refused request that no other one has come to: a client may be refused often."""
        parent, first = place.noted
        if first and first.said and not any(node.asked or node.spoken for node in first.walk()):
            parent.children[first.said.key] = [node for node in parent.children[first.said.key] if node is not first]


def _onto(path: _Path, child: Node, said: Said, number: int) -> _Path:
    assert child.said is not None, "only a root has no message"
    likeness = path.likeness + child.said.likeness(said)
    if child.spoken:
        return _Path(child, likeness, child.spoken, number)
    return _Path(child, likeness, path.spoken, path.behind)


_CALLS = re.compile(r"(.*?)\s*^Calling tools:\s*(\[\{.*\}\])", re.DOTALL | re.MULTILINE)
"""Calls in the words of an answer, as smolagents writes them."""
_MAX_CHARS = 100_000
"""Limit of calls in words: Python's own reader takes a second for some millions."""
_CODE = "python_interpreter"
"""Its name for the code in an answer, where an agent writes code and no calls."""


def origins(said: Said, stops: Collection[str]) -> Iterator[Said]:
    """Messages of the model that a client may have made this one of: without a stop string that was put back behind it,
    and without words for calls that the model made.

    Args:
        stops: stop strings of the requests that were answered there.
    """
    for one in (said, *_without_words_for_calls(said)):
        if one is not said:
            yield one
        text = one.text.rstrip()
        for stop in stops:
            if stop.strip() and text.endswith(stop.strip()):
                yield replace(one, text=text.removesuffix(stop.strip()))


def _without_words_for_calls(said: Said) -> Iterator[Said]:
    found = _CALLS.fullmatch(said.text.rstrip()) if "Calling tools:" in said.text else None
    if found is None or said.calls or len(found[2]) > _MAX_CHARS:
        return
    try:
        functions = [(each["id"], each["function"]) for each in ast.literal_eval(found[2])]
        calls = [Call.read(str(number), function["name"], function["arguments"]) for number, function in functions]
        code = [str(function["arguments"]) for _, function in functions]
    except (ValueError, SyntaxError, TypeError, KeyError, MemoryError, RecursionError):
        return
    if all(call.name == _CODE for call in calls) and all(each.strip() in found[1] for each in code):
        yield replace(said, text=found[1])
    else:
        yield replace(said, text=found[1], calls=tuple(calls))
