"""One attempt at the endpoint: from requests to turns of its conversations."""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from collections.abc import Sequence
from dataclasses import replace

from slime.contracts import Responder
from slime.conversation import RefusedError, TooLongError
from slime.types import Message, Turn, Verdict
from slime_agents.endpoint.forms import WORDS, as_the_run_wants, is_missed, is_of_reading
from slime_agents.endpoint.hearing import Hearing, Stops
from slime_agents.endpoint.said import FULL, Answer, RefusedRequestError, Repeated, Request, check_results, messages_of
from slime_agents.endpoint.tree import Asked, Node, Place, Spoken, Thread, Tree

log = logging.getLogger(__name__)


class Attempt:
    """One attempt, which clients know by its key.

    Args:
        structured: as `EndpointOptions.structured`.

    Attributes:
        broken: done when no turn can be made any more, with what ended the last one.
        verdict: the agent's own, which it posted last.
        reading: held while a request is read, so that they are read one after another.
    """

    verdict: Verdict | None = None

    def __init__(self, model: Responder, hearing: Hearing, structured: str = WORDS) -> None:
        self.key = secrets.token_urlsafe(24)
        self.broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.repeated, self.reading, self.structured = Repeated(), asyncio.Lock(), structured
        self._model, self._hearing, self._tree = model, hearing, Tree()
        self._num_conversations = self._num_turns = self._num_ill_formed = 0
        self._missed: list[tuple[Asked, Place, Node]] = []
        self._unchecked: list[tuple[Asked, Place, Node]] = []
        self._asks_forms = False
        self._running: set[asyncio.Task[Answer]] = set()
        self._numbers = itertools.count()

    def ask(self, request: Request, is_repeated: bool | None) -> Asked:
        """Have a request answered.

        Args:
            is_repeated: the client says that it has sent the request before; None: it says nothing, and gets the same
                answer to the same request. With false it gets another one, unless nobody has heard the first.

        Raises:
            RefusedRequestError: it cannot be answered.
        """
        bare, request = self._worded(request)
        place = self._placed(request)
        for asked in reversed(place.node.asked):
            is_unheard = not asked.is_heard and not asked.num_waiting
            if asked.request.terms == request.terms and (is_repeated is not False or is_unheard):
                return asked
        work = asyncio.get_running_loop().create_task(self._answer(place, request, bare))
        asked = Asked(request, work)
        place.node.asked.append(asked)
        self._running.add(work)
        work.add_done_callback(lambda done: self._end(place, asked))
        return asked

    async def count(self, request: Request) -> int:
        """Tokens that the model would read. Nothing is kept of the request.

        Raises:
            RefusedRequestError: it could not be answered.
        """
        _, request = self._worded(request)
        await self._prepare(request)
        place = self._placed(request)
        self._tree.forget(place)
        new, spoken = self._new(place, request), place.spoken
        try:
            if spoken is None:
                return await self._model.conversation(new, request.tools).count()
            return await spoken.thread.conversation.branch(spoken.number).count(*new)
        except RefusedError as error:
            raise _refused(error) from None

    def is_broken_by_form(self, error: Exception) -> bool:
        """The agent failed by the policy: somebody heard an answer that is not of the form that was asked, or JSON of a
        schema that the agent alone knows and could not read, and neither went on behind it nor asked again."""
        found = self._missed + (self._unchecked if is_of_reading(error) else [])
        return any(
            asked.is_heard and asked is place.node.asked[-1] and not any(said.children.values())
            for asked, place, said in found
        )

    def close(self) -> None:
        """Answer no more. What nobody has heard is forgotten."""
        for work in self._running:
            work.cancel()
        nodes = (node for root in self._tree.roots.values() for node in root.walk())
        unheard = [each.spoken for node in nodes for each in node.asked if each.spoken and not each.is_heard]
        for spoken in sorted(unheard, key=lambda each: -each.number):
            if spoken.number == spoken.thread.num_turns:
                spoken.thread.num_turns -= 1
                spoken.thread.conversation.take_back()
        self._model.note("requests", self._num_turns)
        self._model.note("forks", max(0, self._num_conversations - 1))
        self._model.note("ill_formed_calls", self._num_ill_formed)
        if self._asks_forms:
            self._model.note("missed_forms", len(self._missed))

    def _end(self, place: Place, asked: Asked) -> None:
        self._running.discard(asked.work)
        if asked.work.cancelled():
            place.node.asked.remove(asked)
            return
        if fault := asked.work.exception():
            place.node.asked.remove(asked)  # who asks again tries again
            self._tree.forget(place)
            if not isinstance(fault, RefusedRequestError) and not self.broken.done():
                self.broken.set_exception(fault)

    async def _prepare(self, request: Request) -> None:
        await self._hearing.prepare(self._model, bool(request.tools) or any(said.calls for said in request.said))

    def _worded(self, request: Request) -> tuple[Request, Request]:
        """A request with all that it is about, and the same with the words by which the form of its answer is asked."""
        bare = self._continued(request)
        return bare, as_the_run_wants(bare, self.structured)

    def _continued(self, request: Request) -> Request:
        """The request with all messages before it, where it goes on behind an answer that it names.

        Raises:
            RefusedRequestError: there is no such answer, or a result without its question.
        """
        if request.previous is not None:
            if request.previous not in self.repeated.answered:
                what = f"this attempt has no answer of the id '{request.previous:.80}'"
                raise RefusedRequestError(what, "previous_message_id")
            earlier, answer = self.repeated.answered[request.previous]
            new, before = request.said, earlier.said
            if new and new[0].role == "system":
                new, before = new[1:], (new[0], *(one for one in before if one.role != "system"))
            said = (*before, answer.said, *new)
            request = replace(request, said=said, tools=request.tools or earlier.tools, previous=None)
        check_results(request.said)
        return request

    def _placed(self, request: Request) -> Place:
        """Raises RefusedRequestError: no answer can follow these messages."""
        if not request.said:
            raise RefusedRequestError("there is no message", "messages")
        place = self._tree.place(request)
        if request.said[-1].role == "assistant" and not place.node.spoken:
            self._tree.forget(place)
            raise RefusedRequestError("the last message is the assistant's, and not what the model said", "messages")
        return place

    async def _answer(self, place: Place, request: Request, bare: Request) -> Answer:
        await self._prepare(request)
        thread, number, new = self._thread(place, request)
        stops = Stops(request.stop, self._hearing.opens_thinking)
        try:
            turn = await thread.conversation.turn(
                *new, max_tokens=request.max_tokens, stop=stops if request.stop else []
            )
        except RefusedError as error:
            thread.num_turns -= 1
            raise _refused(error) from None
        if not turn.num_sampled:
            thread.num_turns -= 1
            room = "rollout.sampling.max_response_tokens and max_sequence_tokens"
            raise RefusedRequestError(f"the conversation has no room for another token ({room})", "messages", FULL)
        answer = self._heard(turn, request, stops)
        spoken = Spoken(thread, number)
        said = place.node.add(answer.said, spoken, request.stop)
        self.repeated.answered[answer.id] = bare, answer
        asked = next(each for each in place.node.asked if each.work is asyncio.current_task())
        asked.spoken = spoken
        self._num_turns += 1
        self._asks_forms |= request.form is not None or bool(request.demanded)
        if is_missed(request, answer):
            self._missed.append((asked, place, said))
        elif request.form and request.form.schema is None:
            self._unchecked.append((asked, place, said))
        return answer

    def _thread(self, place: Place, request: Request) -> tuple[Thread, int, Sequence[Message]]:
        """The thread to continue, the number of the turn, and the messages before it. Nothing awaits here, so that no
        two requests take one place."""
        new = self._new(place, request)
        if place.spoken is None:
            thread = Thread(self._model.conversation(new, request.tools))
            new = []
            self._begin(place, request)
        else:
            thread = place.spoken.thread
            if thread.num_turns > place.spoken.number:  # somebody else went on from there
                thread = Thread(thread.conversation.branch(place.spoken.number))
        thread.num_turns += 1
        return thread, thread.num_turns, new

    def _new(self, place: Place, request: Request) -> Sequence[Message]:
        """Messages behind the last turn of the model, for the chat template."""
        before = request.said[: len(request.said) - len(place.new)]
        return messages_of(place.new, before, as_text=not self._hearing.writes_calls)

    def _begin(self, place: Place, request: Request) -> None:
        self._num_conversations += 1
        if self._num_conversations > 1:
            differing = request.said[min(place.num_known, len(request.said) - 1)]
            log.debug(
                "Conversation %d of an attempt begins; message %d differs from earlier ones: %s %.200r",
                self._num_conversations, place.num_known + 1, differing.role, differing.text,
            )  # fmt: skip

    def _heard(self, turn: Turn, request: Request, stops: Stops) -> Answer:
        text, stop = turn.full_text, None
        if found := stops.first(text):
            place, stop = found
            text = text[:place]
        tools = request.tools if request.may_call else ()
        heard = self._hearing.read(text, tools, lambda: f"call_{next(self._numbers):05d}")
        self._num_ill_formed += heard.is_ill_formed
        finish: str = turn.finish
        if stop is not None:
            finish = "stop_string"
        elif heard.said.calls and finish == "stop":
            finish = "tool_calls"
        return Answer(secrets.token_hex(12), heard.said, finish, stop, turn.num_before, turn.num_sampled)


def _refused(error: RefusedError) -> RefusedRequestError:
    return RefusedRequestError(str(error), "messages", FULL if isinstance(error, TooLongError) else None)
