"""Whether the files of prompts and demonstrations are there and their first rows are right.

A run reads all of them before it starts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from slime.algo.stages import Stage, of_data, run_stages
from slime.aside import step
from slime.compose.needs import absent_set, is_awaited
from slime.config.hf import config_folder, read_hf_config
from slime.config.hf_fields import MAX_COUNT
from slime.config.keys import value_of
from slime.config.paths import exists, is_hub_id, resolve, resolve_rows
from slime.config.schema import DataConfig, EvalConfig, ModelConfig, SlimeConfig
from slime.data.first_look import (
    id_problems,
    keyword_problems,
    look_at_demonstrations,
    look_at_prompts,
    template_problems,
)
from slime.data.prompt_rows import check_numbers, check_prompts, conversations, others
from slime.data.prompts import data_of
from slime.data.rows import Row, first_rows
from slime.data.shards import row_files
from slime.data.tokenize import UnusableTemplate
from slime.errors import SlimeError

SUPERVISED = ("sft.path", "sft.eval_path")
KEYS = ("data.path", "eval.path", *SUPERVISED)
READ_S = 60.0
"""What the first rows of a file may take of a processor: one row may have some hundred megabytes."""
FIRST_ROWS = 100
"""Rows of a file that are read before a run, of which an average one takes 20 microseconds, and 200 with its tokens."""


def data_problems(cfg: SlimeConfig) -> Iterator[SlimeError]:
    """What is wrong with the files that are there, one error a file, and with the chat template's keywords. What is
    wrong with the model's tokenizer is said once."""
    told = set[tuple[str, str]]()
    for key, problem in _problems_by_key(cfg):
        if (problem.what, problem.where) not in told:
            yield problem.under(key) if key else problem
        told.add((problem.what, problem.where))
        if isinstance(problem, UnusableTemplate):
            return


def _problems_by_key(cfg: SlimeConfig) -> Iterator[tuple[str, SlimeError]]:
    num_rows = _num_rows(config_folder(cfg.model))
    if folder := _tokenizer(cfg.model):
        broken = _all(template_problems(folder, cfg.data.chat_template_kwargs))
        found = broken or _all(id_problems(folder, num_rows))
        yield from (("", problem) for problem in found)
        folder = None if broken else folder  # what is said of the tokenizer is not said of each file
        num_rows = MAX_COUNT if found else num_rows
    for name, group in cfg.rollout.engines.items():
        if group.model and exists(group.model):
            of_group = _all(id_problems(resolve(group.model), _num_rows(group.model)))
            yield from ((f"rollout.engines.{name}.model", problem) for problem in of_group)
    if cfg.data.chat_template_kwargs and folder:
        yield from (("", problem) for problem in _all(keyword_problems(cfg.data, folder)))
    stages, sets = run_stages(cfg), {**cfg.data.named(), **cfg.eval.named()}
    read_as = {f"{home}.path": data_of(cfg.data, own) for home, own in sets.items()}
    for key in (*KEYS, *read_as):
        path = value_of(cfg, key)
        if path is not None and not is_awaited(path, getattr(value_of(cfg, key.rpartition(".")[0]), "source", None)):
            fault = SlimeError("its rows cannot be read", where=f"{key}={path}", todo="Name another file.")
            step(READ_S, fault)
            try:
                limit = getattr(value_of(cfg, key.removesuffix(".path")), "limit", None)
                rows = first_rows(_place(path), min(limit or FIRST_ROWS, FIRST_ROWS))
                if key in SUPERVISED and cfg.sft.num_steps:
                    most = cfg.train.max_tokens_per_micro_batch
                    _check_demonstrations(rows, cfg.data, stages.all[0], folder, most, num_rows)
                elif key.startswith("eval.") or (key not in SUPERVISED and stages.reinforces):
                    columns = [] if key.startswith("eval.") else of_data(stages.all[-1].objective)
                    most, read = cfg.rollout.max_prompt_tokens, read_as.get(key, cfg.data)
                    _check_prompts(rows, read, columns, folder, most, num_rows)
            except SlimeError as problem:
                yield key, problem


def overlap_problems(evaluation: EvalConfig, data: DataConfig) -> Iterator[SlimeError]:
    """Whether prompts to train on are held out."""
    trained = {"data": _files(data.path), **{home: _files(own.path) for home, own in data.named().items()}}
    for home, own in evaluation.all().items():
        for key, files in trained.items():
            if own.path is not None and (both := _files(own.path) & files):
                what = f"both read {min(both)}: the run would train on its held-out prompts"
                todo = "Name other prompts in one of them, or set eval.path=null."
                yield SlimeError(what, where=f"{key}.path, {home}.path", todo=todo)


def _files(path: str) -> set[Path]:
    try:
        return {file.resolve() for file in row_files(resolve_rows(path))}
    except SlimeError:  # told by `data_problems`, or still to be fetched
        return set()


def _place(path: str) -> Path:
    if is_hub_id(path) and not exists(path):
        raise absent_set(path)
    return resolve_rows(path)


def _tokenizer(model: ModelConfig) -> Path | None:
    folder = model.tokenizer or model.path
    return resolve(folder) if exists(folder) else None


def _all(problems: Iterator[SlimeError]) -> list[SlimeError]:
    try:
        return list(problems)
    except SlimeError as problem:
        return [problem]


def _num_rows(folder: str) -> int:
    """Rows of the embeddings; enough where config.json does not say it, of which others tell."""
    try:
        return int(read_hf_config(folder).get("vocab_size", MAX_COUNT))
    except SlimeError:
        return MAX_COUNT


def _check_demonstrations(
    rows: Sequence[Row], data: DataConfig, stage: Stage, tokenizer: Path | None, most: int, num_rows: int
) -> None:
    pairs, columns = stage.trains_on_pairs, of_data(stage.objective)
    for row in rows:
        check_numbers(row.where, others(row, data, supervised=True), columns, 0 if pairs else None)
        conversations(row, data.prompt_key, pairs=pairs)
    if tokenizer:
        look_at_demonstrations(rows, data, tokenizer, most, num_rows, pairs=pairs)


def _check_prompts(
    rows: Sequence[Row], data: DataConfig, columns: Collection[str], tokenizer: Path | None, most: int, num_rows: int
) -> None:
    for row in rows:
        check_numbers(row.where, others(row, data), columns)
    if rows:
        check_prompts(rows, data)
    if rows and tokenizer:
        look_at_prompts(rows, data, tokenizer, most, num_rows)
