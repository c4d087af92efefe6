"""Reward `reward-model`: the number that a trained model gives a conversation, served by an engine group of the run."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slime.errors import SlimeError
from slime.thinking import said
from slime.types import Message, Sample, Verdict
from slime_rewards.general.remote import ServerError, post

if TYPE_CHECKING:
    from slime.data.chat import Chat

TEMPLATE, END_TOKEN = "template", "end_token"
SCORED_AT = "slime_scored_at"
"""Key of config.json: which of the two a model was trained with, where it says so. `algo=reward_model` writes it."""


@dataclass
class ModelReward:
    """The score of a model for sequence classification with one label: any real number.

    Its own chat template and tokenizer write the conversation. The policy's token ids are never sent, so that one text
    has one score, however it was sampled.
    """

    engines: str
    """Engine group of the run that has the reward model (`rollout.engines.NAME.model`)."""
    scored_at: str | None = None
    """template: the last token of what the template writes, as published models have it. end_token: the end token of
    the response, added where the template writes none. Empty: as the model's config.json says, else template."""
    thinking: bool = False
    """Whether a response's thinking is read, too."""
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    """Further keywords of the reward model's chat template."""
    mean: float = 0.0
    """Is taken off the score..."""
    std: float = 1.0
    """...which is divided by this. Where they change it, the metric `reward_part/score` is the score itself."""
    request_timeout_s: float = 60.0
    """Seconds that one request may take; `reward.timeout_s` is for all tries."""
    tries: int = 3
    """Requests for a sample, where the engine is away, busy or broken."""

    def __post_init__(self) -> None:
        if fault := fault_of(self.scored_at, self.std):
            raise fault
        self._writer: ConversationWriter | None = None

    def score(self, sample: Sample) -> Verdict:
        from slime.reward.engines import engines  # here, because importing a plugin is to be quick

        engine = random.choice(engines(self.engines))
        if self._writer is None:
            self._writer = ConversationWriter(Path(engine.model), self.scored_at, self.chat_template_kwargs)
        url = f"{engine.url}/classify"
        try:
            body = {"input_ids": self._writer.tokens(conversation(sample, thinking=self.thinking))}
            answer = post(
                url, body, engine.headers, timeout_s=self.request_timeout_s, tries=self.tries, passes_proxies=True
            )
        except SlimeError as error:
            return Verdict.invalid(str(error))
        except ServerError as error:
            return Verdict.error(str(error))
        found = answer.get("embedding") if isinstance(answer, dict) else None
        if not (isinstance(found, list) and len(found) == 1 and isinstance(found[0], float | int)):
            return Verdict.error(f"{url} answered no score: {answer!r:.80}")
        score = float(found[0])
        if not math.isfinite(score):
            return Verdict.error(f"the reward model's score is {score}")
        moved = (self.mean, self.std) != (0.0, 1.0)
        return Verdict.of((score - self.mean) / self.std, **({"score": score} if moved else {}))


def fault_of(scored_at: Any, std: Any, where: str = "reward.options") -> SlimeError | None:
    """The fault of two of its options."""
    if scored_at not in (None, TEMPLATE, END_TOKEN):
        todo = f"Set it to {TEMPLATE} or {END_TOKEN}."
        return SlimeError(f"is {scored_at!r:.40}", where=f"{where}.scored_at", todo=todo)
    if isinstance(std, int | float) and not std > 0:
        return SlimeError(f"is {std:g}", where=f"{where}.std", todo="Set it above 0.")
    return None


def conversation(sample: Sample, *, thinking: bool) -> list[Message]:
    """All messages, the response last; of an attempt in conversations with the turns between."""
    response = sample.response if thinking else said(sample)
    turns = list(sample.turns[:-1] if sample.turns and sample.turns[-1]["role"] == "assistant" else sample.turns)
    return [*sample.prompt.messages, *turns, {"role": "assistant", "content": response}]


class ConversationWriter:
    """Writes conversations as a reward model reads them.

    Args:
        folder: of its tokenizer and chat template.
        scored_at: None asks config.json.
        keywords: of the template.

    Raises:
        SlimeError: there is no tokenizer, or none with a chat template.
    """

    def __init__(self, folder: Path, scored_at: str | None, keywords: dict[str, Any]) -> None:
        from slime.config.schema import DataConfig
        from slime.data.chat import Chat
        from slime.data.tokenize import load_tokenizer

        self._tokenizer = load_tokenizer(folder)
        self._at = scored_at or json.loads((folder / "config.json").read_text()).get(SCORED_AT, TEMPLATE)
        self._chat: Chat = Chat(self._tokenizer, DataConfig(path="", chat_template_kwargs=keywords), max_tokens=1)

    def tokens(self, messages: Sequence[Message]) -> list[int]:
        """Token ids, at the last of which the model scores.

        Raises:
            SlimeError: the chat template refuses the messages.
        """
        from slime.data.demonstrations import up_to_end
        from slime.data.tokenize import encode

        *before, last = [self._plain(message) for message in messages]
        texts = [self._chat.render([*before, last], "", prompt=False)]
        if self._at == TEMPLATE:
            return next(encode(self._tokenizer, texts))
        whole, prompt = encode(self._tokenizer, [*texts, self._chat.render(before, "", prompt=True)])
        if whole[: len(prompt)] != prompt:
            what = "the reward model's chat template writes the prompt differently once it is answered"
            todo = "Set reward.options.chat_template_kwargs, or reward.options.scored_at=template."
            raise SlimeError(what, todo=todo)
        return [*prompt, *up_to_end(whole[len(prompt) :], self._tokenizer.eos_token_id)]

    def _plain(self, message: Message) -> Message:
        """A response without the reward model's control tokens: it could open turns, and praise itself."""
        content = message.get("content")
        if message["role"] != "assistant" or not isinstance(content, str):
            return message
        while (plain := self._chat.control.sub("", content)) != content:
            content = plain
        return {**message, "content": content}
