"""All rows that a run reads."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

from slime.algo.stages import of_data, run_stages
from slime.config.hf import config_folder, read_hf_config
from slime.config.paths import resolve_rows
from slime.config.schema import DataConfig, EvalConfig, ModelConfig, SlimeConfig
from slime.data.demonstrations import DemonstrationSource
from slime.data.mix import PromptMix
from slime.data.prompts import HeldOut, PromptSet, data_of
from slime.data.token_ids import behind, reachable_problem, require_rows
from slime.data.tokenize import Tokenizer
from slime.layout import read_grid


class Data:
    """Prompts, demonstrations and held-out prompts: read and checked whole before anything is written."""

    def __init__(self, cfg: SlimeConfig, tokenizer: Tokenizer) -> None:
        self.prompts: PromptMix | None = None
        self.demonstrations: DemonstrationSource | None = None
        self.measured: DemonstrationSource | None = None
        self.held_out: list[HeldOut] = []
        stages = run_stages(cfg)
        if cfg.sft.num_steps:
            assert cfg.sft.path, "compose() asks for demonstrations"
            align = read_grid(cfg.cluster.num_trainers, cfg.train.megatron).packing_align
            pairs = stages.all[0].trains_on_pairs
            limit = (cfg.train.max_tokens_per_micro_batch // align - pairs) * align  # padding included
            given = (tokenizer, cfg.run.seed, limit, cfg.data)
            self.demonstrations = DemonstrationSource(
                resolve_rows(cfg.sft.path), *given, pairs=pairs, limit=cfg.sft.limit
            )
            if cfg.sft.eval_path:
                self.measured = DemonstrationSource(resolve_rows(cfg.sft.eval_path), *given, pairs=pairs)
        if stages.reinforces:
            self.prompts = PromptMix(cfg.data, tokenizer, cfg.run.seed, cfg.rollout.max_prompt_tokens)
        if cfg.eval.path:
            self.held_out = _held_out(cfg.eval, cfg.data, tokenizer, cfg.rollout.max_prompt_tokens)
        for source, place in ((self.demonstrations, 0), (self.measured, 0), (self.prompts, -1)):
            if source:
                source.check_columns(of_data(stages.all[place].objective))
        self._require_rows(cfg.model, tokenizer)

    def _require_rows(self, model: ModelConfig, tokenizer: Tokenizer) -> None:
        """That the embeddings have a row for every token."""
        num_rows = read_hf_config(config_folder(model))["vocab_size"]
        if problem := reachable_problem(tokenizer, num_rows, tokenizer.name_or_path):
            raise problem
        sources = [source for source in (self.prompts, self.demonstrations, self.measured) if source]
        held_out = ((f"held-out prompt {each.id}", each.tokens) for own in self.held_out for each in own.prompts)
        encoded = (found for source in sources for found in source.encoded())
        require_rows(chain(encoded, held_out), behind(tokenizer, num_rows), num_rows)

    def __str__(self) -> str:
        counts = {
            "demonstrations": self.demonstrations and len(self.demonstrations),
            "held-out demonstrations": self.measured and len(self.measured),
            "prompts": self.prompts and len(self.prompts),
            "held-out prompts": sum(len(each.prompts) for each in self.held_out),
        }
        return ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)


def _held_out(cfg: EvalConfig, data: DataConfig, tokenizer: Tokenizer, max_prompt_tokens: int) -> list[HeldOut]:
    assert cfg.path, "without it there is no evaluation"
    main = PromptSet(replace(data, limit=cfg.limit), resolve_rows(cfg.path), tokenizer, max_prompt_tokens)
    found = [HeldOut("", cfg, [main.prompt(row, "eval") for row in range(len(main))])]
    for name, own in cfg.sets.items():
        read = PromptSet(data_of(data, own), resolve_rows(own.path), tokenizer, max_prompt_tokens, f"eval/{name}")
        found.append(HeldOut(name, own, [read.prompt(row, "") for row in range(len(read))]))
    return found
