"""All rows that a run reads."""

from __future__ import annotations

from pathlib import Path

from slime.config.paths import resolve
from slime.config.schema import DataConfig, SlimeConfig
from slime.data.demonstrations import DemonstrationSource
from slime.data.prompts import PromptSet, PromptSource
from slime.data.tokenize import Tokenizer
from slime.topology.layout import read_grid
from slime.types import Prompt


class Data:
    """Prompts, demonstrations and held-out prompts: read and checked whole before anything is written."""

    def __init__(self, cfg: SlimeConfig, tokenizer: Tokenizer) -> None:
        self.prompts: PromptSource | None = None
        self.demonstrations: DemonstrationSource | None = None
        self.held_out: list[Prompt] = []
        if cfg.sft.num_steps:
            assert cfg.sft.path, "compose() asks for demonstrations"
            align = read_grid(cfg.cluster.num_trainers, cfg.train.megatron).packing_align
            limit = cfg.train.max_tokens_per_micro_batch // align * align  # padding included
            self.demonstrations = DemonstrationSource(resolve(cfg.sft.path), tokenizer, cfg.run.seed, limit, cfg.data)
        if cfg.algo.name != "sft":
            self.prompts = PromptSource(cfg.data, tokenizer, cfg.run.seed, cfg.rollout.max_prompt_tokens)
        if cfg.eval.path:
            self.held_out = _held_out(cfg.data, resolve(cfg.eval.path), tokenizer, cfg.rollout.max_prompt_tokens)

    def __str__(self) -> str:
        counts = {
            "demonstrations": self.demonstrations and len(self.demonstrations),
            "prompts": self.prompts and len(self.prompts.prompts),
            "held-out prompts": len(self.held_out),
        }
        return ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)


def _held_out(data: DataConfig, path: Path, tokenizer: Tokenizer, max_prompt_tokens: int) -> list[Prompt]:
    prompts = PromptSet(data, path, tokenizer, max_prompt_tokens)
    return [prompts.prompt(row, "eval") for row in range(len(prompts))]
