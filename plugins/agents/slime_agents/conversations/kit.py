"""What a run asks this distribution for."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from slime.config.rollout import ProgramConfig
from slime.config.schema import DataConfig
from slime.contracts import Program
from slime.data.tokenize import Tokenizer
from slime_agents.conversations.chat_format import ChatFormat
from slime_agents.conversations.isolated import isolated


class Kit:
    """A `slime.sampling.programs.ProgramKit`."""

    def chat(self, tokenizer: Tokenizer, data: DataConfig, max_prompt_tokens: int) -> ChatFormat:
        return ChatFormat(tokenizer, data, max_prompt_tokens)

    def isolated(
        self, program: ProgramConfig, log: Path | None, hidden: Sequence[Path]
    ) -> AbstractContextManager[Program]:
        return isolated(program, log, hidden)
