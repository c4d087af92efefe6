"""The program of a run, and what brings the parts that attempts of one response do without."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

from slime import plugins
from slime.config.rollout import ProgramConfig
from slime.config.schema import DataConfig
from slime.contracts import Program
from slime.conversation import Chat
from slime.data.tokenize import Tokenizer
from slime.errors import SlimeError
from slime.extras import how_to_get


class ProgramKit(Protocol):
    """Parts that programs need beyond one response in the driver's process. A plugin brings them
    (`slime_conversations`)."""

    def chat(self, tokenizer: Tokenizer, data: DataConfig, max_prompt_tokens: int) -> Chat:
        """The chat template of a run's model; a conversation may begin with `max_prompt_tokens`."""

    def isolated(
        self, program: ProgramConfig, log: Path | None, hidden: Sequence[Path]
    ) -> AbstractContextManager[Program]:
        """A program in worker processes, an attempt each: what it does to its process costs that attempt. Arguments as
        of `opened`; a `log` of None discards what it prints."""


def installed_kit() -> ProgramKit | None:
    """The installed parts for programs of several turns, and for programs in processes of their own."""
    return plugins.load().conversations.only()


def no_kit() -> SlimeError:
    """The error where it is missing."""
    what = "programs of several turns, or of your own, need slime-agents, which is not installed"
    return SlimeError(what, where="rollout.program.name", todo=how_to_get("conversation/chat-template"))


@contextmanager
def opened(cfg: ProgramConfig, log: Path | None = None, hidden: Sequence[Path] = ()) -> Iterator[Program]:
    """The program of a run: in workers, unless it says `in_driver`. There `log` gets what it prints, and the stacks of
    its exceptions, and it cannot read the files `hidden`, where the machine permits to hide them.

    Raises:
        SlimeError: there is none of that name, or it cannot be created.
    """
    program: Program = plugins.load().programs.create(cfg.name, **cfg.options)
    if not getattr(program, "in_driver", False):
        if (kit := installed_kit()) is None:
            raise no_kit()
        with kit.isolated(cfg, log, hidden) as isolated:
            yield isolated
        return
    try:
        yield program
    finally:
        if close := getattr(program, "close", None):
            close()
