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
    """What programs need beyond one response in the driver's process. A plugin brings it (`slime_conversations`)."""

    def chat(self, tokenizer: Tokenizer, data: DataConfig, max_prompt_tokens: int) -> Chat:
        """Of a run.

        Args:
            tokenizer: of the model.
            data: keywords of the template.
            max_prompt_tokens: limit of what a conversation begins with.
        """

    def isolated(
        self, program: ProgramConfig, log: Path | None, hidden: Sequence[Path]
    ) -> AbstractContextManager[Program]:
        """A program in worker processes, an attempt each: what it does to its process costs that attempt.

        Args:
            program: its name, options and limits.
            log: file that gets what it prints, and the stacks of its exceptions; None discards it.
            hidden: files that it cannot read, where the machine permits to hide them.
        """


def installed_kit() -> ProgramKit | None:
    """What is installed for programs of several turns, and for programs in processes of their own."""
    return plugins.load().conversations.only()


def no_kit() -> SlimeError:
    """What to say where it is missing."""
    what = "programs of several turns, or of your own, need slime-agents, which is not installed"
    return SlimeError(what, where="rollout.program.name", todo=how_to_get("conversation/chat-template"))


@contextmanager
def opened(cfg: ProgramConfig, log: Path | None = None, hidden: Sequence[Path] = ()) -> Iterator[Program]:
    """The program of a run: in workers, unless it says `in_driver`.

    Args:
        log: file that gets what it prints in its workers, and the stacks of its exceptions.
        hidden: files that it cannot read there, where the machine permits to hide them.

    Raises:
        SlimeError: there is none of that name, or it cannot be created.
    """
    program: Program = plugins.load().programs.create(cfg.name, **cfg.options)
    if not getattr(program, "in_driver", False):
        kit = installed_kit()
        if kit is None:
            raise no_kit()
        with kit.isolated(cfg, log, hidden) as isolated:
            yield isolated
        return
    try:
        yield program
    finally:
        close = getattr(program, "close", None)
        if close:
            close()
